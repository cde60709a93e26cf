package nearcache

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/clock"
	"github.com/nearcache/nearcache/internal/foreign"
	"github.com/nearcache/nearcache/internal/membership"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

// Node is this process' member of a cluster: it owns a part of every keyspace, serves it to the other members and asks them for
// theirs. Several nodes can live in one process. It is safe for concurrent use.
type Node struct {
	cfg         NodeConfig
	id          string // as configured: what its peers hear; Node.ID is for people
	addr        string
	incarnation uint64
	bound       time.Duration // NodeConfig.Bound, or the default where that is off
	started     time.Time
	secret      [32]byte // keys the hashes that stand for keys nobody may see

	clock     *clock.Clock
	tokens    atomic.Uint64 // numbers leases, over all keyspaces
	log       *invalidation.Log
	interest  *invalidation.Interest
	transport *transport.Transport // nil: a cluster of one without a socket

	members   atomic.Pointer[members]
	keyspaces atomic.Pointer[map[string]*keyspace]
	feeds     atomic.Pointer[[]*Feed]
	closed    atomic.Bool
	stops     atomic.Bool   // peers are told that it closes
	joined    chan struct{} // closed when the members are known
	answered  atomic.Int64  // when discovery last did
	oddList   news          // the last list that made no sense; guarded by mu
	differing atomic.Uint64 // answers from peers with another view
	asking    atomic.Int64  // peeks under way at those who owned keys before
	telling   atomic.Int64  // statistics that are being made for other members
	passes    int64         // when passOn looks again; of the goroutine tick only, as the next two
	doubted   bool          // the last event said so
	sampleAt  int64         // when tickHistory does something again
	events    events
	heirs     atomic.Pointer[ring.Ring] // by which others own what this node owns, as it leaves; nil: it does not
	uncopied  uncopied

	// ctx ends when Close stops waiting for calls under way. It is the node's own, not a request's.
	ctx    context.Context //nolint:containedctx // a lifetime, not a request
	cancel context.CancelFunc
	done   chan struct{} // closed when Close has finished

	followMu sync.Mutex // guards follows
	follows  map[string]*followed

	holders  holders
	hearing  hearing
	standing standing
	waits    waits

	// mu guards table, contested, mixed, differSince and changes of members, keyspaces and feeds. Lock order: mu, then followMu or a shard lock.
	mu          sync.Mutex
	table       *membership.Table
	contested   bool  // what transport.Contested last said
	mixed       bool  // nobody keeps copies
	differSince int64 // when members began to differ in their rings; 0: they do not

	// runMu guards stopped and the adding to wg. It is a leaf: every load takes it, and a change of the ring must not hold it.
	runMu   sync.Mutex
	stopped bool // no goroutine may be started any more
	wg      sync.WaitGroup
}

// tick is how often leases and waiters are looked after.
const tick = 100 * time.Millisecond

// drainTimeout is how long Close waits for calls under way when its context allows longer.
const drainTimeout = 2 * time.Second

// Start makes a node, serves peers on its listener and begins to watch discovery. It waits at most PeerTimeout for
// discovery's first answer, and not for peers: see Ready. ctx bounds Start only. Whatever it returns, cfg.Listener belongs to it.
//
// Errors: *ConfigError; the listener's error; the context's, if it had ended before.
func Start(ctx context.Context, cfg NodeConfig) (*Node, error) { return startAt(ctx, cfg, time.Now()) }

// startAt is Start with what the clock shows.
func startAt(ctx context.Context, cfg NodeConfig, now time.Time) (*Node, error) {
	l := cfg.Listener
	n, err := newNode(ctx, cfg, now, &l)
	if err != nil {
		if l != nil {
			_ = l.Close() // the first error is the one to tell
		}
		return nil, err
	}
	n.start(l)
	if cfg.Discovery != nil {
		wait := time.NewTimer(n.cfg.PeerTimeout)
		defer wait.Stop()
		select {
		case <-n.joined:
		case <-wait.C:
		case <-ctx.Done():
		}
	}
	return n, nil
}

// newNode makes a node that does nothing yet. It puts the listener into l where cfg has none.
func newNode(ctx context.Context, cfg NodeConfig, now time.Time, l *net.Listener) (*Node, error) {
	cfg, err := cfg.effective()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if cfg.Listen != "" {
		var lc net.ListenConfig
		if *l, err = lc.Listen(ctx, "tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("nearcache: listen on %s: %w", cfg.Listen, err)
		}
	}
	n := &Node{cfg: cfg, started: now, bound: cfg.Bound, joined: make(chan struct{}), done: make(chan struct{})}
	if cfg.Bound < 0 {
		n.bound = defaultBound
	}
	return n, n.identify(*l)
}

