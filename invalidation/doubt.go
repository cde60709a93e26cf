package invalidation

import (
	"math"
	"slices"
	"time"
)

// Never is a time that does not come.
const Never = math.MaxInt64

// DoubtConfig says what a Doubt is sure of.
type DoubtConfig struct {
	Bound  time.Duration // C of docs/protocol.md
	Window time.Duration // W
	// Trusting members are never in doubt: where availability comes first (R18), or where nobody can get a nil past them.
	Trusting bool
}

// Tenure is what an owner may serve of what it holds. Times are those of its own clock.
type Tenure struct {
	// What was loaded before Before ends at BeforeEnd, whatever its lifetime is; what was loaded before Ended has ended: an earlier doubt was the
	// end of it, and a later one gives it no more time.
	Before, BeforeEnd, Ended int64
	// Fence is when no majority is heard any more, unless one is heard again before, and End when everything ends then; both may be Never.
	Fence, End int64
	// Capped: what is stored now lives a Bound at most, counted from the start of its load.
	Capped bool
	// Fenced: no majority is heard.
	Fenced bool
	// Until is a Window after the last cause of doubt. Caused is the last one that came while the member was in doubt already: what another
	// owner vouched for before it (R10b) lives a Bound at most, counted from then. 0: there was none.
	Until, Caused int64
}

// DoubtfulAt tells whether there was a cause of doubt within the last Window: this member may have missed what it would have been told of.
func (t *Tenure) DoubtfulAt(now int64) bool { return now < t.Until || now >= t.Fence }

// CappedAt tells whether what is stored at now lives a Bound at most. It knows of a fence that nobody has noticed yet: the process may have
// been paused.
func (t *Tenure) CappedAt(now int64) bool { return t.Capped || now >= t.Fence }

// Doubt decides how long a member may take itself for the owner of what its ring says it owns (R7): a pure function of what it heard.
//
// A member owns by a lease from the others, as it holds near copies by leases: while a majority of the owning members has answered renewals
// sent less than a Bound ago, nobody gets a nil for an invalidation that this member was not told of. When the majority's leases are over,
// what it holds ends a Bound later. Whoever waits that long without hearing of it may report success (R9).
//
// What another owner vouched for while this member was in doubt is an exception: it lives as long as it should, since that owner passes on
// what it is told. A later cause ends the exception (Tenure.Caused).
//
// Invariant: what was loaded before the member came into doubt ends a Bound after that, and what is loaded before a Window is over since the
// last cause ends a Bound after the start of its load. So an entry that missed an invalidation while the member was in doubt is gone a
// Bound later, however long the doubt lasts.
//
// It is not safe for concurrent use.
type Doubt struct {
	cfg    DoubtConfig
	until  int64 // a Window after the last cause
	tenure Tenure
}

// NewDoubt returns the doubt of a member that starts at now: it does not know what it missed.
func NewDoubt(cfg DoubtConfig, now int64) *Doubt {
	d := &Doubt{cfg: cfg, tenure: Tenure{Fence: Never, End: Never}}
	d.enter(now, now)
	return d
}

// Heard takes note of what is known at now: until when each of the other owning members is known to hear this one, what a majority of them
// is short of this member (Majority), and whether a connected member goes by another ring. It reports whether the member came into doubt by
// it: then what it granted to others is void too, and they are to be told (Log.Reset).
func (d *Doubt) Heard(leases []int64, majority int, differs bool, now int64) (entered bool) {
	end := d.fence(leases, majority)
	d.tenure.Fenced = end <= now
	d.tenure.Fence, d.tenure.End = Never, Never
	switch {
	case d.cfg.Trusting || end == Never:
	case end > now:
		d.tenure.Fence, d.tenure.End = end, end+int64(d.cfg.Bound)
	default:
		entered = d.enter(end, now)
	}
	d.tenure.Capped = !d.cfg.Trusting && (differs || now < d.until)
	return entered
}

// Dropped takes note that a member says that this one is not in its ring. It reports as Heard does.
func (d *Doubt) Dropped(now int64) (entered bool) {
	return d.enter(now, now)
}

// Tenure returns what the member may do.
func (d *Doubt) Tenure() Tenure { return d.tenure }

// Majority returns how many other members have to be heard, of electorate owning ones.
func Majority(electorate int, selfOwns bool) int {
	need := electorate/2 + 1
	if selfOwns {
		need--
	}
	return need
}

// fence returns when the last lease ends without which there is no majority.
func (d *Doubt) fence(leases []int64, need int) int64 {
	if need <= 0 {
		return Never
	}
	if len(leases) < need {
		return 0
	}
	sorted := slices.Clone(leases)
	slices.Sort(sorted)
	return sorted[len(sorted)-need]
}

// enter begins a doubt that has its cause at at, and was noticed at now, or prolongs it. What is held by a member in doubt is capped already.
func (d *Doubt) enter(at, now int64) (entered bool) {
	if d.cfg.Trusting {
		return false
	}
	if entered = now >= d.until; entered {
		d.tenure.Ended = max(d.tenure.Before, d.tenure.Caused) // a Window ago and more, which is longer than a Bound
		d.tenure.Before, d.tenure.BeforeEnd = now, at+int64(d.cfg.Bound)
	} else {
		d.tenure.Caused = now
	}
	d.until, d.tenure.Capped = now+int64(d.cfg.Window), true
	d.tenure.Until = d.until
	return entered
}
