package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// loopback connects two members over TCP.
func loopback(tb testing.TB, asker, server Handler) (a, b *Transport, p *Peer) {
	tb.Helper()
	listen := func(h Handler, id string) *Transport {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		cfg := testConfig(newMemory(), id, h)
		cfg.Dial = nil
		cfg.PeerTimeout = 5 * time.Second // the machine may be busy
		cfg.Self.Addr = l.Addr().String()
		t := New(cfg)
		t.Serve(l)
		return t
	}
	a, b = listen(asker, "a"), listen(server, "b")
	a.SetPeers([]PeerAddr{{ID: "b", Addr: b.cfg.Self.Addr}})
	b.SetPeers([]PeerAddr{{ID: "a", Addr: a.cfg.Self.Addr}})
	p = a.Peer("b")
	await(tb, "ready", func() bool { return p.Ready() && b.Peer("a").Ready() })
	return a, b, p
}

// Two members that flood each other with large frames, late answers included, both get on.
func TestFlood(t *testing.T) {
	value := make([]byte, 20<<10)
	serve := func(s *Session, id uint32, req *Request, rep *Reply) bool {
		r := Reply{Status: StatusHit, Value: value, HasValue: true, Version: req.Version}
		if req.Version%3 == 0 {
			s.Answer(id, &r)
			return false
		}
		*rep = r
		return true
	}
	a, b, _ := loopback(t, &node{serve: serve}, &node{serve: serve})
	var wg sync.WaitGroup
	var got atomic.Int64
	for _, p := range []*Peer{a.Peer("b"), b.Peer("a")} {
		for range 100 {
			wg.Go(func() {
				for i := range 15 {
					req := get("k")
					req.Op, req.Value, req.HasValue = OpSet, value, true
					req.Version = uint64(i)
					rep, err := p.Do(context.Background(), req)
					if err != nil || rep.Version != uint64(i) || len(rep.Value) != len(value) {
						t.Errorf("got version %d, %d bytes, %v", rep.Version, len(rep.Value), err)
						return
					}
					got.Add(1)
				}
			})
		}
	}
	wg.Wait()
	if got.Load() != 3_000 {
		t.Errorf("got %d answers, want 3000", got.Load())
	}
	shut(t, a, b)
}

// A client that asks and does not read makes the server stop taking its requests: what is kept for it is bounded.
func TestServerBoundsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		value := make([]byte, InlineValueBytes)
		var served atomic.Int64
		var mu sync.Mutex // guards late
		var late []func()
		server := &node{serve: func(s *Session, id uint32, req *Request, rep *Reply) bool {
			served.Add(1)
			if req.Key == "late" {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, func() { s.Answer(id, &Reply{Status: StatusHit, Value: value, HasValue: true}) })
				return false
			}
			rep.Status, rep.Value, rep.HasValue = StatusHit, append([]byte(nil), value...), true
			return true
		}}
		a, b := start(m, "a", &node{}), start(m, "b", server)
		conn, err := a.dial("b")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		st, err := conn.NewStream(ctx, laneDesc(), laneMethod)
		if err != nil {
			t.Fatal(err)
		}
		f := &requestFrame{Hello: a.hello()}
		if err := st.SendMsg(f); err != nil {
			t.Fatal(err)
		}
		if err := st.RecvMsg(&replyFrame{}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { // it ignores the window too
			for i := uint32(0); ; i++ {
				f := &requestFrame{}
				for range 10 {
					f.add(i, get("k"))
				}
				if st.SendMsg(f) != nil {
					return
				}
			}
		})
		time.Sleep(10 * time.Second)
		// Windows: 1 MiB of the stream, 64 KiB of quota, the frame at hand.
		if got := served.Load(); got > 40 {
			t.Errorf("%d requests of 64 KiB answers were served for a client that does not read", got)
		}
		cancel()
		wg.Wait()

		// The same for late answers: what the session owes is bounded.
		ctx, cancel = context.WithCancel(t.Context())
		if st, err = conn.NewStream(ctx, laneDesc(), laneMethod); err != nil {
			t.Fatal(err)
		}
		if err := st.SendMsg(&requestFrame{Hello: a.hello()}); err != nil {
			t.Fatal(err)
		}
		served.Store(0)
		wg.Go(func() {
			for {
				if st.RecvMsg(&replyFrame{}) != nil {
					return
				}
			}
		})
		for range 2 * maxPending / MaxBatchOps {
			f := &requestFrame{}
			for range MaxBatchOps {
				f.add(1, get("late"))
			}
			if err := st.SendMsg(f); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if got := served.Load(); got != maxPending {
			t.Errorf("%d requests wait, want %d", got, maxPending)
		}
		mu.Lock()
		for _, answer := range late {
			answer()
		}
		mu.Unlock()
		cancel()
		wg.Wait()
		_ = conn.Close()
		shut(t, a, b)
	})
}

