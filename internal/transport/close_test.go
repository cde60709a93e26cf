package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A member that drains answers those that wait, and gets no new calls but what they wait for.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		type owed struct {
			s  *Session
			id uint32
		}
		waiting := make(chan owed, 1)
		server := &node{serve: func(s *Session, id uint32, req *Request, rep *Reply) bool {
			if req.Key == "wait" {
				waiting <- owed{s, id}
				return false
			}
			rep.Status = StatusAbsent
			return true
		}}
		a, b := start(m, "a", &node{}), start(m, "b", server)
		p := connect(t, a)
		c := a.NewCall()
		c.Request = *get("wait")
		p.Start(c)
		w := <-waiting
		closed := make(chan error, 1)
		go func() { closed <- b.Close(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		if s := p.Status(); s.Ready || !s.Draining {
			t.Errorf("peer that drains: got %+v", s)
		}
		if _, err := p.Do(t.Context(), get("k")); !errors.Is(err, ErrDown) {
			t.Errorf("call to a peer that drains: got %v, want %v", err, ErrDown)
		}
		for _, op := range []Op{OpFill, OpRelease} { // those who wait wait for it
			end := get("k")
			end.Op = op
			if _, err := p.Do(t.Context(), end); err != nil {
				t.Errorf("the end of a load to a peer that drains: %v", err)
			}
		}
		w.s.Answer(w.id, &Reply{Status: StatusHit, Value: []byte("v"), HasValue: true})
		<-c.Done()
		if c.Err != nil || string(c.Reply.Value) != "v" {
			t.Errorf("waiting call: got %+v, %v", c.Reply, c.Err)
		}
		began := time.Now()
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("Close took %v after the last answer: the peer should have left by itself", took)
		}
		w.s.Answer(w.id, &Reply{Status: StatusHit}) // in vain
		shut(t, a)
		if server.gone != 2 {
			t.Errorf("got %d sessions gone, want 2", server.gone)
		}
	})
}

// Case transport-10: Close ends although an answer is owed and a peer holds its streams open.
func TestCloseEnds(t *testing.T) {
	server := &node{serve: func(*Session, uint32, *Request, *Reply) bool { return false }}
	for _, limit := range []time.Duration{0, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			a, b := start(m, "a", &node{}), start(m, "b", server)
			p := connect(t, a)
			c := a.NewCall()
			c.Request = *get("k")
			p.Start(c)
			time.Sleep(time.Millisecond)
			m.gate("b").shut()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			var wg sync.WaitGroup
			for range 4 { // Case transport-11.
				wg.Go(func() {
					if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Close: got %v, want %v", err, context.DeadlineExceeded)
					}
				})
			}
			wg.Wait()
			if took := time.Since(began); took < limit || took > limit+500*time.Millisecond {
				t.Errorf("Close took %v, want %v", took, limit)
			}
			m.gate("b").lift()
			<-c.Done()
			if c.Err == nil {
				t.Errorf("call: got %+v, want an error", c.Reply)
			}
			shut(t, a)
			if err := b.Close(t.Context()); err != nil && ctx.Err() == nil {
				t.Errorf("Close again: %v", err)
			}
			b.SetPeers([]PeerAddr{{ID: "a", Addr: "a"}})
			if len(b.Peers()) != 0 {
				t.Error("a closed transport takes peers")
			}
		})
	}
}

// A closed transport's port is free, and its calls end, over real sockets too.
func TestCloseTCP(t *testing.T) {
	for range 5 {
		a, b, p := loopback(t, &node{}, &node{})
		if _, err := p.Do(t.Context(), get("k")); err != nil {
			t.Fatal(err)
		}
		addr := b.cfg.Self.Addr
		shut(t, b)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Errorf("the port is not free: %v", err)
		} else {
			_ = l.Close()
		}
		if _, err := p.Do(t.Context(), get("k")); !errors.Is(err, ErrDown) {
			t.Errorf("got %v, want %v", err, ErrDown)
		}
		shut(t, a)
	}
}

// Cases transport-11 and transport-12: lists change under load. Peers that stay keep their connections, calls to the others end.
func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := start(m, "a", &node{})
		var others []*Transport
		var all []PeerAddr
		for i := range 4 {
			id := fmt.Sprint("n", i)
			others = append(others, start(m, id, &node{}))
			all = append(all, PeerAddr{ID: id, Addr: id})
		}
		a.SetPeers(append([]PeerAddr{{ID: "a", Addr: "a"}, all[0]}, all...))
		for _, p := range a.Peers() {
			await(t, p.ID(), p.Ready)
		}
		if n := len(a.Peers()); n != 4 {
			t.Fatalf("got %d peers, want 4", n)
		}
		m.mu.Lock()
		dials := m.dials
		m.mu.Unlock()
		stays := a.Peer("n0")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					id := fmt.Sprint("n", (i+n)%4)
					if p := a.Peer(id); p != nil {
						_, err := p.Do(t.Context(), get("k"))
						if err != nil && (id == "n0" || !errors.Is(err, ErrDown)) {
							t.Errorf("%s: %v", id, err)
						}
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		for range 250 {
			a.SetPeers(all)
		}
		if a.Peer("n0") != stays || m.dials != dials {
			t.Error("identical lists opened connections")
		}
		for i := range 100 {
			a.SetPeers(all[:1+i%4])
			time.Sleep(7 * time.Millisecond)
		}
		close(stop)
		wg.Wait()
		if a.Peer("n0") != stays || !stays.Ready() {
			t.Error("a peer that was always listed lost its connection")
		}
		shut(t, append(others, a)...)
	})
}