// identify settles who this node is.
func (n *Node) identify(l net.Listener) error {
	_, _ = rand.Read(n.secret[:]) // never fails
	// An incarnation is new at every start of a member. Nothing depends on its being higher, as it is not where the clock was set back.
	n.incarnation = uint64(n.started.UnixNano())
	if l != nil {
		addr := n.cfg.Advertise
		if addr == "" {
			addr = l.Addr().String()
		}
		var err error
		if n.addr, err = peers.CanonicalAddr(addr); err != nil {
			return &ConfigError{Problems: []string{fmt.Sprintf("Advertise: others cannot dial %q: %v", addr, err)}}
		}
		if err := n.checkPlaintext(l.Addr()); err != nil {
			return err
		}
	}
	n.id = n.cfg.ID
	if n.id == "" {
		n.id = n.addr
	}
	if n.id == "" {
		n.id = "local"
	}
	var err error
	n.table, err = membership.New(peers.Member{ID: n.id, Addr: n.addr, Zone: n.cfg.Zone, Weight: n.cfg.Weight}, n.pace())
	if err != nil {
		return &ConfigError{Problems: []string{err.Error()}}
	}
	return nil
}

// pace is how hasty this node follows its discovery (docs/design.md, section 7). What the program itself sets is believed at once.
func (n *Node) pace() membership.Pace {
	pace := membership.Pace{Hold: 10 * time.Second, Settle: 200 * time.Millisecond, Grace: 3 * time.Second, Space: time.Second}
	if _, ok := n.cfg.Discovery.(*peers.List); ok {
		pace = membership.Pace{}
	}
	pace.Window = time.Duration(n.window())
	return pace
}

// checkPlaintext refuses to serve strangers on the network in the clear, unless that was asked for.
func (n *Node) checkPlaintext(a net.Addr) error {
	if n.cfg.TLS != nil || n.cfg.Plaintext {
		return nil
	}
	if a, ok := a.(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		return &ConfigError{Problems: []string{fmt.Sprintf(
			"peers on %v would be unencrypted, and an open peer port reads all that the loaders can: set TLS, or Plaintext to allow it", a)}}
	}
	return nil
}

// start builds the parts and the goroutines. It cannot fail.
func (n *Node) start(l net.Listener) {
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.clock = clock.New()
	n.log = invalidation.NewLog(invalidation.LogConfig{})
	n.interest = invalidation.NewInterest()
	n.keyspaces.Store(&map[string]*keyspace{})
	n.feeds.Store(&[]*Feed{})
	n.follows = make(map[string]*followed)
	n.standing.doubt, n.standing.bound = n.newDoubt(), int64(n.bound)
	n.hearing.contacts = invalidation.NewContacts(n.bound, n.clock.Exact())
	n.hearing.found = make(map[string]finding)
	if l != nil {
		n.transport = transport.New(transport.Config{
			Self:         transport.Self{ID: n.id, Addr: n.addr, Cluster: n.cfg.Cluster, Incarnation: n.incarnation, Replicas: n.cfg.Replicas},
			View:         func() uint64 { return n.members.Load().Ring.Fingerprint() },
			InView:       n.inView,
			Handler:      n,
			Dial:         n.cfg.Dial,
			TLS:          n.cfg.TLS,
			VerifyMember: n.cfg.VerifyMember,
			PeerTimeout:  n.cfg.PeerTimeout,
			RenewEvery:   n.bound / 4,
			Logger:       n.cfg.Logger,
		})
	}
	n.mu.Lock()
	n.becomeLocked(n.table.View(), n.cfg.Discovery == nil)
	n.mu.Unlock()
	n.tickDoubt(n.clock.Exact())
	if l != nil {
		n.transport.Serve(l)
	}
	n.run("tick", n.tick)
	if n.cfg.Discovery != nil {
		n.run("discovery", n.discover)
	}
}

// ID returns the node's ID on the list that Members returns: the configured one, but its address where discovery knows the node by
// that.
func (n *Node) ID() string {
	m := n.members.Load()
	return m.Members[m.Self].ID
}

// Addr returns the address that peers dial; empty for a cluster of one without a socket.
func (n *Node) Addr() string { return n.addr }

// Members returns the members as this node sees them, itself included, ordered by ID.
func (n *Node) Members() []peers.Member {
	return append([]peers.Member(nil), n.members.Load().Members...)
}

// Owner returns the member that owns the key by this node's ring. It is the zero Member where nobody owns anything.
func (n *Node) Owner(keyspace, key string) peers.Member {
	r := n.route(keyspace, key)
	if r.owner < 0 {
		return peers.Member{}
	}
	return r.m.Members[r.owner]
}

