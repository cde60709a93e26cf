package sim

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"
)

// checker judges what callers see. An acknowledgement is an invalidation that returned nil: from then on no read may begin that
// returns an older version, once the Bound and Slack are over.
type checker struct {
	w     *world
	bound time.Duration
	keys  map[string]*history

	reads, failed      int
	stale              int // reads of a stale copy
	confirmed, partial int
	worst              int64 // of the ages of acknowledgements that a read did not honour
	worstPartial       int64
	backwards          int
	longest            int64 // of the Gets
	violations         []Violation
	count              map[string]int
}

// Slack is what a bound may be exceeded by: coarse clocks, rates that differ, the time to notice.
const Slack = 50 * time.Millisecond

// history is what is known of one key.
type history struct {
	acks     []ack // by version
	ackAlls  []ack // of these, those with AckAll
	partials []ack
	active   int   // invalidations under way
	touched  int64 // end of the last one
	views    map[*node]view
	sets     map[int]int64 // when a Set last stored a version
	heard    heard
	updated  map[int][]string // versions that an Update has committed while it held the key, and the members that it could not hold it on
	seen     map[int]int64    // when a version was first known to somebody
}

type ack struct {
	began   int64
	at      int64
	version int
	soft    bool  // values stay as stale copies
	all     bool  // with AckAll
	feed    bool  // nobody called
	heals   int64 // of a partial one: until then older versions may be read
	by      *node // who owes a partial one; nil: nobody
}

// view is what one process knows of a key.
type view struct {
	own    []ack // its own invalidations, by version, however they ended
	seen   int   // highest version read
	seenAt int64 // that read's end
}

// Violation is something that must not happen.
type Violation struct {
	Kind string
	Key  string
	Text string
	at   int64
}

func newChecker(w *world) *checker {
	c := &checker{w: w, bound: w.cfg.Bound + Slack, keys: make(map[string]*history), count: make(map[string]int)}
	if w.cfg.Lag > 0 { // a reader may join a load that began just after the invalidation
		c.bound += w.cfg.Lag + 2*w.cfg.Faults.SlowLoad
	}
	for _, k := range w.keys {
		c.keys[k] = &history{views: make(map[*node]view), sets: make(map[int]int64), heard: newHeard(), updated: make(map[int][]string), seen: make(map[int]int64)}
	}
	return c
}

func (c *checker) violation(kind, key, format string, args ...any) {
	c.count[kind]++
	v := Violation{Kind: kind, Key: key, Text: fmt.Sprintf(format, args...), at: c.w.now}
	c.w.note(key, "VIOLATION %s: %s", kind, v.Text)
	if len(c.violations) < 10 {
		c.violations = append(c.violations, v)
	}
}

// begins notes that an invalidation begins; ended is called when it returns.
func (c *checker) begins(key string) { c.keys[key].active++ }

// stored notes that a Set stored a version. One that was under way for long comes after the invalidation of a later version that it does not
// know of: it is the last writer then, and wins (docs/protocol.md, "Numbers").
func (c *checker) stored(key string, version int) { c.keys[key].sets[version] = c.w.now }

// ended notes that an invalidation returned. After one with AckAll that returned nil no read that begins later returns an older version (R12),
// while the members stay.
func (c *checker) ended(n *node, key string, a ack, err *partialError) {
	h := c.keys[key]
	h.active--
	h.touched = c.w.now
	a.at = c.w.now
	if !a.feed {
		v := h.views[n]
		v.own = insert(v.own, a)
		h.views[n] = v
	}
	if err == nil {
		c.confirmed++
		h.acks = insert(h.acks, a)
		if a.all {
			h.ackAlls = insert(h.ackAlls, a)
		}
		return
	}
	c.partial++
	a.heals = a.at + int64(err.staleFor)
	if len(err.members) > 0 {
		a.by = n
	}
	h.partials = insert(h.partials, a)
}

func insert(acks []ack, a ack) []ack {
	i := sort.Search(len(acks), func(i int) bool { return acks[i].version > a.version })
	return slices.Insert(acks, i, a)
}

// oldest returns the time since the first acknowledgement of a later version before start, -1 when there is none.
// What began before the version was set anew does not count.
func oldest(acks []ack, version int, set, start int64) (age int64, of ack) {
	age = -1
	i := sort.Search(len(acks), func(i int) bool { return acks[i].version > version })
	for ; i < len(acks); i++ {
		if a := acks[i]; a.began >= set && a.at < start && start-a.at > age {
			age, of = start-a.at, a
		}
	}
	return age, of
}

// finish ends a Get and judges it.
func (g *reading) finish(res result, err error) {
	if g.over {
		return
	}
	g.over = true
	c := g.n.w.checker
	c.longest = max(c.longest, c.w.now-g.start)
	if g.gaveUp {
		return
	}
	if err != nil {
		c.failed++
		if !errors.Is(err, errLoad) && !errors.Is(err, errLate) && !errors.Is(err, errWaited) {
			c.violation("error", g.key, "a Get on %s fails: %v", g.n.id, err)
		}
		return
	}
	c.read(g, res)
}