// Own calls end when the transport is closed in the middle of them.
func TestCloseUnderLoad(t *testing.T) {
	for i := range 20 {
		a, b, p := loopback(t, &node{}, &node{})
		var wg sync.WaitGroup
		for range 300 {
			wg.Go(func() {
				req := get("k")
				req.Op, req.Value = OpSet, make([]byte, 2<<10)
				for {
					if _, err := p.Do(context.Background(), req); err != nil {
						return
					}
				}
			})
		}
		await(t, "load", func() bool { return p.Status().Requests > uint64(1000+100*i) })
		shut(t, a)
		wg.Wait()
		shut(t, b)
	}
}

// Close under load, by four at once: first the peers are told, then what was promised is answered, then the streams end, and when it has
// returned the handler hears no more. No call of a peer fails otherwise than by being told to go elsewhere.
func TestCloseOrder(t *testing.T) {
	var mu sync.Mutex
	var closed bool
	sessions := map[*Session]bool{} // false: gone
	var wg sync.WaitGroup
	h := &orderly{gone: func(s *Session) {
		mu.Lock()
		defer mu.Unlock()
		if live, known := sessions[s]; closed || known && !live {
			t.Error("Gone came after Close had returned, or twice")
		}
		sessions[s] = false
	}}
	h.serve = func(s *Session, id uint32, req *Request, rep *Reply) bool {
		mu.Lock()
		defer mu.Unlock()
		if live, known := sessions[s]; closed || known && !live {
			t.Error("a request was served after the end")
		}
		sessions[s] = true
		if req.Key != "wait" {
			rep.Status = StatusAbsent
			return true
		}
		wg.Go(func() {
			time.Sleep(50 * time.Millisecond)
			s.Answer(id, &Reply{Status: StatusAbsent})
		})
		return false
	}
	a, b, p := loopback(t, &node{}, h)
	var callers sync.WaitGroup
	stop := make(chan struct{})
	var answered, elsewhere atomic.Int64
	for i := range 32 {
		callers.Go(func() {
			key := "quick"
			if i%2 == 0 {
				key = "wait"
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := p.Do(t.Context(), get(key))
				switch {
				case err == nil:
					answered.Add(1)
				case errors.Is(err, ErrDown):
					elsewhere.Add(1)
					time.Sleep(time.Millisecond)
				default:
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
	await(t, "load", func() bool { return answered.Load() > 500 })
	var closers sync.WaitGroup
	for range 4 {
		closers.Go(func() {
			if err := b.Close(context.Background()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	closers.Wait()
	mu.Lock()
	closed = true
	for s, live := range sessions {
		if live {
			t.Errorf("Close returned before Gone(%s)", s.Member)
		}
	}
	mu.Unlock()
	if !b.draining.Load() || b.pending() != 0 {
		t.Errorf("draining: %v, %d answers are owed", b.draining.Load(), b.pending())
	}
	await(t, "calls fail at once", func() bool { return elsewhere.Load() > 100 })
	close(stop)
	callers.Wait()
	wg.Wait()
	shut(t, a, b)
}

// orderly is a node that tells of Gone.
type orderly struct {
	node
	gone func(s *Session)
}

func (o *orderly) Gone(s *Session) {
	if !s.Bulk {
		o.gone(s)
	}
}

// Close before anything was started, in the middle of starting, and before Serve: nothing is left, and the listener is closed.
func TestCloseBeforeStart(t *testing.T) {
	for i := range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		m := newMemory()
		cfg := testConfig(m, "a", &node{})
		a := New(cfg)
		var wg sync.WaitGroup
		wg.Go(func() {
			a.Serve(l)
			a.SetPeers([]PeerAddr{{ID: "b", Addr: "b"}})
		})
		if i%2 == 0 {
			wg.Wait()
		}
		shut(t, a, a)
		wg.Wait()
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			_ = c.Close()
			t.Error("the listener is open")
		}
		if n := len(a.Peers()); n > 1 {
			t.Errorf("%d peers", n)
		}
	}
}
