package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble is a test in a synctest bubble with two connected members, a and b; p is b as a sees it.
type bubble struct {
	*testing.T
	m    *memory
	p    *Peer
	a, b *Transport
}

// pair runs f in a bubble: a asks, b answers with the handler.
func pair(t *testing.T, asker, server *node, f func(t *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := start(m, "a", asker), start(m, "b", server)
		f(&bubble{t, m, connect(t, a), a, b})
		shut(t, a, b)
	})
}

func TestAnswers(t *testing.T) {
	want := map[string]Reply{
		"hit":            {Status: StatusHit, Value: []byte("value"), HasValue: true, Seq: 7, TTL: time.Minute, Near: time.Second, Version: 3},
		"empty":          {Status: StatusHit, Value: []byte{}, HasValue: true},
		"absent":         {Status: StatusAbsent, TTL: time.Second},
		"lease":          {Status: StatusLease, Token: Token{9, 1}, Life: time.Minute, TagPos: 4},
		"failed":         {Status: StatusFailed, Failure: Failure{Kind: FailureLoad, Code: "c", Text: "t\xff", Member: "b"}},
		"\xff\x00 bytes": {Status: StatusMiss},
	}
	server := &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
		*rep = want[req.Key]
		return true
	}}
	pair(t, &node{}, server, func(t *bubble) {
		p := t.p
		for key, w := range want {
			got, err := p.Do(t.Context(), get(key))
			if err != nil || got.Status != w.Status || !bytes.Equal(got.Value, w.Value) || got.HasValue != w.HasValue ||
				got.Token != w.Token || got.Failure != w.Failure || got.TTL != w.TTL || got.Seq != w.Seq {
				t.Errorf("%q: got %+v, %v; want %+v", key, got, err, w)
			}
		}
		s := p.Status()
		if !s.Ready || !s.Connected || s.Breaker != "closed" || s.View != 42 || !s.InView || s.Requests != uint64(len(want)) || s.Errors != 0 {
			t.Errorf("status: got %+v", s)
		}
		if got := time.Since(s.LastContact); got < 0 || got > time.Minute {
			t.Errorf("last contact: got %v ago", got)
		}
	})
}

func TestWaiting(t *testing.T) {
	var wg sync.WaitGroup
	server := &node{serve: func(s *Session, id uint32, req *Request, _ *Reply) bool {
		key := strings.Clone(req.Key)
		if key == "early" { // the answer overtakes Serve's return
			s.Answer(id, &Reply{Status: StatusHit, Value: []byte(key), HasValue: true})
			return false
		}
		wg.Go(func() {
			time.Sleep(3 * time.Second) // far beyond PeerTimeout
			s.Answer(id, &Reply{Status: StatusHit, Value: []byte(key), HasValue: true})
		})
		return false
	}}
	pair(t, &node{}, server, func(t *bubble) {
		p := t.p
		for _, key := range []string{"early", "k"} {
			got, err := p.Do(t.Context(), get(key))
			if err != nil || got.Status != StatusHit || string(got.Value) != key {
				t.Errorf("%s: got %+v, %v; want a hit", key, got, err)
			}
		}
		wg.Wait()
		if s := p.Status(); s.Breaker != "closed" || s.Errors != 0 {
			t.Errorf("status: got %+v, want a closed breaker", s)
		}
	})
}

// A call that the peer told to wait, and then forgot, ends after its budget and a second.
func TestWaitingForgotten(t *testing.T) {
	server := &node{serve: func(*Session, uint32, *Request, *Reply) bool { return false }}
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := start(m, "a", &node{}), start(m, "b", server)
		p := connect(t, a)
		began := time.Now()
		_, err := p.Do(t.Context(), get("k"))
		if took := time.Since(began); !errors.Is(err, ErrTimeout) || took < 6*time.Second || took > 6200*time.Millisecond {
			t.Errorf("got %v after %v, want %v after 6 s", err, took, ErrTimeout)
		}
		if !p.Ready() {
			t.Error("peer is not ready: pings should have told that it lives")
		}
		shut(t, a, b)
	})
}