func (c *checker) read(g *reading, res result) {
	c.reads++
	key, version, _ := parse(res.value)
	h := c.keys[g.key]
	if key != g.key {
		c.violation("foreign", g.key, "%s reads %q", g.n.id, res.value)
		return
	}
	if res.stale {
		c.readStale(g, h, version, res)
		return
	}
	if age, of := oldest(h.acks, version, h.sets[version], g.start); age >= 0 {
		c.worst = max(c.worst, age)
		if age > int64(c.bound) {
			c.violation("stale", g.key, "%s reads %s (%s) %v after the invalidation of version %d returned nil",
				g.n.id, res.value, res.tier, time.Duration(age), of.version)
		}
	}
	if age, of := oldest(h.ackAlls, version, h.sets[version], g.start); age >= 0 && c.w.cfg.Lag == 0 && !c.w.moving {
		c.violation("ack all", g.key, "%s reads %s (%s) %v after the invalidation of version %d with AckAll returned nil",
			g.n.id, res.value, res.tier, time.Duration(age), of.version)
	}
	if age, of := oldest(h.partials, version, h.sets[version], g.start); age >= 0 {
		c.worstPartial = max(c.worstPartial, age)
		if g.start > of.heals+int64(Slack) {
			c.violation("unhealed", g.key, "%s reads %s (%s) %v after the invalidation of version %d", g.n.id, res.value, res.tier, time.Duration(age), of.version)
		}
	}
	c.linear(g, h, version, res)
	c.healed(g, h, version, res)
	c.viewed(g, h, version, res)
}

// updates notes that an Update has committed a version while it held the key, but for some members that were gone.
func (c *checker) updates(key string, version int, but []string) { c.keys[key].updated[version] = but }

// released notes that an Update is over.
func (c *checker) released(key string) {
	h := c.keys[key]
	h.active--
	h.touched = c.w.now
}

// sees notes that somebody has seen a version.
func (c *checker) sees(key string, version int) {
	if h := c.keys[key]; h.seen[version] == 0 {
		h.seen[version] = c.w.now
	}
}

// linear checks that nobody sees an older version once somebody has seen what an Update committed, or that has returned (R13), while the
// members stay.
func (c *checker) linear(g *reading, h *history, version int, res result) {
	if !c.w.cfg.Updates {
		return
	}
	c.sees(g.key, version)
	for v := c.w.origin.version(g.key); v > version && !c.w.moving && c.w.cfg.Lag == 0; v-- {
		but, ok := h.updated[v]
		if at := h.seen[v]; ok && at != 0 && at < g.start && !slices.Contains(but, g.n.id) {
			c.violation("not linear", g.key, "%s reads %s (%s) %v after version %d was seen, which an Update committed",
				g.n.id, res.value, res.tier, time.Duration(g.start-at), v)
			return
		}
	}
}

// healed checks a read of the quiet time: what was owed has been paid by then, if its writer lives (R9).
func (c *checker) healed(g *reading, h *history, version int, res result) {
	if !c.w.quiet || g.start < c.w.calmAt+int64(healTime) {
		return
	}
	for _, a := range h.partials {
		if a.version > version && a.began >= h.sets[version] && a.by != nil && !a.by.dead {
			c.violation("owed", g.key, "%s reads %s (%s) long after all is well, and %s owes version %d", g.n.id, res.value, res.tier, a.by.id, a.version)
			return
		}
	}
}

// healTime is how long what is owed may take to be paid once nothing fails any more.
const healTime = 5 * time.Second

// viewed checks the read against what its process has seen and done.
func (c *checker) viewed(g *reading, h *history, version int, res result) {
	v := h.views[g.n]
	if age, of := oldest(v.own, version, h.sets[version], g.start); age >= 0 && c.w.cfg.Lag == 0 {
		c.violation("own view", g.key, "%s reads %s (%s) %v after its own invalidation of version %d", g.n.id, res.value, res.tier, time.Duration(age), of.version)
	}
	if version < v.seen && g.start > v.seenAt {
		if age, _ := oldest(h.acks, version, h.sets[version], g.start); age > 0 {
			c.backwards++
			if c.w.healthy {
				c.violation("backwards", g.key, "%s reads %s (%s) after version %d", g.n.id, res.value, res.tier, v.seen)
			}
		}
	}
	if version > v.seen || v.seenAt == 0 {
		v.seen, v.seenAt = version, c.w.now
		h.views[g.n] = v
	}
}

// loads checks that a load is the key's only one, where nobody fails: one that an invalidation has made old does not count.
func (c *checker) loads(l *loading) {
	h := c.keys[l.key]
	if !c.w.healthy || h.active > 0 || h.touched >= l.asked || c.w.isUpdated(l.key) {
		return
	}
	for _, other := range c.w.origin.running[l.key] {
		if h.touched < other.asked {
			c.violation("double load", l.key, "%s loads, and %s does since %v", l.x.n.id, other.x.n.id, time.Duration(c.w.now-other.began))
		}
	}
}

// finished checks that nothing is left when everything has had its time to end.
func (c *checker) finished() {
	for _, n := range c.w.alive() {
		for _, g := range n.gets {
			if !g.over {
				c.violation("lost wake-up", g.key, "a Get on %s has not returned for %v", n.id, time.Duration(c.w.now-g.start))
			}
		}
		if st := n.shard.Stats(); st.Leases != 0 || st.Waiters != 0 {
			c.violation("left over", "", "%s has %d leases and %d waiters", n.id, st.Leases, st.Waiters)
		}
		if k := n.flights.Len() + n.renewing.Len(); k != 0 {
			c.violation("left over", "", "%s has %d flights", n.id, k)
		}
	}
	if most := 3 * int64(c.w.cfg.LoadTimeout+c.w.cfg.LoadQueueTime+time.Second); c.longest > most && !c.w.cfg.Faults.Pause {
		c.violation("slow", "", "a Get took %v", time.Duration(c.longest))
	}
}

// move tells that members come and go, or that some believe so.
func (f *Faults) move() bool { return f.Crash || f.Leave || f.Halve || f.Isolate && !f.Listed }

// none tells that nothing fails.
func (f *Faults) none() bool {
	return f.Loss == 0 && f.TailShare == 0 && !f.Crash && !f.Leave && !f.Halve && !f.Isolate && !f.Cut && !f.OneWay && !f.Pause
}
