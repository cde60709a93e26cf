package transport

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	serviceName  = "nearcache.v1.PeerService"
	laneMethod   = "/" + serviceName + "/Lane"
	cohereMethod = "/" + serviceName + "/Cohere"
	bulkMethod   = "/" + serviceName + "/Bulk"
)

func laneDesc() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: "Lane", Handler: serveLane, ServerStreams: true, ClientStreams: true}
}

func cohereDesc() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: "Cohere", Handler: serveCohere, ServerStreams: true, ClientStreams: true}
}

func serviceDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Bulk", Handler: serveBulk}},
		Streams:     []grpc.StreamDesc{*laneDesc(), *cohereDesc()},
		Metadata:    "nearcache/v1/peer.proto",
	}
}

// errDraining refuses streams of a member that stops. The client tries again later, in case it is another process by then.
func errDraining() error { return status.Error(codes.Unavailable, "nearcache: peer is draining") }

// newSession returns the session of whoever sent h, or the status to refuse it with. It ends with claims.leave.
func (t *Transport) newSession(ctx context.Context, h *hello, view uint64, bulk bool) (*Session, error) {
	at, _ := peer.FromContext(ctx)
	if err := t.checkClient(at, h); err != nil {
		return nil, t.refuse(h, err)
	}
	s := &Session{Member: h.Member, Addr: h.Addr, Incarnation: h.Incarnation, Bulk: bulk, t: t}
	s.view.Store(view)
	now := t.now()
	s.heard.Store(now)
	if err := t.claims.enter(s, t.listed, now, t.silence()); err != nil {
		return nil, t.refuse(h, err)
	}
	return s, nil
}

// receiveHello receives the first message of a stream, which must come soon: until then nobody knows whose stream it is. On an error the
// message may still be written to.
func (t *Transport) receiveHello(st grpc.ServerStream, m any) error {
	got := make(chan error, 1)
	if !t.spawn(func() { got <- st.RecvMsg(m) }) {
		return errDraining()
	}
	late := time.NewTimer(handshakeTimeout)
	defer late.Stop()
	select {
	case err := <-got:
		return err
	case <-late.C:
		return status.Error(codes.DeadlineExceeded, "nearcache: the stream did not begin with a hello in time")
	}
}

// serveLane is the server's end of a lane.
func serveLane(srv any, st grpc.ServerStream) error {
	t := srv.(*Transport)
	in := &requestFrame{}
	if err := t.receiveHello(st, in); err != nil {
		return err
	}
	defer in.release()
	s, err := t.newSession(st.Context(), in.Hello, in.View, false)
	if err != nil {
		return err
	}
	defer t.claims.leave(s)
	s.st, s.turn = st, make(chan struct{}, 1)
	if !t.register(s) {
		return errDraining()
	}
	defer t.unregister(s)
	err = s.serve(in)
	s.end()
	t.cfg.Handler.Gone(s)
	if errors.Is(err, io.EOF) {
		return nil // the peer left, as it does when this member drains
	}
	return err
}

// serveCohere is the server's end of a coherence stream: the log's. The handler's goroutine sends, another one receives.
func serveCohere(srv any, st grpc.ServerStream) error {
	t := srv.(*Transport)
	up := &cohereUp{}
	if err := t.receiveHello(st, up); err != nil {
		return err
	}
	s, err := t.newSession(st.Context(), up.Hello, up.View, false)
	if err != nil {
		return err
	}
	defer t.claims.leave(s)
	if t.draining.Load() {
		return errDraining()
	}
	if err := st.SendMsg(&cohereDown{Hello: t.hello(), Down: t.ownView(s, Down{})}); err != nil {
		return err
	}
	sub := t.cfg.Handler.Subscribe(s)
	if sub == nil {
		return status.Error(codes.Unavailable, "nearcache: peer does not take subscribers")
	}
	defer sub.Close()
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	defer context.AfterFunc(t.cohere, cancel)()
	if !t.spawn(func() {
		defer cancel()
		receiveRenewals(s, st, sub)
	}) {
		return errDraining()
	}
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			if s.replaced.Load() {
				return errReplaced()
			}
			return nil // the subscription ended, which is how a stream ends
		}
		if err := st.SendMsg(&cohereDown{Down: t.ownView(s, *d)}); err != nil {
			return err
		}
	}
}

// receiveRenewals runs until the stream ends, which the return of its handler brings about.
func receiveRenewals(s *Session, st grpc.ServerStream, sub Subscription) {
	for {
		var up cohereUp
		if st.RecvMsg(&up) != nil || s.listen() != nil {
			return
		}
		s.view.Store(up.View)
		if up.Nonce != 0 {
			sub.Renew(up.Nonce)
		}
	}
}

// ownView returns d with what every message tells about this member's ring.
func (t *Transport) ownView(s *Session, d Down) Down {
	d.View = t.cfg.View()
	d.InView = t.cfg.InView(s.Member, s.Addr)
	return d
}