// Ready returns nil when the members are known and the streams to all of them are up, or have had a Bound of time to come up: a
// member that is away does not keep the others from serving. Errors: the context's; ErrClosed.
func (n *Node) Ready(ctx context.Context) error {
	select {
	case <-n.joined:
	case <-n.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	wait, cancel := context.WithTimeout(ctx, n.bound)
	defer cancel()
	waitIdle(wait, func() int { return n.members.Load().missing(n.clock.Exact()) })
	if n.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// hasJoined tells whether the members are known.
func (n *Node) hasJoined() bool {
	select {
	case <-n.joined:
		return true
	default:
		return false
	}
}

// ReadyWarm returns nil when the node is ready and keeps what it loads for its lifetime: a member that starts is in doubt for five Bounds,
// so that what it owns lives a Bound at most (Stats.Doubt), and so does what it has gained by a change of the members for up to five Bounds,
// until those that owned it before are known to go by the change. A cluster of one without discovery is never in doubt.
//
// Errors: the context's; ErrClosed.
func (n *Node) ReadyWarm(ctx context.Context) error {
	if err := n.Ready(ctx); err != nil {
		return err
	}
	waitIdle(ctx, func() int {
		if n.closed.Load() || n.warm() {
			return 0
		}
		return 1
	})
	if n.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// run starts a goroutine that Close waits for. False: the node is stopped, and f will not run.
func (n *Node) run(name string, f func()) bool {
	n.runMu.Lock()
	defer n.runMu.Unlock()
	if n.stopped {
		return false
	}
	n.wg.Go(func() {
		labelled(n.ctx, name, f)
	})
	return true
}

// tick looks after what ends by itself: leases and waiters ten times a second, expired entries as often as it pays.
func (n *Node) tick() {
	pause, next := tick, n.clock.Exact()+int64(tick)
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-n.ctx.Done():
			return
		}
		now := n.clock.Exact()
		all := *n.keyspaces.Load()
		if now >= next {
			next = now + int64(tick)
			n.tickMembers(now)
			n.tickDoubt(now)
			n.tickHolders(now)
			n.passOn(now)
			n.tickCopies(now)
			for _, ks := range all {
				ks.tick(now)
			}
			for _, f := range *n.feeds.Load() {
				f.tick(now)
			}
			n.noteHealth()
			n.tickHistory(now)
		}
		pause = sweep(all, now, pause)
		t.Reset(pause)
	}
}

// discover follows the discovery until the node closes. One that gives up is started again.
func (n *Node) discover() {
	const pause = time.Second
	var ends news
	var answered int64
	for {
		err := n.watch()
		if n.ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("nearcache: Watch returned before its context ended")
		}
		if at := n.answered.Load(); at != answered {
			ends, answered = news{}, at // it had worked meanwhile
		}
		if ends.differs(err) {
			n.cfg.Logger.Warn("discovery ended, starting it again every second", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-n.ctx.Done():
			return
		}
	}
}

// watch runs the discovery until it gives up, in whatever way. One that ignores its context is waited for by Close, but not for ever.
func (n *Node) watch() error {
	_, err := foreign.Call(context.WithoutCancel(n.ctx), "Discovery.Watch", func() (struct{}, error) {
		return struct{}{}, n.cfg.Discovery.Watch(n.ctx, n.setMembers)
	}, nil)
	return err
}

// keyspace returns the open keyspace of that name, or nil. name may alias a buffer.
func (n *Node) keyspace(name string) *keyspace { return (*n.keyspaces.Load())[name] }

// open adds a keyspace.
func (n *Node) open(name string, p policy, local local) error {
	if name == "" || len(name) > transport.MaxKeyspaceBytes {
		return &ConfigError{Problems: []string{fmt.Sprintf("a keyspace name must have 1 to %d bytes", transport.MaxKeyspaceBytes)}}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed.Load() {
		return ErrClosed
	}
	old := *n.keyspaces.Load()
	if old[name] != nil {
		return &ConfigError{Problems: []string{fmt.Sprintf("keyspace %q is open on this node already", name)}}
	}
	if err := n.checkBudget(old, p); err != nil {
		return err
	}
	ks := newKeyspace(n, name, p, local)
	local.attach(ks) // before anybody can find it: the tick and peers come at once
	all := maps.Clone(old)
	all[name] = ks
	n.budget(all)
	n.keyspaces.Store(&all)
	return nil
}

// shut removes a keyspace; it returns false if it was not open any more.
func (n *Node) shut(ks *keyspace) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := *n.keyspaces.Load()
	if old[ks.name] != ks {
		return false
	}
	all := maps.Clone(old)
	delete(all, ks.name)
	n.budget(all)
	n.keyspaces.Store(&all)
	return true
}

// checkBudget refuses a keyspace whose part does not fit beside the others', or leaves nothing for those that share the rest.
func (n *Node) checkBudget(open map[string]*keyspace, p policy) error {
	own, sharing := p.maxBytes, p.maxBytes == 0
	near := max(p.nearBytes, 0)
	for _, ks := range open {
		own += ks.policy.maxBytes
		sharing = sharing || ks.policy.maxBytes == 0
		near += max(ks.policy.nearBytes, 0)
	}
	var pr problems
	pr.require(own <= n.cfg.MaxBytes, "MaxBytes of the keyspaces add up to %d, the node has %d", own, n.cfg.MaxBytes)
	pr.require(own != n.cfg.MaxBytes || !sharing, "MaxBytes of the keyspaces leave nothing for those without one")
	pr.require(n.cfg.NearBytes < 0 || near <= n.cfg.NearBytes, "NearBytes of the keyspaces add up to %d, the node has %d", near, n.cfg.NearBytes)
	return pr.err()
}

// budget divides the node's memory: keyspaces that ask for a part of their own get it, the rest is shared equally, so that one
// keyspace's storm cannot evict another's entries.
func (n *Node) budget(all map[string]*keyspace) {
	rest, nearRest := n.cfg.MaxBytes, max(n.cfg.NearBytes, 0)
	var sharing, nearSharing int64
	for _, ks := range all {
		if ks.policy.maxBytes > 0 {
			rest -= ks.policy.maxBytes
		} else {
			sharing++
		}
		switch {
		case ks.policy.nearTTL < 0:
		case ks.policy.nearBytes > 0:
			nearRest -= ks.policy.nearBytes
		default:
			nearSharing++
		}
	}
	for _, ks := range all {
		own, nearOwn := ks.policy.maxBytes, ks.policy.nearBytes
		if own == 0 {
			own = max(rest, 0) / sharing
		}
		switch {
		case ks.policy.nearTTL < 0:
			nearOwn = 0
		case nearOwn == 0:
			nearOwn = max(nearRest, 0) / nearSharing
		}
		ks.shard.Resize(own)
		ks.local.resize(nearOwn)
	}
}

// Close leaves the cluster and stops the node: calls that come later get ErrClosed; those under way have until ctx ends, at most
// 2 s, and then get ErrClosed; peers are told, connections and streams end, and every goroutine of the node stops, save
// those in functions of the application that ignore their context or do not return: it waits 8 s for them at most. It may be called many times; each call waits for the end.
//
// Errors: the context's, when it ended before the node had stopped; the rest of the work goes on then.
func (n *Node) Close(ctx context.Context) error {
	if n.becomeClosed() {
		go n.close(ctx)
	}
	select {
	case <-n.done:
		return nil
	case <-ctx.Done():
		select {
		case <-n.done:
			return nil
		default:
			return ctx.Err()
		}
	}
}

// becomeClosed returns true to the first who closes the node. The members change no more from then on: the transport, which is closed
// next, connects to nobody new.
func (n *Node) becomeClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed.CompareAndSwap(false, true)
}

