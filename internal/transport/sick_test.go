package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// A breaker opens once, closes when the peer is well, and trusts one that flaps less each time.
func TestBreaker(t *testing.T) {
	const ms = int64(time.Millisecond)
	var b breaker
	now := int64(1)
	b.step(now, false)
	if b.String() != "closed" || !b.allows() {
		t.Fatalf("got %v, want closed", &b)
	}
	for i, hold := range []int64{0, 100, 200, 400, 800, 800} {
		if !b.open(now) || b.open(now) || b.String() != "open" {
			t.Fatalf("opening %d: got %v", i, &b)
		}
		if b.step(now, false); b.String() != "open" {
			t.Errorf("opening %d, not well: got %v", i, &b)
		}
		if hold > 0 {
			if b.step(now+hold*ms-1, true); b.String() != "half-open" {
				t.Errorf("opening %d, well before %d ms: got %v", i, hold, &b)
			}
			if b.step(now+hold*ms-1, false); b.String() != "open" {
				t.Errorf("opening %d, not well again: got %v", i, &b)
			}
		}
		now += hold * ms
		if b.step(now, true); b.String() != "closed" {
			t.Errorf("opening %d, well after %d ms: got %v", i, hold, &b)
		}
		now += 5 * 1000 * ms
	}
	now += 10 * 1000 * ms
	b.open(now)
	if b.step(now, true); b.String() != "closed" {
		t.Errorf("a peer that was well for long: got %v, want closed at once", &b)
	}
}

// sick is a peer in some bad state, which a caller asks every few milliseconds for ten seconds.
type sick struct {
	serve func(req *Request) bool           // false: not answered
	rogue func(l net.Listener)              // takes the place of the peer's server
	hello func(h *hello)                    // changes what a rogue says about itself
	fault func(g *gate, stop chan struct{}) // runs meanwhile
	slow  int                               // calls that may wait for a PeerTimeout
	fine  bool                              // some calls have to be answered meanwhile
}

// A sick peer costs each call that meets it a PeerTimeout at most, and nothing once it is known; when it is well again it is used
// within a second. Cases transport-6 and transport-16.
func TestSickPeers(t *testing.T) {
	released := make(chan struct{}) // lets handlers return that are stuck
	cases := map[string]sick{
		"frozen": {slow: 30, fault: func(g *gate, stop chan struct{}) {
			g.shut()
			<-stop
			g.lift()
		}},
		"flapping": {slow: 300, fine: true, fault: func(g *gate, stop chan struct{}) {
			for down := false; ; down = !down {
				select {
				case <-stop:
					if down {
						g.lift()
					}
					return
				case <-time.After(300 * time.Millisecond):
				}
				if down {
					g.lift()
				} else {
					g.shut()
				}
			}
		}},
		"slow": {slow: 30, serve: func(req *Request) bool {
			if req.Op != OpPing {
				time.Sleep(3 * testTimeout)
			}
			return true
		}},
		"answers pings only": {slow: 2 * 30, serve: func(*Request) bool {
			<-released
			return true
		}},
		"refuses":         {rogue: func(l net.Listener) { _ = l.Close() }},
		"never answers":   {rogue: func(l net.Listener) { drain(l, nil) }},
		"another version": {hello: func(h *hello) { h.Protocol++ }},
		"another cluster": {hello: func(h *hello) { h.Cluster = "other" }},
		"answers garbage": {rogue: func(l net.Listener) { drain(l, []byte(strings.Repeat("garbage", 100))) }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				released = make(chan struct{})
				testSick(t, &c, func() { close(released) })
			})
		})
	}
}

func drain(l net.Listener, answer []byte) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if answer == nil {
			defer func() { _ = c.Close() }() // accepted, and never read
			continue
		}
		_, _ = c.Write(answer)
		_ = c.Close()
	}
}

// greet answers each lane with a hello, and nothing more, until l is closed.
func greet(l net.Listener, codec encoding.CodecV2, h *hello) {
	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec))
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Lane", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, st grpc.ServerStream) error {
			if err := st.SendMsg(&replyFrame{Hello: h}); err != nil {
				return err
			}
			return st.RecvMsg(&requestFrame{})
		},
	}}}, nil)
	_ = srv.Serve(l)
	srv.Stop()
}

