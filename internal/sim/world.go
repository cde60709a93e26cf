package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nearcache/nearcache/peers"
)

// world is everything.
type world struct {
	engine
	cfg     Config
	keys    []string
	zipf    *rand.Zipf
	members []*member
	ids     []string
	blocked [][]bool // from, to: nothing arrives
	list    []peers.Member
	number  int // of the list
	left    map[string]bool
	origin  *origin
	checker *checker
	quiet   bool // writes and faults are over
	calmAt  int64
	healthy bool // nothing fails in this run
	moving  bool // members come and go
	busy    int  // faults under way

	nearHits  int
	copied    int
	inherited int
	traced    string // the key whose events are logged
	tracing   bool
	log       []string
}

// member is a place in the cluster, where one process after the other lives.
type member struct {
	id, addr string
	node     *node // nil: none runs
}

// Result is what a run came to.
type Result struct {
	Seed                   uint64
	Reads, NearHits, Loads int
	Stale                  int // reads of a copy that is marked so
	Copied                 int // taken by replicas
	Inherited              int // taken from former owners
	Failed                 int // reads that got an error
	Acked, Partial         int
	Backwards              int
	Worst, WorstPartial    time.Duration // staleness after nil, and after a PartialError
	Longest                time.Duration // Get
	Violations             []Violation   // the first ones
	Count                  map[string]int
	Log                    []string // of the key that Trace was asked for
}

// Run simulates one seed.
func Run(cfg Config, seed uint64) Result { return simulate(newWorld(cfg, seed), seed) }

// Trace simulates it again and logs what happens to a key, and to the cluster.
func Trace(cfg Config, seed uint64, key string) []string {
	w := newWorld(cfg, seed)
	w.tracing, w.traced = true, key
	return simulate(w, seed).Log
}

func newWorld(cfg Config, seed uint64) *world {
	w := &world{engine: newEngine(seed), cfg: cfg, left: make(map[string]bool)}
	w.healthy, w.moving = cfg.Faults.none(), cfg.Faults.move()
	w.now = int64(time.Hour) // incarnations are times
	for i := range cfg.Keys {
		w.keys = append(w.keys, fmt.Sprintf("k%02d", i))
	}
	w.zipf = rand.NewZipf(w.rnd, 1.1, 1, uint64(max(cfg.Keys-1, 1)))
	w.blocked = make([][]bool, cfg.Nodes)
	for i := range cfg.Nodes {
		w.blocked[i] = make([]bool, cfg.Nodes)
		m := &member{id: fmt.Sprintf("n%d", i), addr: fmt.Sprintf("10.0.0.%d:7946", i+1)}
		w.members = append(w.members, m)
		w.ids = append(w.ids, m.id)
		w.list = append(w.list, peers.Member{ID: m.id, Addr: m.addr})
	}
	w.number = 1
	w.origin = newOrigin(w)
	w.checker = newChecker(w)
	return w
}

func simulate(w *world, seed uint64) Result {
	for i := range w.members {
		w.start(i)
	}
	w.work()
	w.breakThings()
	end := w.now + int64(w.cfg.Duration)
	stop := func() bool { return false }
	w.run(end, stop)
	w.calm()
	w.run(end+int64(60*time.Second), stop)
	w.checker.finished()
	c := w.checker
	return Result{
		Seed: seed, Reads: c.reads, Stale: c.stale, NearHits: w.nearHits, Copied: w.copied, Inherited: w.inherited, Loads: w.origin.loads, Failed: c.failed, Acked: c.confirmed, Partial: c.partial,
		Backwards: c.backwards, Worst: time.Duration(c.worst), WorstPartial: time.Duration(c.worstPartial), Longest: time.Duration(c.longest),
		Violations: c.violations, Count: c.count, Log: w.log,
	}
}

// start starts a process. It is told a list at once.
func (w *world) start(i int) {
	n := newNode(w, i)
	w.members[i].node = n
	list, number := slices.Clone(w.list), w.number
	n.after(time.Duration(w.between(0, int64(50*time.Millisecond))), func() { n.setMembers(list, number) })
}

// alive returns the processes that run.
func (w *world) alive() []*node {
	var all []*node
	for _, m := range w.members {
		if m.node != nil && !m.node.dead {
			all = append(all, m.node)
		}
	}
	return all
}

func (w *world) index(id string) int { return slices.Index(w.ids, id) }

// isLeaving tells whether a member has said that it stops.
func (w *world) isLeaving(id string) bool { return w.left[id] }

// note logs an event of a key, or with no key of the cluster, when the run is traced.
func (w *world) note(key, format string, args ...any) {
	if !w.tracing || key != "" && key != w.traced {
		return
	}
	w.log = append(w.log, fmt.Sprintf("%9.4f ", time.Duration(w.now-int64(time.Hour)).Seconds())+fmt.Sprintf(format, args...))
}
