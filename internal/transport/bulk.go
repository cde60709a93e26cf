package transport

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Limits of requests and answers that travel alone.
const (
	maxBulkStreams = 8                // under way to a peer
	maxBulkCalls   = 1 << 10          // with those that wait for their turn; beyond it: ErrBusy
	maxBulkServed  = 64               // at the receiver, of all members; beyond it: StatusBusy
	minBulkTime    = 10 * time.Second // a peer that is silent meanwhile is found out by pings
	maxBulkTime    = time.Minute

	maxParcels     = 1 << 10
	maxParcelBytes = 64 << 20
	parcelLife     = 10 * time.Second
)

// startBulk sends a call alone on the bulk connection: its value is large, or (with the token of a parcel) its answer
// is, or the peer drains.
func (p *Peer) startBulk(c *Call) {
	if p.bulks.Add(1) > maxBulkCalls {
		p.bulks.Add(-1)
		c.fail(p, ErrBusy)
		return
	}
	began := p.t.now()
	ok := p.spawn(func() {
		rep, incarnation, err := p.bulk(c, began)
		p.bulks.Add(-1)
		p.closeIdleBulk()
		if err != nil {
			c.fail(p, err)
			return
		}
		c.Reply = rep
		c.Reply.Incarnation = incarnation
		c.complete(p)
	})
	if !ok {
		p.bulks.Add(-1)
		c.fail(p, ErrDown)
		return
	}
	p.arm(began + int64(p.t.cfg.PeerTimeout)) // look after the peer meanwhile
}

// bulk waits for its turn and for the answer.
func (p *Peer) bulk(c *Call, began int64) (rep Reply, incarnation uint64, err error) {
	p.mu.Lock()
	ctx := p.bulkCtx
	p.mu.Unlock()
	limit := min(max(c.Request.Budget+waitSlack, minBulkTime), maxBulkTime)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case p.bulkTurns <- struct{}{}:
		defer func() { <-p.bulkTurns }()
	case <-ctx.Done():
		return Reply{}, 0, p.bulkError(ctx)
	}
	conn, err := p.bulkDial()
	if err != nil {
		return Reply{}, 0, ErrDown
	}
	in := &bulkRequest{Hello: p.t.hello(), View: p.t.cfg.View(), Req: c.Request}
	if c.parcel != (Token{}) {
		in.Req.Token = c.parcel
	}
	in.Req.Budget = max(in.Req.Budget-time.Duration(p.t.now()-began), 0)
	out, at := &bulkReply{}, &peer.Peer{}
	if err := conn.Invoke(ctx, bulkMethod, in, out, grpc.Peer(at)); err != nil {
		return Reply{}, 0, p.bulkError(ctx)
	}
	if err := p.t.checkServer(at, out.Hello, p.id, p.addr); err != nil {
		p.explain(err)
		return Reply{}, 0, ErrDown
	}
	return out.Rep, out.Hello.Incarnation, nil
}

// bulkError tells a peer that was too slow from one that is not there.
func (p *Peer) bulkError(ctx context.Context) error {
	if p.ctx.Err() == nil && ctx.Err() != nil {
		return ErrTimeout
	}
	return ErrDown
}

// closeIdleBulk closes the bulk connection if nothing more is asked for on it for a while. Whoever asks counts in bulks before it dials.
func (p *Peer) closeIdleBulk() {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn := p.bulkConn
	if conn == nil {
		return
	}
	if p.bulkIdle != nil {
		p.bulkIdle.Stop()
	}
	p.bulkIdle = time.AfterFunc(bulkIdle, func() {
		p.mu.Lock()
		idle := p.bulks.Load() == 0 && p.bulkConn == conn
		if idle {
			p.bulkConn = nil
		}
		p.mu.Unlock()
		if idle {
			_ = conn.Close() // nobody uses it
		}
	})
}

// bulkDial returns the bulk connection, and makes it when there is none.
func (p *Peer) bulkDial() (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrDown
	}
	if p.bulkConn == nil {
		conn, err := p.t.dialBy(p.t.cfg.Dial, p.addr, bulkWindow)
		if err != nil {
			return nil, err
		}
		p.bulkConn = conn
	}
	return p.bulkConn, nil
}

// resetBulk ends all bulk calls that are under way: the breaker has opened.
func (p *Peer) resetBulk() {
	p.mu.Lock()
	cancel := p.bulkCancel
	p.bulkCtx, p.bulkCancel = context.WithCancel(p.ctx)
	p.mu.Unlock()
	cancel()
}