func testSick(t *testing.T, c *sick, release func()) {
	t.Helper()
	m := newMemory()
	var ill atomic.Bool
	server := &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
		if ill.Load() && c.serve != nil {
			c.serve(req)
		}
		rep.Status = StatusAbsent
		return true
	}}
	a, b := start(m, "a", &node{}), start(m, "b", server)
	p := connect(t, a)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	ill.Store(true)
	var rogue net.Listener
	switch {
	case c.hello != nil:
		h := b.hello()
		c.hello(h)
		shut(t, b)
		rogue = m.listen("b")
		wg.Go(func() { greet(rogue, b.codec, h) })
	case c.rogue != nil:
		shut(t, b)
		rogue = m.listen("b")
		wg.Go(func() { c.rogue(rogue) })
	case c.fault != nil:
		wg.Go(func() { c.fault(m.gate("b"), stop) })
	}
	var waited, answered, last atomic.Int64
	began := time.Now()
	for i := range 2000 {
		wg.Go(func() {
			at := time.Now()
			_, err := p.Do(t.Context(), get(fmt.Sprint(i)))
			took := time.Since(at)
			if took > testTimeout+minSweep+lateGrace {
				t.Errorf("a call took %v", took)
			}
			switch {
			case err == nil:
				answered.Add(1)
			case took > minSweep:
				waited.Add(1)
				last.Store(int64(at.Sub(began)))
			case !errors.Is(err, ErrDown) && !errors.Is(err, ErrTimeout):
				t.Errorf("got %v after %v", err, took)
			}
		})
		time.Sleep(5 * time.Millisecond)
	}
	if got := waited.Load(); got > int64(c.slow) {
		t.Errorf("%d calls waited, the last of them began after %v; want at most %d", got, time.Duration(last.Load()), c.slow)
	}
	if c.fine != (answered.Load() > 0) && c.serve == nil {
		t.Errorf("%d calls were answered", answered.Load())
	}
	t.Logf("%d calls waited, the last of them began after %v, %d were answered", waited.Load(), time.Duration(last.Load()), answered.Load())
	if rogue == nil && c.fault == nil && p.Ready() {
		t.Error("a sick peer is in use")
	}
	close(stop)
	ill.Store(false)
	release()
	if rogue != nil {
		_ = rogue.Close()
		b = start(m, "b", server)
	}
	wg.Wait()
	back := time.Now()
	await(t, "peer is back", p.Ready)
	if took := time.Since(back); took > time.Second {
		t.Errorf("a peer that is well was used after %v", took)
	}
	if _, err := p.Do(t.Context(), get("k")); err != nil {
		t.Errorf("a peer that is well: %v", err)
	}
	shut(t, a, b)
}

// A peer that acknowledges what it did not answer breaks its promise: the call does not wait for more.
func TestAcknowledgedUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := start(m, "a", &node{})
		b := New(testConfig(m, "b", &node{})) // for its hello and codec
		srv := grpc.NewServer(grpc.ForceServerCodecV2(b.codec))
		srv.RegisterService(&grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
			StreamName: "Lane", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, st grpc.ServerStream) error {
				hello := b.hello()
				for {
					in := &requestFrame{}
					if err := st.RecvMsg(in); err != nil {
						return err
					}
					out := &replyFrame{Hello: hello}
					if len(in.Reqs) > 0 {
						out.Acked = 1
					}
					in.release()
					if err := st.SendMsg(out); err != nil {
						return err
					}
					hello = nil
				}
			},
		}}}, nil)
		var wg sync.WaitGroup
		l := m.listen("b")
		wg.Go(func() { _ = srv.Serve(l) })
		p := connect(t, a)
		began := time.Now()
		if _, err := p.Do(t.Context(), get("k")); !errors.Is(err, ErrDown) || time.Since(began) >= testTimeout {
			t.Errorf("got %v after %v, want %v at once", err, time.Since(began), ErrDown)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = b.Close(ctx)
		shut(t, a)
		srv.Stop()
		wg.Wait()
	})
}
