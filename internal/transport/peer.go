package transport

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// spillAt is the number of unanswered calls on a lane from which the next lane is used too. Lower: smaller frames, more CPU per call; higher: one
// core's worth of decoding bounds the peer.
const spillAt = 64

// Peer is the client's side of the connection to one member. Safe for concurrent use.
type Peer struct {
	t     *Transport
	id    string
	addr  string
	lanes []atomic.Pointer[lane] // nil: not up

	ctx    context.Context // ends with the peer
	cancel context.CancelFunc

	frames      atomic.Uint64 // received on lanes
	requests    atomic.Uint64
	errors      atomic.Uint64
	lastContact atomic.Int64 // of a frame, by Transport.now; 0: never
	incarnation atomic.Uint64
	replicas    atomic.Uint32
	view        atomic.Uint64
	inView      atomic.Bool
	leaving     atomic.Bool // it said that it stops; a new lane forgets it
	breaker     breaker
	under       atomic.Pointer[net.Conn] // what conn runs over; nil: not connected yet, or given up
	reason      atomic.Pointer[string]
	contestedAt atomic.Int64 // when it last refused this process for another one with its ID; 0: never, or it has accepted it since

	// Deadlines: see watch.go.
	sweepAt     atomic.Int64 // written under timerMu, but for the reset to 0; 0: no sweep is due
	timerMu     sync.Mutex   // guards timer
	timer       *time.Timer
	sweptFrames uint64  // of the watching goroutine, as trial
	trial       Request // what probes of a peer that fell silent ask for; zero: only for a sign of life

	// Large values: see bulk.go.
	bulks     atomic.Int64 // calls queued or under way
	bulkTurns chan struct{}

	// mu guards the fields below. It is a leaf.
	mu         sync.Mutex
	closed     bool
	conn       *grpc.ClientConn // nil: the address cannot be dialled
	bulkConn   *grpc.ClientConn
	bulkIdle   *time.Timer
	bulkCtx    context.Context
	bulkCancel context.CancelFunc

	wg sync.WaitGroup // Add under mu while not closed
}

// PeerStatus is a peer's state for people to read.
type PeerStatus struct {
	ID          string
	Addr        string
	Ready       bool
	Connected   bool      // a lane is up
	Breaker     string    // closed, open, half-open
	Opened      uint64    // times that the breaker opened
	Draining    bool      // it said that it stops, and has not come back
	Reason      string    // why no lane is up, as far as it is known
	LastContact time.Time // of the last frame; zero: never
	Requests    uint64    // sent
	Errors      uint64    // calls that got no answer: timed out, lost with a lane, refused here
	Incarnation uint64
	View        uint64 // its ring's fingerprint
	InView      bool   // this member is in its ring
}

// newPeer starts to connect. A peer that cannot be dialled at all stays down.
func (t *Transport) newPeer(a PeerAddr) *Peer {
	p := t.dialPeer(a)
	if p.conn == nil {
		return p
	}
	p.spawn(p.watch)
	for i := range p.lanes {
		p.spawn(func() { p.keep(func() error { return p.runLane(i) }) })
	}
	p.spawn(func() { p.keep(p.runCohere) })
	if t.cfg.MaxAge > 0 {
		p.spawn(p.renew)
	}
	return p
}

// newRival starts to look for another process with this member's ID at addr.
func (t *Transport) newRival(addr string) *Peer {
	p := t.dialPeer(PeerAddr{ID: addr, Addr: addr})
	if p.conn != nil {
		p.spawn(func() { p.keep(p.greet) })
	}
	return p
}

// dialPeer returns a peer that does nothing yet, with a connection that is made when it is first used; none if addr cannot be dialled.
func (t *Transport) dialPeer(a PeerAddr) *Peer {
	p := &Peer{
		t: t, id: a.ID, addr: a.Addr,
		lanes:     make([]atomic.Pointer[lane], t.cfg.Lanes),
		timer:     time.NewTimer(time.Hour),
		bulkTurns: make(chan struct{}, maxBulkStreams),
	}
	p.timer.Stop()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.bulkCtx, p.bulkCancel = context.WithCancel(p.ctx)
	var err error
	if p.conn, err = t.dialBy(p.dial, a.Addr, streamWindow); err != nil {
		p.explain(err)
	}
	return p
}

// spawn runs f on a goroutine of the peer, which close waits for. It returns false if the peer is closed.
func (p *Peer) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Go(f)
	return true
}

// close ends the connections, fails all calls and waits for the goroutines.
func (p *Peer) close() {
	p.mu.Lock()
	p.closed = true
	conn, bulk := p.conn, p.bulkConn
	if p.bulkIdle != nil {
		p.bulkIdle.Stop()
	}
	p.mu.Unlock()
	p.cancel()
	if conn != nil {
		_ = conn.Close() // fails only if it is closed already
	}
	if bulk != nil {
		_ = bulk.Close()
	}
	p.wg.Wait()
}

// ID returns the member's ID.
func (p *Peer) ID() string { return p.id }

// Left tells whether the peer is none any more. The one that takes its place, by the same ID, begins to connect after that: so what is still
// heard of this one is told from news.
func (p *Peer) Left() bool { return p.ctx.Err() != nil }