// Case transport-13: cancelled calls never shift answers to other calls.
func TestCancelledCalls(t *testing.T) {
	var wg sync.WaitGroup
	server := &node{serve: func(s *Session, id uint32, req *Request, rep *Reply) bool {
		r := Reply{Status: StatusHit, Value: []byte(req.Key), HasValue: true}
		if req.Version == 0 {
			*rep = r
			return true
		}
		wg.Go(func() {
			time.Sleep(time.Duration(req.Version) * time.Microsecond)
			s.Answer(id, &r)
		})
		return false
	}}
	// req is only valid in Serve: clone what the goroutine reads.
	inner := server.serve
	server.serve = func(s *Session, id uint32, req *Request, rep *Reply) bool {
		c := *req
		c.Key = strings.Clone(req.Key)
		return inner(s, id, &c, rep)
	}
	pair(t, &node{}, server, func(t *bubble) {
		m, p := t.m, t.p
		var callers sync.WaitGroup
		cancelled := atomic.Int64{}
		for g := range 32 {
			callers.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(g)))
				for i := range 300 {
					req := get(fmt.Sprint(g, "-", i))
					req.Version = r.Uint64N(3000)
					ctx, cancel := context.WithCancel(context.Background())
					if r.IntN(2) == 0 {
						ctx, cancel = context.WithTimeout(context.Background(), time.Duration(r.IntN(3000))*time.Microsecond)
					}
					began := time.Now()
					rep, err := p.Do(ctx, req)
					switch {
					case errors.Is(err, context.DeadlineExceeded):
						cancelled.Add(1)
						if took := time.Since(began); took > 20*time.Millisecond {
							t.Errorf("cancelled call returned after %v", took)
						}
					case err != nil || string(rep.Value) != req.Key:
						t.Errorf("%s: got %q, %v", req.Key, rep.Value, err)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		wg.Wait()
		if cancelled.Load() < 1000 {
			t.Errorf("only %d calls were cancelled", cancelled.Load())
		}
		if m.dials != 1 || !p.Ready() {
			t.Errorf("%d connections were made, want 1", m.dials)
		}
		l := p.pickAny()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.quick != 0 || l.waiting != 0 {
			t.Errorf("%d quick and %d waiting calls are left", l.quick, l.waiting)
		}
	})
}

// Whatever happens, every call completes exactly once: answers at once, late, or never, leases, cancellations, a peer that freezes
// and one that is restarted.
func TestExactlyOnce(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { exactlyOnce(t, seed) })
		})
	}
}

func exactlyOnce(t *testing.T, seed uint64) {
	t.Helper()
	m := newMemory()
	var wg sync.WaitGroup
	serve := func(s *Session, id uint32, req *Request, rep *Reply) bool {
		r := Reply{Status: StatusHit, Value: []byte(req.Key), HasValue: true}
		switch req.Version % 5 {
		case 1:
			r = Reply{Status: StatusLease, Token: Token{1, req.Version}}
		case 2:
			r.Value = make([]byte, InlineValueBytes+1)
		}
		switch req.Version / 5 % 4 {
		case 0:
			return false // never
		case 1:
			wg.Go(func() {
				time.Sleep(300 * time.Millisecond)
				s.Answer(id, &r)
			})
			return false
		}
		*rep = r
		return true
	}
	asker := &node{}
	a, b := start(m, "a", asker), start(m, "b", &node{serve: serve})
	p := connect(t, a)
	var callers sync.WaitGroup
	outcomes := make([]map[string]int, 40)
	for g := range outcomes {
		outcomes[g] = map[string]int{}
		callers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			for range 30 {
				n := 1 + r.IntN(20)
				calls := make([]*Call, n)
				for i := range calls {
					calls[i] = a.NewCall()
					calls[i].Request = *get("k")
					calls[i].Request.Version = r.Uint64()
					calls[i].Request.Budget = time.Duration(r.IntN(1000)) * time.Millisecond
				}
				patience := time.NewTimer(time.Duration(r.IntN(3000)) * time.Millisecond)
				if r.IntN(2) == 0 {
					b := NewBatch(n)
					p.StartBatch(calls, b)
					select {
					case <-b.Done():
						left := calls[:0]
						for _, c := range calls {
							if c.Detached() {
								left = append(left, c)
								continue
							}
							outcomes[g][finished(t, c)]++
						}
						if calls, n = left, len(left); n > 0 {
							outcomes[g]["detached"] += n
						}
					case <-patience.C:
						abandon(t, outcomes[g], calls)
						calls, n = nil, 0
					}
				} else {
					for _, c := range calls {
						p.Start(c)
					}
				}
				for i, waiting := 0, true; waiting && i < n; i++ {
					select {
					case <-calls[i].Done():
						outcomes[g][finished(t, calls[i])]++
					case <-patience.C:
						abandon(t, outcomes[g], calls[i:])
						waiting = false
					}
				}
				patience.Stop()
				time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			}
		})
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	r := rand.New(rand.NewPCG(seed, 1000))
	for alive := true; alive; {
		select {
		case <-done:
			alive = false
		case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
			if r.IntN(3) > 0 {
				m.gate("b").shut()
				time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
				m.gate("b").lift()
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(500))*time.Millisecond)
			_ = b.Close(ctx)
			cancel()
			time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
			b = start(m, "b", &node{serve: serve})
		}
	}
	total := map[string]int{}
	for _, o := range outcomes {
		for k, n := range o {
			total[k] += n
		}
	}
	t.Logf("outcomes: %v, %d orphans", total, asker.orphans())
	time.Sleep(3 * time.Second)
	shut(t, a)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = b.Close(ctx)
	wg.Wait()
}

