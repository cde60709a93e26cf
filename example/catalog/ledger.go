package main

import "time"

// cause is why the origin was asked for a product.
type cause int

const (
	causeFirst       cause = iota // nobody had asked before
	causeExpired                  // the copy had reached its lifetime
	causeInvalidated              // its price had changed
	causeLost                     // a node was killed, and what it held with it
	causeStalled                  // the machine had stopped a process for so long that the others took it for dead
	causeRepeated                 // no reason: one load was enough
	causes
)

// ledger explains every load of the origin. What it cannot explain was a load too many: the cluster had the product, or was loading it.
// Not safe for concurrent use.
type ledger struct {
	life     time.Duration // the shortest lifetime of an entry
	products map[string]*loads
	lostFrom time.Duration // a node was killed then; negative: never
	count    [causes]int   // without repeats
	repeats  []repeat      // loads without a reason so far: stalls are reported after the loads that they cause
	stalls   []stall
}

// repeat is a load without a reason of its own.
type repeat struct {
	at     time.Duration
	before time.Duration // the load of the same product before it
}

// stall is a time in which a process of the cluster did not run at all although it wanted to.
type stall struct {
	from, to time.Duration
}

// aftermath is how long after a stall its consequences are: the others have to notice that the process is back, and what they loaded in its
// place meanwhile lives for a Bound.
const aftermath = time.Second

// loads is what the ledger knows of one product.
type loads struct {
	began         time.Duration // the newest load
	ever          bool
	invalidating  int           // invalidations under way
	invalidatedAt time.Duration // the newest one's end; negative: never
}

// newLedger returns a ledger for entries that live at least for life.
func newLedger(life time.Duration) *ledger {
	return &ledger{life: life, products: make(map[string]*loads), lostFrom: -1}
}

// load explains a load of key that reached the origin at now. A stall may still turn out to explain a repeated one: see causes.
func (l *ledger) load(key string, now time.Duration) cause {
	p := l.of(key)
	c := causeRepeated
	switch {
	case !p.ever:
		c = causeFirst
	case p.invalidating > 0 || p.invalidatedAt >= p.began:
		// An invalidation that ended after the last load began may have found that load under way and forbidden its value.
		c = causeInvalidated
	case now-p.began >= l.life:
		c = causeExpired
	case l.lostFrom >= 0 && now >= l.lostFrom:
		c = causeLost
	}
	if c == causeRepeated {
		l.repeats = append(l.repeats, repeat{at: now, before: p.began})
	} else {
		l.count[c]++
	}
	p.began, p.ever = now, true
	return c
}

// invalidating records that an invalidation of key begins. Each is followed by invalidated.
func (l *ledger) invalidating(key string) { l.of(key).invalidating++ }

// invalidated records that an invalidation of key ended, confirmed or not.
func (l *ledger) invalidated(key string, now time.Duration) {
	p := l.of(key)
	p.invalidating--
	p.invalidatedAt = now
}

// stalled records that a process did not run.
func (l *ledger) stalled(s stall) { l.stalls = append(l.stalls, s) }

// causes returns the number of loads by cause, with what is known of stalls by now: a repeated load is theirs if it happened because of
// one, or if the load before it did, so that the value went where nobody finds it any more.
func (l *ledger) causes() [causes]int {
	n := l.count
	for _, r := range l.repeats {
		if l.disturbed(r.at) || l.disturbed(r.before) {
			n[causeStalled]++
		} else {
			n[causeRepeated]++
		}
	}
	return n
}

func (l *ledger) disturbed(at time.Duration) bool {
	for _, s := range l.stalls {
		if at >= s.from && at < s.to+aftermath {
			return true
		}
	}
	return false
}

// longestStall returns the length of the longest stall.
func (l *ledger) longestStall() (longest time.Duration) {
	for _, s := range l.stalls {
		longest = max(longest, s.to-s.from)
	}
	return longest
}

// lost records that a node was killed.
func (l *ledger) lost(now time.Duration) { l.lostFrom = now }

func (l *ledger) of(key string) *loads {
	p := l.products[key]
	if p == nil {
		p = &loads{invalidatedAt: -1}
		l.products[key] = p
	}
	return p
}
