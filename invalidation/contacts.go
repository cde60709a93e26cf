package invalidation

import (
	"slices"
	"strings"
	"time"
)

// Contacts is what a member knows about who hears whom (R9b): what it heard itself, and what the members that it reaches said in their
// answers to its renewals. It decides whether a member that does not answer can still hold anything (R9): a pure function of what was
// heard.
//
// # Why a silent member holds nothing
//
// X owns by leases from a majority (Doubt). A lease that Y gives it lasts at most H beyond the instant at which Y received the renewal. So
// if Y received none of X from some instant T until it composed an answer at S, then X had no lease of Y at any instant between T+H and S.
// For each Y of a majority these intervals are known here, in this member's own time: T is no later than the receipt of the answer less
// the age that it carries, and S no earlier than the sending of the renewal that was answered, which counts for H only. Let f be the latest
// of all T+H. Once C and a little more have passed since f, f is before now-C and every S is after now-H, so that, C being no shorter
// than H, all of the intervals have the time from f to now-H in common: X had no lease from anybody of that majority then, and the
// others are too few. So X came into doubt at f at the latest, whatever it has noticed of it: what it held by then, and what it granted, has
// ended C after f. (Near copies of what it granted had a lease until f+H.) What it loads while it is fenced ends C after the load's
// start: where an invalidation is confirmed without having waited, because X was silent for long, that is the bound.
//
// A member that is fenced itself, or reaches no majority, knows nothing of this kind. Nor is there evidence while any member
// that is reached hears X: then X can be told through it.
//
// A member that restarts has lost what it held, and is in doubt for a window; it begins to hear others anew, so that the ages it reports are
// no longer than it lives.
//
// It is not safe for concurrent use. Times are nanoseconds on the member's own clock.
type Contacts struct {
	lease, life int64 // H; C with what clocks may be off
	began       int64
	heard       map[string]int64
	reports     map[string]report
}

// report is what a member said with its last answer.
type report struct {
	sent   int64            // the renewal that it answered
	silent map[string]int64 // when these were last heard, at the latest
}

// Silence tells for how long at least a member has not been heard.
type Silence struct {
	Member string
	Age    time.Duration
}

// Life is how long after it was cut off a member may serve what it held then, and what it began to load: C, which is bound, with what clocks
// may be off.
func Life(bound time.Duration) time.Duration {
	const clocks = 25 * time.Millisecond // what a coarse clock may lag
	return bound + bound/20 + clocks
}

// NewContacts returns the contacts of a member that starts at now, with the Bound of docs/protocol.md: H and C.
func NewContacts(bound time.Duration, now int64) *Contacts {
	return &Contacts{
		lease: int64(bound), life: int64(Life(bound)), began: now,
		heard: make(map[string]int64), reports: make(map[string]report),
	}
}

// Heard takes note that a renewal of member was received at now. It is called before the renewal is answered.
func (c *Contacts) Heard(member string, now int64) { c.heard[member] = max(c.heard[member], now) }

// Reported takes note of the answer of by to a renewal that was sent at sent, and received at now. silent is not kept.
func (c *Contacts) Reported(by string, silent []Silence, sent, now int64) {
	if sent < c.reports[by].sent {
		return // of a stream that was replaced
	}
	r := report{sent: sent}
	for _, s := range silent {
		if r.silent == nil {
			r.silent = make(map[string]int64, len(silent))
		}
		r.silent[s.Member] = now - int64(s.Age)
	}
	c.reports[by] = r
}

// Silent appends to dst what this member tells others at now: which of members it has not heard for half a lease, up to limit of them. A
// member that is not among them counts as heard.
func (c *Contacts) Silent(dst []Silence, members []string, limit int, now int64) []Silence {
	for _, m := range members {
		if age := now - c.last(m); len(dst) < limit && age >= c.lease/2 {
			dst = append(dst, Silence{Member: m, Age: time.Duration(age)})
		}
	}
	return dst
}

// Hears tells whether member answered a renewal that was sent less than a lease ago, and then heard other. So it can pass something on.
func (c *Contacts) Hears(member, other string, now int64) bool {
	r, ok := c.reports[member]
	if _, silent := r.silent[other]; !ok || silent {
		return false
	}
	return now < r.sent+c.lease
}

// Reach is what a member can find out about one that does not answer.
type Reach uint8

// The kinds of a Reach.
const (
	Unknown Reach = iota // no majority is reached: nothing can be found out
	Heard                // a member that is reached hears it
	Silent               // nobody does, but it may hold something yet
	Gone                 // whatever it held when it was cut off is dead
)

// Reach tells what is known of member at now. members are those to ask, without this one; majority tells whether those of them that are
// reached are, with this one, a majority of those who give leases.
func (c *Contacts) Reach(member string, members []string, majority func(reached []string) bool, now int64) Reach {
	fenced := c.last(member) + c.lease
	reached := make([]string, 0, len(members))
	heard := false
	for _, m := range members {
		r, ok := c.reports[m]
		if m == member || !ok || now >= r.sent+c.lease {
			continue
		}
		reached = append(reached, m)
		last, silent := r.silent[member]
		heard = heard || !silent
		fenced = max(fenced, last+c.lease)
	}
	switch {
	case !majority(reached):
		return Unknown
	case heard:
		return Heard
	case now < fenced+c.life:
		return Silent
	}
	return Gone
}

// Keep forgets all but members: what is not heard of again must not be remembered for ever.
func (c *Contacts) Keep(members []string, now int64) {
	for m := range c.reports {
		if !slices.Contains(members, m) {
			delete(c.reports, m)
		}
	}
	for m := range c.heard {
		if !slices.Contains(members, m) {
			delete(c.heard, m)
		}
	}
	for _, m := range members {
		if _, ok := c.heard[m]; !ok {
			c.heard[strings.Clone(m)] = now // it may have been answered before it was known
		}
	}
}

// last returns when member was heard, at the latest.
func (c *Contacts) last(member string) int64 { return max(c.heard[member], c.began) }
