package sim

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/membership"
	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
	"github.com/nearcache/nearcache/singleflight"
)

const (
	keyspaceName = "product"
	tick         = 100 * time.Millisecond // the root's
	coarse       = int64(5 * time.Millisecond)
	storeBytes   = 1 << 20 // one shard each, so that nothing depends on a hash seed
)

type (
	flight  = singleflight.Flight[result, placeholder]
	flights = singleflight.Group[result, placeholder]
)

// result is what a flight brings back: a value as the near cache keeps it.
type result struct {
	value string
	tier  string // for the event log
	stale bool   // marked so
	age   int64  // of a near copy that is
}

// node is one life of a member: the root's Node with its one keyspace.
type node struct {
	w     *world
	index int
	id    string
	// incarnation is higher at every start.
	incarnation uint64
	replicas    int // members that keep a key, its owner included
	born        int64
	rate        float64 // of its clock
	dead        bool
	draining    bool // it has said that it stops
	paused      bool
	deferred    []func() // what would have happened while it was paused

	tokens   atomic.Uint64
	log      *invalidation.Log
	interest *invalidation.Interest
	shard    *shard.Shard
	near     *near.Cache[string]
	flights  *flights
	renewing *flights // those whose callers have a stale copy (Cache.refreshes)
	own      *invalidation.OwnView
	ownTags  *invalidation.OwnTags
	ownSets  ownVersions
	uncopied map[string]bool // what replicas lack
	heirs    *ring.Ring      // by which others own what this node owns, as it leaves; nil: it does not
	passes   int64           // when it may pass on again

	differSince int64 // 0: they do not
	apart       bool
	holds       *invalidation.Holds
	turns       turns
	owed        *invalidation.Owed
	owedTags    *invalidation.Owed
	hearing     hearing
	muted       bool // the log takes no event: see Rules.Tokens

	table    *membership.Table
	listed   int // number of the last list that discovery reported
	members  *members
	peers    map[string]*peer
	follows  map[string]*followed
	holders  holders
	streams  []*stream // of those who follow this node
	standing standing
	gets     []*reading
}

// newNode starts a member (Start).
func newNode(w *world, index int) *node {
	m := w.members[index]
	n := &node{
		w: w, index: index, id: m.id, incarnation: uint64(w.now), born: w.now,
		rate: 1 + (2*w.rnd.Float64()-1)*w.cfg.Faults.ClockRate,
		log:  invalidation.NewLog(invalidation.LogConfig{MaxEvents: 64}), interest: invalidation.NewInterest(),
		near: near.New[string](store.Config{MaxBytes: storeBytes, Shards: 1}), flights: singleflight.New[result, placeholder](), renewing: singleflight.New[result, placeholder](),
		peers: make(map[string]*peer), follows: make(map[string]*followed),
		own: invalidation.NewOwnView(w.cfg.LoadTimeout + w.cfg.LoadQueueTime), ownSets: make(ownVersions), uncopied: make(map[string]bool), owed: newOwed(), owedTags: newOwed(),
		holds: invalidation.NewHolds(maxOwed), turns: make(turns),
		ownTags: invalidation.NewOwnTags(w.cfg.LoadTimeout + w.cfg.LoadQueueTime),
	}
	n.replicas = max(w.cfg.Replicas, 1)
	if w.chance(w.cfg.Mixed) {
		n.replicas = 1 + w.rnd.IntN(w.cfg.Replicas)
	}
	lag := w.cfg.Lag
	if !w.cfg.Rules.Lag {
		lag = 0
	}
	n.shard = shard.New(shard.Config{
		Lag:         int64(lag),
		Patience:    int64(w.cfg.LoadQueueTime),
		Retry:       int64(time.Second), // retryStale
		Refreshes:   10,
		Held:        n.isHeld,
		Incarnation: n.incarnation, Tokens: &n.tokens, MaxBytes: storeBytes, Dropped: n.dropped, Seq: n.log.Seq, Limits: &n.standing.limits, Cap: n.cap,
	})
	pace := membership.Pace{Hold: 10 * time.Second, Settle: 200 * time.Millisecond, Space: time.Second, Window: n.window()}
	table, err := membership.New(peers.Member{ID: m.id, Addr: m.addr}, pace)
	if err != nil {
		panic("sim: " + err.Error()) // the members are made up
	}
	n.table = table
	n.standing.doubt = n.newDoubt()
	n.hearing.contacts = invalidation.NewContacts(w.cfg.Bound, n.exact())
	n.become(table.View(), false)
	n.tickDoubt(n.exact())
	n.after(tick, n.tick)
	return n
}