// A lease that comes too late is given back; other late answers are dropped.
func TestOrphans(t *testing.T) {
	asker := &node{}
	server := &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
		rep.Status = StatusHit
		if strings.HasPrefix(req.Key, "lease") {
			rep.Status, rep.Token = StatusLease, Token{1, 2}
		}
		return true
	}}
	pair(t, asker, server, func(t *bubble) {
		m, p := t.m, t.p
		m.gate("b").shut()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := p.Do(ctx, get("lease-abandoned")); !errors.Is(err, context.Canceled) {
				t.Errorf("abandoned call: got %v", err)
			}
		})
		time.Sleep(time.Millisecond)
		cancel()
		wg.Wait()
		for _, key := range []string{"lease-timeout", "hit"} {
			wg.Go(func() {
				began := time.Now()
				_, err := p.Do(t.Context(), get(key))
				if took := time.Since(began); !errors.Is(err, ErrTimeout) || took > testTimeout+10*time.Millisecond {
					t.Errorf("%s: got %v after %v", key, err, took)
				}
			})
		}
		wg.Wait()
		if p.Ready() || p.Status().Breaker != "open" {
			t.Errorf("a silent peer: got %+v", p.Status())
		}
		if _, err := p.Do(t.Context(), get("k")); !errors.Is(err, ErrDown) {
			t.Errorf("call to a silent peer: got %v, want %v", err, ErrDown)
		}
		m.gate("b").lift()
		await(t, "orphans", func() bool { return asker.orphans() == 2 })
		time.Sleep(time.Second)
		if got := fmt.Sprint(asker.orphanedKeys); got != "[lease-abandoned lease-timeout]" && got != "[lease-timeout lease-abandoned]" {
			t.Errorf("orphans: got %v", got)
		}
		if !p.Ready() {
			t.Error("peer is not ready after it came back")
		}
		if _, err := p.Do(t.Context(), get("k")); err != nil {
			t.Errorf("call after the peer came back: %v", err)
		}
	})
}

// Every call ends when the peer goes, whatever state it is in.
func TestLaneLoss(t *testing.T) {
	server := &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool { return false }}
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := start(m, "a", &node{}), start(m, "b", server)
		p := connect(t, a)
		var calls []*Call
		for i := range 500 {
			c := a.NewCall()
			c.Request = *get(fmt.Sprint(i))
			calls = append(calls, c)
		}
		batch := NewBatch(len(calls))
		p.StartBatch(calls, batch)
		single := a.NewCall()
		single.Request = *get("single")
		p.Start(single)
		time.Sleep(10 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = b.Close(ctx)
		<-batch.Done()
		for _, c := range slices.Concat(calls, []*Call{single}) {
			if !c.Detached() {
				t.Error("a call that was told to wait is still of its batch")
				continue
			}
			<-c.Done()
			if !errors.Is(c.Err, ErrDown) {
				t.Errorf("got %v, want %v", c.Err, ErrDown)
			}
			c.Free()
		}
		await(t, "every lane has seen the end", func() bool { return !p.Ready() })
		if _, err := p.Do(t.Context(), get("k")); !errors.Is(err, ErrDown) {
			t.Errorf("got %v, want %v", err, ErrDown)
		}
		// Case transport-8: it comes back on the same address.
		time.Sleep(time.Minute)
		cfg := testConfig(m, "b", &node{})
		cfg.Self.Incarnation = 2
		b = New(cfg)
		b.Serve(m.listen("b"))
		began := time.Now()
		await(t, "peer is back", p.Ready)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("peer came back after %v", took)
		}
		c := a.NewCall()
		c.Request = *get("k")
		p.Start(c)
		<-c.Done()
		if c.Err != nil || c.Reply.Incarnation != 2 || p.Incarnation() != 2 {
			t.Errorf("got %v, incarnations %d and %d, want 2", c.Err, c.Reply.Incarnation, p.Incarnation())
		}
		shut(t, a, b)
	})
}

