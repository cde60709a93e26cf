package transport

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Between attempts to open a stream. The connection itself has gRPC's backoff, with the same bounds: a member that is back is
// used again within a second. Why not ClientConn.ResetConnectBackoff when it is heard of: in grpc-go v1.85.0 it reads a map that
// the connection's own goroutine writes.
const (
	minBackoff       = 50 * time.Millisecond
	maxBackoff       = 500 * time.Millisecond
	handshakeTimeout = time.Second
)

// errRetired ends a lane that moves to a new connection: see Peer.redial.
var errRetired = errors.New("nearcache: lane moves to a new connection")

// keep runs a stream again and again until the peer is closed.
func (p *Peer) keep(run func() error) {
	wait := minBackoff
	for {
		began := p.t.now()
		err := run()
		if p.ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRetired) {
			continue
		}
		p.explain(err)
		if p.t.now()-began > int64(maxBackoff) {
			wait = minBackoff
		}
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, maxBackoff)
	}
}

// answered passes an answer of a lane to its call, or goes for the large value that it announces.
func (p *Peer) answered(c *Call, rep *Reply, incarnation uint64) {
	if rep.Status != StatusLarge {
		c.Reply = *rep
		c.Reply.Incarnation = incarnation
		c.complete(p)
		return
	}
	if c.probe != nil || c.state.Load() == callAbandoned {
		c.drop()
		return
	}
	c.parcel = rep.Token
	p.startBulk(c)
}

// explain keeps why a stream ended, and logs what is new.
func (p *Peer) explain(err error) {
	reason := "stream ended"
	if s, ok := status.FromError(err); ok && err != nil {
		reason = s.Message()
		if s.Code() == codes.AlreadyExists {
			p.contestedAt.Store(p.t.now())
		}
	} else if err != nil {
		reason = err.Error()
	}
	if old := p.reason.Swap(&reason); old == nil || *old != reason {
		p.t.cfg.Logger.Info("nearcache: stream to peer ended", "peer", p.id, "addr", p.addr, "reason", reason)
	}
}

// runLane opens lane i and receives on it until it ends. The error says why.
func (p *Peer) runLane(i int) error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	st, err := p.open(ctx, laneDesc(), laneMethod)
	if err != nil {
		return err
	}
	f := &replyFrame{}
	if err := p.shake(st, cancel, &requestFrame{Hello: p.t.hello()}, f, func() *hello { return f.Hello }); err != nil {
		return err
	}
	l := &lane{p: p, st: st, cancel: cancel, incarnation: f.Hello.Incarnation}
	p.incarnation.Store(f.Hello.Incarnation)
	p.said(f.Hello)
	p.leaving.Store(false)
	p.heard(f)
	p.lanes[i].Store(l)
	p.reason.Store(nil)
	if !p.breaker.allows() {
		p.arm(p.t.now()) // probe it
	}
	p.t.cfg.Handler.Opened(p)
	defer p.loseLane(i, l)
	if err := l.receive(f); err != nil { // it may say that the peer drains
		return err
	}
	for {
		if err := st.RecvMsg(f); err != nil {
			if l.draining.Load() && !p.leaving.Load() {
				return errRetired
			}
			return err
		}
		p.heard(f)
		if err := l.receive(f); err != nil {
			return err
		}
	}
}

// open opens a stream as soon as the peer can be reached; if that is not at once, it keeps the reason.
func (p *Peer) open(ctx context.Context, desc *grpc.StreamDesc, method string) (grpc.ClientStream, error) {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	st, err := conn.NewStream(ctx, desc, method)
	if status.Code(err) != codes.Unavailable {
		return st, err
	}
	p.explain(err)
	return conn.NewStream(ctx, desc, method, grpc.WaitForReady(true))
}

// heard notes that the peer lives.
func (p *Peer) heard(f *replyFrame) {
	p.frames.Add(1)
	p.lastContact.Store(p.t.now())
	p.view.Store(f.View)
	p.inView.Store(f.InView)
	if f.Draining {
		p.leaving.Store(true)
	}
}

// loseLane takes a lane out of use and fails its calls.
func (p *Peer) loseLane(i int, l *lane) {
	p.lanes[i].Store(nil)
	l.close(ErrDown)
	if p.pickAny() == nil {
		p.resetBulk()
	}
}

// shake sends the hello of a stream and waits for the peer's.
func (p *Peer) shake(st grpc.ClientStream, cancel context.CancelFunc, send, recv any, got func() *hello) error {
	late := time.AfterFunc(handshakeTimeout, cancel)
	defer late.Stop()
	if err := st.SendMsg(send); err != nil {
		if err2 := st.RecvMsg(recv); err2 != nil { // tells why
			return err2
		}
		return err
	}
	if err := st.RecvMsg(recv); err != nil {
		return err
	}
	at, _ := peer.FromContext(st.Context())
	if err := p.t.checkServer(at, got(), p.id, p.addr); err != nil {
		return err
	}
	p.contestedAt.Store(0)
	return nil
}