// exact is the node's clock (clock.Exact): it counts from the start, at its own rate.
func (n *node) exact() int64 { return 1 + int64(float64(n.w.now-n.born)*n.rate) }

// clock is its coarse reading (clock.Now).
func (n *node) clock() int64 { return max(n.exact()/coarse*coarse, 1) }

// event lets something happen at the process: now, when it goes on again, or never.
func (n *node) event(f func()) {
	switch {
	case n.dead:
	case n.paused:
		n.deferred = append(n.deferred, f)
	default:
		f()
	}
}

// after runs f when the node's clock has gone on by d.
func (n *node) after(d time.Duration, f func()) {
	n.w.after(int64(math.Ceil(float64(d)/n.rate)), func() { n.event(f) })
}

// soon runs f on a goroutine of its own.
func (n *node) soon(f func()) { n.after(time.Microsecond, f) }

// tick looks after what ends by itself (Node.tick).
func (n *node) tick() {
	now := n.exact()
	if n.heirs == nil && n.table.Tick(now) {
		n.become(n.table.View(), true)
	}
	n.tickApart(now)
	n.tickRetired(now)
	n.tickDoubt(now)
	n.tickHolders(now)
	n.carryOut(n.shard.Tick(now))
	n.shard.Sweep(now)
	n.near.Sweep(now)
	n.own.Tick(now)
	n.ownTags.Tick(now)
	n.holds.Tick(now)
	n.repay(now)
	if n.w.cfg.HandOver {
		n.passOn(now)
	}
	n.passCopies(now)
	n.after(tick, n.tick)
}

// dropped numbers the change of a key for those who may hold a copy of it (keyspace.dropped).
func (n *node) dropped(key string) {
	if n.muted || !n.interest.Granted(ring.Hash(keyspaceName, key)) {
		return
	}
	n.announce(invalidation.Event{Keyspace: keyspaceName, Key: key})
}

// announce numbers an event in the log.
func (n *node) announce(e invalidation.Event) { n.w.checker.announced(n, n.log.Append(e), &e) }

// wake lets the writers of the streams take what is new (Log.Wake).
func (n *node) wake() {
	for _, s := range n.streams {
		s.write()
	}
}

// drain says that the process stops, and a moment later it does (Node.close).
func (n *node) drain() {
	n.leave(n.stop)
}

func (n *node) stop() {
	n.draining = true
	n.log.Reset()
	n.wake()
	n.after(time.Duration(n.w.between(int64(10*time.Millisecond), int64(300*time.Millisecond))), func() { n.crash(false) })
}

// crash ends the process. Its host may go with it: then nobody is told.
func (n *node) crash(silent bool) {
	n.dead = true
	for _, p := range n.peers {
		p.closed = true
	}
	for _, o := range n.w.alive() {
		if p := o.peers[n.id]; p != nil && p.conn != nil && p.conn.to == n {
			n.w.endConn(p.conn, silent)
		}
	}
	for _, s := range slices.Clone(n.streams) {
		n.w.endConn(s.c, silent)
	}
	for _, id := range n.w.ids {
		if p := n.peers[id]; p != nil && p.conn != nil {
			n.w.endConn(p.conn, silent)
		}
	}
}

// endConn breaks a connection of a process that is gone: at once, or after keep-alives found out.
func (w *world) endConn(c *conn, silent bool) {
	if !silent {
		c.breakDown()
		return
	}
	w.after(w.between(int64(time.Second), int64(5*time.Second)), c.breakDown)
}