// finished checks a call that is complete, and that it does not complete again.
func finished(t *testing.T, c *Call) string {
	t.Helper()
	out := fmt.Sprint("status ", c.Reply.Status)
	if c.Err != nil {
		out = c.Err.Error()
	}
	if c.Err == nil && (c.Reply.Status == StatusWaiting || c.Reply.Status == StatusLarge || c.Reply.Status == 0) {
		t.Errorf("got %+v", c.Reply)
	}
	select {
	case <-c.Done():
		t.Error("a call completed twice")
	default:
	}
	if c.state.Load() != callDone {
		t.Errorf("a complete call is in state %d", c.state.Load())
	}
	c.Free()
	return out
}

func abandon(t *testing.T, outcomes map[string]int, calls []*Call) {
	t.Helper()
	for _, c := range calls {
		if c.Abandon() {
			outcomes["abandoned"]++
			continue
		}
		if c.Detached() { // from its batch, or never in one
			<-c.Done()
		}
		outcomes[finished(t, c)]++
	}
}

// What a get of 1 KB allocates at both ends together: one is the value, the rest is gRPC's, per frame. There is slack for pools that the race
// detector and the garbage collector empty, and for renewals.
func TestGetAllocations(t *testing.T) {
	value := make([]byte, 1024)
	a, b, p := loopback(t, &node{}, &node{serve: func(_ *Session, _ uint32, _ *Request, rep *Reply) bool {
		rep.Status, rep.Value, rep.HasValue = StatusHit, value, true
		return true
	}})
	req := get("k")
	one := func() {
		if _, err := p.Do(context.Background(), req); err != nil {
			t.Error(err)
		}
	}
	calls := make([]*Call, MaxBatchOps)
	batch := func() {
		for i := range calls {
			calls[i] = a.NewCall()
			calls[i].Request = *req
		}
		b := NewBatch(len(calls))
		p.StartBatch(calls, b)
		<-b.Done()
		for _, c := range calls {
			c.Free()
		}
	}
	batch()
	one()
	if got := testing.AllocsPerRun(200, one); got > 24 {
		t.Errorf("a get alone: %v allocations, want at most 24", got)
	}
	if got := testing.AllocsPerRun(20, batch) / MaxBatchOps; got > 2 {
		t.Errorf("a get of a batch: %v allocations, want at most 2", got)
	}
	shut(t, a, b)
}

func benchmarkGet(b *testing.B, callers, size int) {
	value := make([]byte, size)
	serve := func(_ *Session, _ uint32, _ *Request, rep *Reply) bool {
		rep.Status, rep.Value, rep.HasValue = StatusHit, value, true
		return true
	}
	ta, tb, p := loopback(b, &node{}, &node{serve: serve})
	defer func() { shut(b, ta, tb) }()
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprintf("product/%016d", i)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for g := range callers {
		wg.Go(func() {
			for n := g; left.Add(-1) >= 0; n++ {
				c := ta.NewCall()
				c.Request.Op, c.Request.Keyspace, c.Request.Key = OpGet, "product", keys[n%len(keys)]
				c.Request.Budget, c.Request.LeaseLife, c.Request.Near = time.Second, 5*time.Second, time.Second
				p.Start(c)
				<-c.Done()
				if c.Err != nil || len(c.Reply.Value) != size {
					b.Errorf("got %d bytes, %v", len(c.Reply.Value), c.Err)
				}
				c.Free()
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "gets/s")
	runtime.KeepAlive(ta)
}

// BenchmarkGet is the remote get of a resident 1 KB value over loopback, both members in this process.
func BenchmarkGet(b *testing.B) {
	for _, callers := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchmarkGet(b, callers, 1024) })
	}
}