// Addr returns the address that is dialled.
func (p *Peer) Addr() string { return p.addr }

// Ready tells whether a call has a chance: a lane is up, the peer is who it should be, neither draining nor passed over by the breaker. It costs a few loads.
func (p *Peer) Ready() bool {
	if !p.breaker.allows() {
		return false
	}
	l := p.pickAny()
	return l != nil && !l.draining.Load()
}

// Connected tells whether a lane is up, whether it takes calls or not.
func (p *Peer) Connected() bool { return p.pickAny() != nil }

// Leaving tells that the member has said that it stops, and has not come back.
func (p *Peer) Leaving() bool { return p.leaving.Load() }

// Incarnation returns the one of the newest lane; 0: there was none yet.
func (p *Peer) Incarnation() uint64 { return p.incarnation.Load() }

// Replicas returns how many members keep a key, its owner included, as the member last said; 0: it has said nothing yet.
func (p *Peer) Replicas() int { return int(p.replicas.Load()) }

// said notes what a member says about itself at the start of a stream.
func (p *Peer) said(h *hello) { p.replicas.Store(min(max(h.Replicas, 1), MaxReplicas)) }

// Status returns a snapshot.
func (p *Peer) Status() PeerStatus {
	l := p.pickAny()
	s := PeerStatus{
		ID: p.id, Addr: p.addr,
		Ready: p.Ready(), Connected: l != nil, Breaker: p.breaker.String(), Opened: p.breaker.opened.Load(), Draining: p.leaving.Load(),
		Requests: p.requests.Load(), Errors: p.errors.Load(),
		Incarnation: p.incarnation.Load(), View: p.view.Load(), InView: p.inView.Load(),
	}
	if r := p.reason.Load(); r != nil && l == nil {
		s.Reason = *r
	}
	if at := p.lastContact.Load(); at != 0 {
		s.LastContact = time.Now().Add(time.Duration(at - p.t.now()))
	}
	return s
}

// pickAny returns a lane that is up, if possible one that does not drain; nil: none is up.
func (p *Peer) pickAny() (drains *lane) {
	for i := range p.lanes {
		if l := p.lanes[i].Load(); l != nil {
			if !l.draining.Load() {
				return l
			}
			drains = l
		}
	}
	return drains
}

// pick returns the lane for n more calls: the first one as long as it is not busy, so that a quiet peer gets large frames, else the
// least busy one. nil: no lane takes calls.
func (p *Peer) pick(n int) (best *lane) {
	load := int32(0)
	for i := range p.lanes {
		l := p.lanes[i].Load()
		if l == nil || l.draining.Load() {
			continue
		}
		if have := l.load.Load(); best == nil || have < load {
			best, load = l, have
		}
		if load+int32(n) <= spillAt {
			break
		}
	}
	return best
}

// Start sends c's request. It never waits for the peer: a call that cannot be sent is completed at once with ErrDown, ErrBusy or ErrRequest. The
// caller may be made to encode and send the requests of others together with its own.
func (p *Peer) Start(c *Call) {
	l, err := p.admit(&c.Request, 1)
	switch {
	case err != nil:
	case l == nil || travelsAlone(&c.Request):
		p.startBulk(c)
	default:
		err = l.start(c)
	}
	if err != nil {
		c.fail(p, err)
	}
}

// StartBatch sends the requests of cs on one lane, in as few frames as possible, with one wake-up at their end: b.Done instead of
// the calls' own. Each call ends on its own and with its own error.
func (p *Peer) StartBatch(cs []*Call, b *Batch) {
	small := make([]*Call, 0, len(cs))
	var lane *lane
	for _, c := range cs {
		c.batch = b
		l, err := p.admit(&c.Request, len(cs))
		switch {
		case err != nil:
			c.fail(p, err)
		case l == nil || travelsAlone(&c.Request):
			p.startBulk(c)
		default:
			small = append(small, c)
			if lane == nil {
				lane = l
			}
		}
	}
	if len(small) == 0 {
		return
	}
	n, err := lane.startBatch(small)
	for _, c := range small[n:] {
		c.fail(p, err)
	}
}

// admit returns the lane for a request that is one of n, or why it cannot be sent. An Invalidate and a Release are sent whatever the breaker
// says: the peer applies them when it reads them, however late its answer is. The end of a load is sent to a peer that drains, alone (nil): its
// lanes take no calls any more, and those that it still has to answer wait for just that.
func (p *Peer) admit(q *Request, n int) (*lane, error) {
	if q.check() != nil {
		return nil, ErrRequest
	}
	l := p.pick(n)
	passed := !p.breaker.allows() && q.Op != OpInvalidate && q.Op != OpRelease
	if passed || l == nil && !(p.leaving.Load() && q.Op.endsLoad()) {
		return nil, ErrDown
	}
	return l, nil
}

// travelsAlone tells whether a request is too large for a lane.
func travelsAlone(q *Request) bool {
	return len(q.Value) > InlineValueBytes || len(q.Keys) > 0 && q.wireBytes() > 4*InlineValueBytes
}