func TestHandshake(t *testing.T) {
	cases := []struct {
		name string
		id   string // as discovery knows the member at "b"
		edit func(s *Self)
		want string // in the reason; "": ready
	}{
		{"fits", "m", func(*Self) {}, ""},
		{"known by its address", "b", func(*Self) {}, ""},
		{"another cluster", "m", func(s *Self) { s.Cluster = "other" }, "cluster"},
		{"another member", "m", func(s *Self) { s.ID = "c" }, `"c", not "m"`},
		{"another address", "m", func(s *Self) { s.Addr = "elsewhere" }, `"elsewhere", not "b"`},
		{"another address, known by it", "b", func(s *Self) { s.Addr = "elsewhere" }, `"elsewhere", not "b"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				a := start(m, "a", &node{})
				server := &node{}
				cfg := testConfig(m, "b", server)
				cfg.Self.ID = "m"
				c.edit(&cfg.Self)
				b := New(cfg)
				b.Serve(m.listen("b"))
				a.SetPeers([]PeerAddr{{ID: c.id, Addr: "b"}})
				time.Sleep(10 * time.Second)
				p := a.Peer(c.id)
				if s := p.Status(); s.Ready != (c.want == "") || !strings.Contains(s.Reason, c.want) {
					t.Errorf("got %+v, want reason %q", s, c.want)
				}
				if _, err := p.Do(t.Context(), get("k")); (err == nil) != (c.want == "") {
					t.Errorf("call: got %v", err)
				}
				large := get("k")
				large.Op, large.Value, large.HasValue = OpSet, make([]byte, 1<<20), true
				if _, err := p.Do(t.Context(), large); (err == nil) != (c.want == "") {
					t.Errorf("large call: got %v", err)
				}
				shut(t, a, b)
			})
		})
	}
}

// A request that travels alone and was answered leaves nothing behind that the handler would have to look for.
func TestAnsweredBulkSessionsAreNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		server := &node{}
		a, b := start(m, "a", &node{}), start(m, "b", server)
		p := connect(t, a)
		large := get("k")
		large.Op, large.Value, large.HasValue = OpSet, make([]byte, 1<<20), true
		if _, err := p.Do(t.Context(), large); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		server.mu.Lock()
		if server.gone != 0 {
			t.Errorf("got %d sessions gone, want none", server.gone)
		}
		server.mu.Unlock()
		// One that waits, and whose asker leaves.
		server.serve = func(*Session, uint32, *Request, *Reply) bool { return false }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Do(ctx, large); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
		time.Sleep(maxBulkTime)
		server.mu.Lock()
		if server.gone != 1 {
			t.Errorf("got %d sessions gone, want the one that was not answered", server.gone)
		}
		server.mu.Unlock()
		shut(t, a, b)
	})
}

// A peer that cannot be reached says why.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(newMemory(), "a", &node{})
		a.SetPeers([]PeerAddr{{ID: "b", Addr: "b"}})
		time.Sleep(time.Minute)
		if s := a.Peer("b").Status(); s.Ready || !strings.Contains(s.Reason, "connection refused") {
			t.Errorf("got %+v", s)
		}
		shut(t, a)
	})
}

// A client of another protocol version, or without a hello, is refused by the server too.
func TestHandshakeVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := start(m, "a", &node{}), start(m, "b", &node{})
		conn, err := a.dial("b")
		if err != nil {
			t.Fatal(err)
		}
		h := a.hello()
		h.Protocol++
		other := a.hello()
		other.Cluster = "other"
		for _, h := range []*hello{h, other, nil} {
			st, err := conn.NewStream(t.Context(), laneDesc(), laneMethod)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.SendMsg(&requestFrame{Hello: h}); err != nil {
				t.Fatal(err)
			}
			if err := st.RecvMsg(&replyFrame{}); err == nil {
				t.Errorf("hello %+v was not refused", h)
			}
			st, err = conn.NewStream(t.Context(), cohereDesc(), cohereMethod)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.SendMsg(&cohereUp{Hello: h}); err != nil {
				t.Fatal(err)
			}
			if err := st.RecvMsg(&cohereDown{}); err == nil {
				t.Errorf("hello %+v was not refused", h)
			}
			if err := conn.Invoke(t.Context(), bulkMethod, &bulkRequest{Hello: h, Req: *get("k")}, &bulkReply{}); err == nil {
				t.Errorf("hello %+v was not refused", h)
			}
		}
		_ = conn.Close()
		shut(t, a, b)
	})
}

// Case transport-5: a batch larger than a frame, with misses in it.
func TestBatch(t *testing.T) {
	server := &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
		rep.Status, rep.Value, rep.HasValue = StatusHit, []byte(req.Key), true
		if strings.HasSuffix(req.Key, "7") {
			*rep = Reply{Status: StatusAbsent}
		}
		return true
	}}
	pair(t, &node{}, server, func(t *bubble) {
		p, a := t.p, t.a
		calls := make([]*Call, 10_000)
		for i := range calls {
			calls[i] = a.NewCall()
			calls[i].Request = *get(fmt.Sprint(i))
		}
		b := NewBatch(len(calls))
		p.StartBatch(calls, b)
		<-b.Done()
		for i, c := range calls {
			want := StatusHit
			if i%10 == 7 {
				want = StatusAbsent
			}
			if c.Err != nil || c.Reply.Status != want || want == StatusHit && string(c.Reply.Value) != fmt.Sprint(i) {
				t.Fatalf("call %d: got %+v, %v", i, c.Reply, c.Err)
			}
			c.Free()
		}
		// With one that the wire cannot carry.
		bad := a.NewCall()
		bad.Request = *get(strings.Repeat("k", MaxKeyBytes+1))
		good := a.NewCall()
		good.Request = *get("1")
		b = NewBatch(2)
		p.StartBatch([]*Call{bad, good}, b)
		<-b.Done()
		if !errors.Is(bad.Err, ErrRequest) || good.Err != nil {
			t.Errorf("got %v and %v, want %v and nil", bad.Err, good.Err, ErrRequest)
		}
	})
}

// A caller is never held up by a peer that does not read, however much it has to say.
func TestStartNeverBlocks(t *testing.T) {
	var served atomic.Int64
	server := &node{serve: func(_ *Session, _ uint32, _ *Request, rep *Reply) bool {
		served.Add(1)
		rep.Status = StatusStored
		return true
	}}
	pair(t, &node{}, server, func(t *bubble) {
		m, p, a := t.m, t.p, t.a
		m.gate("b").shut()
		value := make([]byte, InlineValueBytes)
		var calls []*Call
		for range 100 {
			c := a.NewCall()
			c.Request = Request{Op: OpSet, Keyspace: "ks", Key: "k", Value: value, HasValue: true, Budget: time.Second}
			began := time.Now()
			p.Start(c)
			if took := time.Since(began); took > 0 {
				t.Fatalf("Start took %v", took)
			}
			calls = append(calls, c)
		}
		for _, c := range calls[:90] {
			if !c.Abandon() {
				t.Error("a call was complete")
			}
		}
		m.gate("b").lift()
		for _, c := range calls[90:] {
			<-c.Done()
			if c.Err != nil || c.Reply.Status != StatusStored {
				t.Errorf("got %+v, %v", c.Reply, c.Err)
			}
			c.Free()
		}
		if got := served.Load(); got > 10+2*windowFrames {
			t.Errorf("%d requests arrived: those that were abandoned before they were sent should not", got)
		}
	})
}

// Answers that come twice, or to ids that were never given, reach nobody.
func TestMisbehavingPeer(t *testing.T) {
	var wg sync.WaitGroup
	server := &node{serve: func(s *Session, id uint32, req *Request, rep *Reply) bool {
		r := Reply{Status: StatusHit, Value: []byte(req.Key), HasValue: true}
		stale := Reply{Status: StatusHit, Value: []byte("stale"), HasValue: true}
		s.Answer(id+7, &stale)
		s.Answer(id+maxSlots-1, &stale)
		wg.Go(func() {
			time.Sleep(time.Duration(1+id%13) * time.Microsecond)
			s.Answer(id, &stale) // the second answer
		})
		if req.Version%2 == 0 {
			s.Answer(id, &r)
			return false
		}
		*rep = r
		return true
	}}
	pair(t, &node{}, server, func(t *bubble) {
		p := t.p
		for range 100 { // ids are used again and again
			var callers sync.WaitGroup
			for i := range 5 {
				callers.Go(func() {
					req := get(fmt.Sprint("key-", i))
					req.Version = uint64(i)
					time.Sleep(time.Duration(i) * time.Microsecond)
					if rep, err := p.Do(t.Context(), req); err != nil || string(rep.Value) != req.Key {
						t.Errorf("%s: got %q, %v", req.Key, rep.Value, err)
					}
				})
			}
			callers.Wait()
		}
		wg.Wait()
	})
}

// Beyond the lane's limits calls fail at once, and everything ends when the peer is found silent.
func TestBusy(t *testing.T) {
	pair(t, &node{}, &node{}, func(t *bubble) {
		m, p, a := t.m, t.p, t.a
		m.gate("b").shut()
		began := time.Now()
		var calls []*Call
		busy := 0
		for range 5000 {
			c := a.NewCall()
			c.Request = *get("k")
			p.Start(c)
			select {
			case <-c.Done():
				if !errors.Is(c.Err, ErrBusy) {
					t.Fatalf("got %v, want %v", c.Err, ErrBusy)
				}
				busy++
				c.Free()
			default:
				calls = append(calls, c)
			}
		}
		if len(calls) != 2*maxQuick {
			t.Errorf("accepted %d calls, want %d", len(calls), 2*maxQuick)
		}
		for _, c := range calls {
			<-c.Done()
			if !errors.Is(c.Err, ErrTimeout) {
				t.Fatalf("got %v, want %v", c.Err, ErrTimeout)
			}
			c.Free()
		}
		if took := time.Since(began); took > testTimeout+20*time.Millisecond {
			t.Errorf("took %v", took)
		}
		m.gate("b").lift()
		await(t, "peer is ready", p.Ready)
		if _, err := p.Do(t.Context(), get("k")); err != nil {
			t.Error(err)
		}
	})
}

// Case transport-4: values of all sizes pass, in both directions, at once and late.
func TestLargeValues(t *testing.T) {
	var stored sync.Map
	var served atomic.Int64
	var wg sync.WaitGroup
	server := &node{serve: func(s *Session, id uint32, req *Request, rep *Reply) bool {
		served.Add(1)
		if req.Op == OpSet {
			stored.Store(strings.Clone(req.Key), req.Value)
			rep.Status = StatusStored
			return true
		}
		v, _ := stored.Load(strings.TrimSuffix(req.Key, "-late"))
		answer := Reply{Status: StatusHit, Value: v.([]byte), HasValue: true, TTL: time.Minute, Seq: 5}
		if strings.HasSuffix(req.Key, "-late") {
			wg.Go(func() {
				time.Sleep(time.Second)
				s.Answer(id, &answer)
			})
			return false
		}
		*rep = answer
		return true
	}}
	pair(t, &node{}, server, func(t *bubble) {
		p := t.p
		sizes := []int{0, 1, scatterBytes, InlineValueBytes, InlineValueBytes + 1, 1 << 20, 4<<20 - 1, 4 << 20, 4<<20 + 1, 8 << 20, MaxValueBytes}
		for _, size := range sizes {
			value := bytes.Repeat([]byte{byte(size%251) + 1}, size)
			key := fmt.Sprint(size)
			set := &Request{Op: OpSet, Keyspace: "ks", Key: key, Value: value, HasValue: true, TTL: time.Minute, Budget: time.Second}
			if rep, err := p.Do(t.Context(), set); err != nil || rep.Status != StatusStored {
				t.Fatalf("set %d: got %+v, %v", size, rep.Status, err)
			}
			for _, suffix := range []string{"", "-late", "-peek"} {
				req := get(key + suffix)
				if suffix == "-peek" {
					req.Op, req.Key = OpPeek, key
				}
				rep, err := p.Do(t.Context(), req)
				if err != nil || rep.Status != StatusHit || !bytes.Equal(rep.Value, value) || !rep.HasValue || rep.Seq != 5 {
					t.Errorf("get %d%s: got status %d, %d bytes, %v", size, suffix, rep.Status, len(rep.Value), err)
				}
			}
		}
		if got, want := served.Load(), int64(4*len(sizes)); got != want {
			t.Errorf("the handler was asked %d times, want %d: large answers are picked up, not asked for again", got, want)
		}
		tooLarge := &Request{Op: OpSet, Keyspace: "ks", Key: "k", Value: make([]byte, MaxValueBytes+1), HasValue: true}
		if _, err := p.Do(t.Context(), tooLarge); !errors.Is(err, ErrRequest) {
			t.Errorf("got %v, want %v", err, ErrRequest)
		}
		if s := p.Status(); s.Breaker != "closed" {
			t.Errorf("got %+v, want a closed breaker", s)
		}
		wg.Wait()
	})
}

// Case transport-14.
func TestBreakerStaysClosed(t *testing.T) {
	server := &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
		switch req.Key {
		case "wait":
			return false
		case "absent":
			rep.Status = StatusAbsent
		case "busy":
			rep.Status = StatusBusy
		case "failed":
			rep.Status, rep.Failure = StatusFailed, Failure{Kind: FailureLoad}
		}
		return true
	}}
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := start(m, "a", &node{}), start(m, "b", server)
		p := connect(t, a)
		for _, key := range []string{"wait", "absent", "busy", "failed"} {
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				_, err := p.Do(ctx, get(key))
				cancel()
				if (key == "wait") != errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%s: got %v", key, err)
				}
			}
			if s := p.Status(); !s.Ready || s.Breaker != "closed" || s.Errors != 0 {
				t.Errorf("%s: got %+v", key, s)
			}
		}
		time.Sleep(time.Minute) // the abandoned calls' deadlines pass
		if s := p.Status(); !s.Ready || s.Breaker != "closed" {
			t.Errorf("got %+v", s)
		}
		shut(t, a, b)
	})
}

// A call that waits at a peer which then freezes does not wait for its whole budget. Case transport-16.
func TestFrozenWhileWaiting(t *testing.T) {
	server := &node{serve: func(*Session, uint32, *Request, *Reply) bool { return false }}
	pair(t, &node{}, server, func(t *bubble) {
		m, p, a := t.m, t.p, t.a
		c := a.NewCall()
		c.Request = *get("k")
		c.Request.Budget = time.Minute
		p.Start(c)
		time.Sleep(3 * time.Second)
		if !p.Ready() {
			t.Error("a peer that lets calls wait is not ready")
		}
		m.gate("b").shut()
		began := time.Now()
		<-c.Done()
		if took := time.Since(began); !errors.Is(c.Err, ErrTimeout) || took > 4*testTimeout {
			t.Errorf("got %v after %v", c.Err, took)
		}
		// Case transport-6: nobody pays any more, and the peer is used again when it is back.
		for range 100 {
			began = time.Now()
			if _, err := p.Do(t.Context(), get("k")); !errors.Is(err, ErrDown) || time.Since(began) > 0 {
				t.Fatalf("got %v after %v", err, time.Since(began))
			}
			time.Sleep(10 * time.Millisecond)
		}
		m.gate("b").lift()
		began = time.Now()
		await(t, "peer is ready", p.Ready)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("peer came back after %v", took)
		}
		shut(t, a)
	})
}

// Case transport-17: many calls wait at one peer at once.
func TestManyWait(t *testing.T) {
	var wg sync.WaitGroup
	server := &node{serve: func(s *Session, id uint32, _ *Request, _ *Reply) bool {
		wg.Go(func() {
			time.Sleep(300 * time.Millisecond)
			s.Answer(id, &Reply{Status: StatusAbsent})
		})
		return false
	}}
	pair(t, &node{}, server, func(t *bubble) {
		p := t.p
		synctest.Wait() // both lanes are there: one alone refuses as many
		began := time.Now()
		var callers sync.WaitGroup
		for i := range 1500 {
			callers.Go(func() {
				if _, err := p.Do(t.Context(), get(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		wg.Wait()
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// The large answers that nobody comes for are forgotten.
func TestParcels(t *testing.T) {
	var ps parcels
	first := ps.keep("a", Reply{Value: make([]byte, 1<<20), TTL: time.Minute, Near: time.Minute, Age: time.Second}, 1)
	if _, ok := ps.take("b", first, 2); ok {
		t.Error("another member took the parcel")
	}
	got, ok := ps.take("a", first, 1+int64(time.Second))
	if !ok || got.Age != 2*time.Second || got.TTL != 59*time.Second || got.Near != 59*time.Second {
		t.Errorf("got %v, %v, %v, %v", ok, got.Age, got.TTL, got.Near)
	}
	if _, ok := ps.take("a", first, 2); ok || ps.bytes != 0 {
		t.Errorf("taken twice; %d bytes left", ps.bytes)
	}
	for range 100 {
		ps.keep("a", Reply{Value: make([]byte, 1<<20)}, 1)
	}
	if ps.bytes > maxParcelBytes || len(ps.kept) != maxParcelBytes>>20 {
		t.Errorf("%d parcels of %d bytes", len(ps.kept), ps.bytes)
	}
	last := ps.keep("a", Reply{}, 1+int64(parcelLife))
	if len(ps.kept) != 1 {
		t.Errorf("%d parcels are left, want the last one", len(ps.kept))
	}
	if _, ok := ps.take("a", last, 1+2*int64(parcelLife)); ok {
		t.Error("took a parcel after its life")
	}
	for range 3 * maxParcels {
		ps.keep("a", Reply{}, 1+int64(parcelLife))
	}
	if len(ps.kept) > maxParcels || len(ps.order) > maxParcels {
		t.Errorf("%d parcels, %d numbers", len(ps.kept), len(ps.order))
	}
}
