package transport

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// closeGrace is how long Close waits for peers to leave by themselves once nothing of theirs is unanswered.
const closeGrace = 250 * time.Millisecond

// Transport is one member's end of all its connections. Safe for concurrent use.
type Transport struct {
	cfg     Config
	base    time.Time
	buffers *bufferPool
	codec   codec
	server  *grpc.Server
	calls   sync.Pool // of *Call: per transport, since their channels belong to its bubble in tests
	orphans orphans
	parcels parcels
	claims  claims

	refusals    refusals
	contestedAt atomic.Int64 // when this process last gave way to another one that has its ID; 0: never
	named       atomic.Bool  // the list has this member's ID at its address

	peers     atomic.Pointer[map[string]*Peer] // never changed in place
	draining  atomic.Bool
	bulkIn    chan struct{}   // one for each bulk request that is being answered
	cohere    context.Context // ends the coherence streams of subscribers
	endCohere context.CancelFunc

	// mu guards the fields below and the replacement of peers. Lock order: mu, then Session.mu.
	mu       sync.Mutex
	sessions map[*Session]struct{}
	closing  bool
	rival    *Peer          // at the other address that the list has for this member's ID; nil: there is none
	wg       sync.WaitGroup // Add under mu while not closing

	hurry     chan struct{} // closed when Close must not wait for calls any more
	hurryOnce sync.Once
	stopped   chan struct{} // closed when everything has ended
	cutOff    atomic.Bool   // calls were cut off
}

// New returns a transport that neither listens nor dials yet. It must be closed.
func New(cfg Config) *Transport {
	t := &Transport{
		cfg:      cfg.withDefaults(),
		base:     time.Now().Add(-1), // so that now is never 0
		buffers:  new(bufferPool),
		orphans:  orphans{handler: cfg.Handler},
		bulkIn:   make(chan struct{}, maxBulkServed),
		sessions: make(map[*Session]struct{}),
		hurry:    make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	t.codec = newCodec(t.buffers)
	t.server = t.newServer()
	t.peers.Store(&map[string]*Peer{})
	t.cohere, t.endCohere = context.WithCancel(context.Background())
	return t
}

// spawn runs f on a goroutine that Close waits for. It returns false if the transport is being closed.
func (t *Transport) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		return false
	}
	t.wg.Go(f)
	return true
}

// now is the transport's own time in nanoseconds.
func (t *Transport) now() int64 { return int64(time.Since(t.base)) }

// Serve starts to answer the connections of l and returns. Close closes l. It may be called for several listeners.
func (t *Transport) Serve(l net.Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		_ = l.Close()
		return
	}
	t.wg.Go(func() {
		if err := t.server.Serve(newLimited(l, t.connLimits)); err != nil && !t.draining.Load() {
			t.cfg.Logger.Error("nearcache: listener failed", "addr", l.Addr(), "err", err)
		}
	})
}

// SetPeers makes ps the members to be connected to: it opens new connections, closes those that are not listed any more and keeps the
// rest. An ID with another address is another peer, and an ID's second entry is skipped. If this member's own ID is at another address it
// is asked whether another process is there that has it. It does not wait for the peers.
func (t *Transport) SetPeers(ps []PeerAddr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		return
	}
	old := *t.peers.Load()
	next := make(map[string]*Peer, len(ps))
	own := ""
	for _, a := range ps {
		p := old[a.ID]
		_, double := next[a.ID]
		switch {
		case a.ID == t.cfg.Self.ID:
			own = a.Addr
		case double:
		case p != nil && p.addr == a.Addr:
			next[a.ID] = p
		default:
			next[a.ID] = nil
		}
	}
	for id, p := range old {
		if next[id] == nil {
			t.dropLocked(p) // first: see Peer.Left
		}
	}
	for _, a := range ps {
		if p, ok := next[a.ID]; ok && p == nil {
			next[a.ID] = t.newPeer(a)
		}
	}
	t.peers.Store(&next)
	t.setOwnLocked(own)
}

// setOwnLocked notes the address that the list has for this member's ID, "" for none.
func (t *Transport) setOwnLocked(addr string) {
	t.named.Store(addr == t.cfg.Self.Addr)
	if t.rival != nil && t.rival.addr != addr {
		t.dropLocked(t.rival)
		t.rival = nil
	}
	if t.rival == nil && addr != "" && addr != t.cfg.Self.Addr {
		t.rival = t.newRival(addr)
	}
}

// dropLocked closes a peer in the background.
func (t *Transport) dropLocked(p *Peer) {
	p.cancel()
	t.wg.Go(p.close)
}

// Peer returns the peer with this ID, or nil.
func (t *Transport) Peer(id string) *Peer { return (*t.peers.Load())[id] }

// Peers returns all peers, sorted by ID.
func (t *Transport) Peers() []*Peer {
	m := *t.peers.Load()
	ps := make([]*Peer, 0, len(m))
	for _, p := range m {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b *Peer) int { return strings.Compare(a.id, b.id) })
	return ps
}

// Drain tells all members that this one stops: they start no new calls here and finish those that wait. New streams are refused.
func (t *Transport) Drain() {
	t.draining.Store(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.sessions {
		s.announce()
	}
}

// Close drains, waits for the calls of others that still run, then closes all connections and waits for the goroutines. When ctx ends it does not
// wait for the calls any more, and returns ctx's error if any were cut off. Own calls that still run fail with ErrDown. It may be called
// several times, also concurrently; each returns when everything has stopped. The handler must not call it.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	first := !t.closing
	t.closing = true
	t.mu.Unlock()
	if first {
		go t.shutDown()
	}
	select {
	case <-t.stopped:
	case <-ctx.Done():
		t.hurryOnce.Do(func() { close(t.hurry) })
		<-t.stopped
	}
	if t.cutOff.Load() {
		return ctx.Err()
	}
	return nil
}

// shutDown is what the first Close starts.
func (t *Transport) shutDown() {
	defer close(t.stopped)
	t.Drain()
	t.cutOff.Store(!t.awaitAnswers())
	var peers sync.WaitGroup
	for _, p := range t.Peers() {
		peers.Go(p.close)
	}
	if t.rival != nil { // it changes no more: closing is set
		peers.Go(t.rival.close)
	}
	t.endCohere()
	t.stopServer()
	peers.Wait()
	t.orphans.close()
	t.wg.Wait()
}

// awaitAnswers waits until the handler owes no answer. It returns false if it was hurried.
func (t *Transport) awaitAnswers() bool {
	for {
		if t.pending() == 0 {
			return true
		}
		select {
		case <-t.hurry:
			return false
		case <-time.After(minSweep):
		}
	}
}

// pending returns how many requests of others have no answer yet.
func (t *Transport) pending() (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.sessions {
		n += s.owed()
	}
	return n
}

// stopServer ends the streams of others: first they are asked to leave, then they are cut.
func (t *Transport) stopServer() {
	left := make(chan struct{})
	go func() {
		defer close(left)
		t.server.GracefulStop()
	}()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-left:
	case <-t.hurry:
		t.server.Stop()
	case <-grace.C:
		t.server.Stop()
	}
	<-left
}

// register adds a session to those that Drain and Close know. It fails when the transport drains.
func (t *Transport) register(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining.Load() {
		return false
	}
	t.sessions[s] = struct{}{}
	return true
}

func (t *Transport) unregister(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, s)
}
