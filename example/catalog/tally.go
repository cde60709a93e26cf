package main

import (
	"maps"
	"sync"
	"time"

	"github.com/nearcache/nearcache/example/internal/trace"
)

// tally counts everything the nodes report. Safe for concurrent use.
type tally struct {
	trace *trace.Trace

	mu       sync.Mutex // guards what follows
	nodes    []nodeTally
	latency  [tiers]histogram
	failures map[string]int // failed reads by the error's text
	wrong    map[string]int // wrong answers by what is wrong
	stale    *staleness
	noCache  *cost // what the same reads would have cost without a cache
	separate *cost // and with a cache in each process
	caches   *separateCaches
	writes   writeTally
	crash    crashTally
}

// nodeTally is one node's reads by tier.
type nodeTally struct {
	reads   [tiers]uint64
	latency histogram
	gone    bool
}

func (n *nodeTally) total() uint64 {
	var sum uint64
	for _, c := range n.reads {
		sum += c
	}
	return sum
}

// writeTally counts changes of prices.
type writeTally struct {
	committed   int
	confirmed   int            // invalidations that returned nil
	unconfirmed map[string]int // calls that did not, by the error's text; each is repeated until it does
	latency     histogram      // of the confirmed calls
}

// crashTally is what the crash of a node did to the reads of the others.
type crashTally struct {
	node   int           // which node; negative: none
	killed time.Duration // when
	until  time.Duration // how long its effects are looked for
	reads  histogram     // that were under way at the crash or began before until
	failed int           // of these reads
}

func newTally(cfg config, t *trace.Trace) *tally {
	return &tally{
		trace:    t,
		nodes:    make([]nodeTally, cfg.nodes),
		failures: make(map[string]int),
		wrong:    make(map[string]int),
		stale:    newStaleness(staleBound),
		noCache:  newCost(cfg.capacity, cfg.latency),
		separate: newCost(cfg.capacity, cfg.latency),
		caches:   newSeparateCaches(cfg.nodes, cfg.ttl),
		writes:   writeTally{unconfirmed: make(map[string]int)},
		crash:    crashTally{node: -1},
	}
}

// settle is how long confirmations may take from one process to the parent: answers are judged that much later.
const settle = time.Second

// add counts the reads of a node.
func (t *tally) add(node int, r *readsReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, rec := range r.Reads {
		t.addOneLocked(node, rec)
	}
	for text, n := range r.Failures {
		t.failures[text] += n
	}
	for text, n := range r.Wrong {
		t.wrong[text] += n
	}
	if n := len(r.Reads); n > 0 {
		t.stale.judge(r.Reads[n-1].start() - settle)
	}
}

func (t *tally) addOneLocked(node int, r readRecord) {
	where := r.tier()
	if where < 0 || where >= tiers {
		where = tierFailed
	}
	n := &t.nodes[node]
	n.reads[where]++
	n.latency.add(r.latency())
	t.latency[where].add(r.latency())
	t.noCache.load(r.start())
	if c := &t.crash; c.node >= 0 && r.start()+r.latency() >= c.killed && r.start() < c.until {
		c.reads.add(r.latency())
		if where == tierFailed {
			c.failed++
		}
	}
	if where == tierFailed {
		return
	}
	key := t.trace.Key(r.request())
	t.stale.read(seen{start: r.start(), key: key, version: r.version(), node: node})
	if t.caches.read(node, key, r.version(), r.start()) {
		t.separate.load(r.start())
	}
}

// locked runs f on the tally.
func (t *tally) locked(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// crashed records that a node was killed, and that its effects may show until then.
func (t *tally) crashed(node int, at, until time.Duration) {
	t.locked(func() { t.crash.node, t.crash.killed, t.crash.until = node, at, until })
}

// glance is a copy of what the live display shows.
type glance struct {
	nodes     []nodeGlance
	noCache   int
	separate  int
	failed    int
	wrong     int
	committed int
	stale     int
	beyond    int
	worst     time.Duration
	crash     crashTally
}

type nodeGlance struct {
	reads   [tiers]uint64
	latency *histogram
	gone    bool
}

func (t *tally) glance() glance {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := glance{
		noCache:   t.noCache.loads,
		separate:  t.separate.loads,
		failed:    total(t.failures),
		wrong:     total(t.wrong),
		committed: t.writes.committed,
		stale:     t.stale.stale,
		beyond:    t.stale.beyond,
		worst:     t.stale.worst,
		crash:     crashTally{node: t.crash.node, killed: t.crash.killed},
	}
	for i := range t.nodes {
		n := &t.nodes[i]
		latency := n.latency
		g.nodes = append(g.nodes, nodeGlance{reads: n.reads, latency: &latency, gone: n.gone})
	}
	return g
}

func total(m map[string]int) int {
	sum := 0
	for n := range maps.Values(m) {
		sum += n
	}
	return sum
}