// serveBulk is the server's end of a bulk request.
func serveBulk(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // gRPC's order
	t := srv.(*Transport)
	out := &bulkReply{Hello: t.hello(), View: t.cfg.View()}
	select {
	case t.bulkIn <- struct{}{}:
		defer func() { <-t.bulkIn }()
	default:
		out.Rep.Status = StatusBusy // before a large value is decoded
		return out, nil
	}
	in := &bulkRequest{}
	if err := dec(in); err != nil {
		return nil, err
	}
	s, err := t.newSession(ctx, in.Hello, in.View, true)
	if err != nil {
		return nil, err
	}
	defer t.claims.leave(s)
	if token := in.Req.Token; token.Incarnation == t.cfg.Self.Incarnation && (in.Req.Op == OpGet || in.Req.Op == OpPeek || in.Req.Op == OpStats) {
		if rep, ok := t.parcels.take(s.Member, token.Number, t.now()); ok {
			out.Rep = rep
			return out, nil
		}
		in.Req.Token = Token{} // it is asked for anew
	}
	if !t.register(s) && !in.Req.Op.endsLoad() { // those who wait here wait for it
		return nil, errDraining()
	}
	defer t.unregister(s)
	s.single = make(chan Reply, 1)
	if t.cfg.Handler.Serve(s, 0, &in.Req, &out.Rep) {
		return out, nil
	}
	s.pending.Add(1)
	select {
	case out.Rep = <-s.single:
		return out, nil
	case <-ctx.Done():
		t.cfg.Handler.Gone(s)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// fit makes an answer small enough for a lane: one with a large value is kept for the asker.
func (t *Transport) fit(s *Session, rep *Reply) {
	if len(rep.Value) > InlineValueBytes {
		t.park(s, rep)
	}
}

// park keeps an answer for the asker, who comes for it on the bulk connection.
func (t *Transport) park(s *Session, rep *Reply) {
	*rep = Reply{
		Status: StatusLarge, Size: uint64(len(rep.Value)),
		Token: Token{Incarnation: t.cfg.Self.Incarnation, Number: t.parcels.keep(s.Member, *rep, t.now())},
	}
	t.parcels.sweepIn(parcelLife, t.now)
}

// parcels keeps large answers until their askers come for them, so that they get what they were told of, and the handler is asked
// once. What does not fit is forgotten: then the asker's request is served anew.
type parcels struct {
	// mu guards the fields below. It is a leaf.
	mu    sync.Mutex
	last  uint64
	bytes int
	kept  map[uint64]parcel
	order []uint64 // numbers, the oldest first; some are gone
	timer bool     // a sweep is due
}

type parcel struct {
	member string
	rep    Reply
	at     int64
}

// keep returns the number under which take finds rep.
func (ps *parcels) keep(member string, rep Reply, now int64) uint64 {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.kept == nil {
		ps.kept = make(map[uint64]parcel)
	}
	ps.last++
	ps.kept[ps.last] = parcel{member, rep, now}
	ps.bytes += len(rep.Value)
	ps.order = append(ps.order, ps.last)
	ps.trimLocked(now)
	return ps.last
}

// trimLocked forgets the oldest parcels, as far as they are too many or too old.
func (ps *parcels) trimLocked(now int64) {
	for len(ps.order) > 0 {
		p, ok := ps.kept[ps.order[0]]
		if ok && ps.bytes <= maxParcelBytes && len(ps.order) <= maxParcels && now-p.at < int64(parcelLife) {
			break
		}
		ps.removeLocked(ps.order[0])
		ps.order = ps.order[1:]
	}
}

// sweepIn has what nobody comes for forgotten, after d and then until nothing is kept.
func (ps *parcels) sweepIn(d time.Duration, now func() int64) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.timer {
		return
	}
	ps.timer = true
	time.AfterFunc(d, func() {
		ps.mu.Lock()
		ps.trimLocked(now())
		left := len(ps.order) > 0
		ps.timer = false
		ps.mu.Unlock()
		if left {
			ps.sweepIn(d, now)
		}
	})
}

// take returns and forgets an answer, older by the time that it was kept.
func (ps *parcels) take(member string, number uint64, now int64) (Reply, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, ok := ps.kept[number]
	kept := time.Duration(now - p.at)
	if !ok || p.member != member || kept >= parcelLife {
		return Reply{}, false
	}
	ps.removeLocked(number)
	p.rep.Age += kept
	p.rep.Waited += kept
	p.rep.TTL = max(p.rep.TTL-kept, 0)
	p.rep.Near = min(p.rep.Near, p.rep.TTL)
	return p.rep, true
}

func (ps *parcels) removeLocked(number uint64) {
	if p, ok := ps.kept[number]; ok {
		ps.bytes -= len(p.rep.Value)
		delete(ps.kept, number)
	}
}