// close stops the parts in the order in which they need each other.
func (n *Node) close(ctx context.Context) {
	defer close(n.done)
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	// 1. Others get what it owns, which it goes on to serve to them. Then peers look elsewhere, callers on this node finish. What it granted is
	// void: it hears of no invalidation from now on (R9).
	if n.transport != nil {
		n.leave(ctx)
		n.stops.Store(true)
		n.log.Reset()
		n.log.Wake()
		n.transport.Drain()
	}
	waitIdle(ctx, n.underWay)
	// 2. What is left is cut: flights end with ErrClosed, loaders see their context end.
	n.cancel()
	// 3. The wire.
	if n.transport != nil {
		await(func() { _ = n.transport.Close(ctx) }) // its error is that ctx has ended
	}
	// 4. The node's own goroutines.
	n.runMu.Lock()
	n.stopped = true
	n.runMu.Unlock()
	await(n.wg.Wait)
	// 5. The memory.
	for _, ks := range *n.keyspaces.Load() {
		ks.close()
	}
	n.clock.Close()
}

// await waits for the end of f, but not for ever: it may be in a function of the application that does not return.
func await(f func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	patience := time.NewTimer(2 * drainTimeout)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
	}
}

// underWay returns the number of flights of all keyspaces.
func (n *Node) underWay() int {
	busy := 0
	for _, ks := range *n.keyspaces.Load() {
		busy += ks.local.underWay()
	}
	return busy
}

// waitIdle waits until busy returns 0 or ctx ends.
func waitIdle(ctx context.Context, busy func() int) {
	const step = 2 * time.Millisecond
	t := time.NewTicker(step)
	defer t.Stop()
	for busy() > 0 {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// labelled runs f under a name that shows in profiles and goroutine dumps.
func labelled(ctx context.Context, name string, f func()) {
	pprof.Do(ctx, pprof.Labels("nearcache", name), func(context.Context) { f() })
}
