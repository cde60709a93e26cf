package transport

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Who has an ID, and who may take it over.
func TestClaims(t *testing.T) {
	const silence = int64(time.Second)
	cases := []struct {
		name   string
		next   Session // who comes second; the first is {x, one, 5}, heard at 0
		listed string
		now    int64
		want   codes.Code
	}{
		{"another stream of the same process", Session{Member: "x", Addr: "one", Incarnation: 5}, "", 0, codes.OK},
		{"another member", Session{Member: "y", Addr: "two", Incarnation: 1}, "", 0, codes.OK},
		{"newer, the first lives", Session{Member: "x", Addr: "one", Incarnation: 6}, "", silence - 1, codes.AlreadyExists},
		{"newer, the first is silent", Session{Member: "x", Addr: "one", Incarnation: 6}, "", silence, codes.OK},
		{"newer elsewhere, the first is silent", Session{Member: "x", Addr: "two", Incarnation: 6}, "", silence, codes.OK},
		{"newer elsewhere, the first lives", Session{Member: "x", Addr: "two", Incarnation: 6}, "", 0, codes.AlreadyExists},
		{"restarted with the clock set back", Session{Member: "x", Addr: "one", Incarnation: 4}, "", silence, codes.OK},
		{"the same, the first lives", Session{Member: "x", Addr: "one", Incarnation: 4}, "", silence - 1, codes.AlreadyExists},
		{"same incarnation elsewhere", Session{Member: "x", Addr: "two", Incarnation: 5}, "", 0, codes.AlreadyExists},
		{"the list names the second", Session{Member: "x", Addr: "two", Incarnation: 4}, "two", 0, codes.OK},
		{"the list names the first", Session{Member: "x", Addr: "two", Incarnation: 6}, "one", 0, codes.AlreadyExists},
		{"the list names neither", Session{Member: "x", Addr: "two", Incarnation: 6}, "three", 0, codes.AlreadyExists},
	}
	for i := range cases {
		c := &cases[i]
		t.Run(c.name, func(t *testing.T) {
			var cs claims
			first := &Session{Member: "x", Addr: "one", Incarnation: 5}
			if err := cs.enter(first, "", 0, silence); err != nil {
				t.Fatal(err)
			}
			next := &c.next
			err := cs.enter(next, c.listed, c.now, silence)
			if status.Code(err) != c.want {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			taken := err == nil && next.Member == "x" && (next.Addr != "one" || next.Incarnation != 5)
			if got := first.replaced.Load(); got != taken {
				t.Errorf("the first is replaced: %v, want %v", got, taken)
			}
			cs.leave(first)
			if err == nil {
				if next.replaced.Load() {
					t.Error("the second is replaced")
				}
				cs.leave(next)
			}
			if len(cs.held) != 0 {
				t.Errorf("%d claims are left", len(cs.held))
			}
			// When nobody has it any more, anybody may.
			if err := cs.enter(&Session{Member: "x", Addr: "three", Incarnation: 1}, "", 0, silence); err != nil {
				t.Error(err)
			}
		})
	}
}

// A member's streams are bounded, and so are its bulk requests.
func TestClaimsBound(t *testing.T) {
	var cs claims
	for _, bulk := range []bool{false, true} {
		n := 0
		var err error
		for ; err == nil && n < 1000; n++ {
			err = cs.enter(&Session{Member: "x", Addr: "one", Bulk: bulk}, "", 0, 1)
		}
		want := maxMemberStreams
		if bulk {
			want = 2 * maxBulkStreams
		}
		if status.Code(err) != codes.ResourceExhausted || n-1 != want {
			t.Errorf("bulk %v: %d sessions, then %v; want %d", bulk, n-1, err, want)
		}
	}
	if err := cs.enter(&Session{Member: "y", Addr: "two"}, "", 0, 1); err != nil {
		t.Errorf("another member: %v", err)
	}
}

// Two processes with one ID: the one that came first stays, the other one is refused and knows it, and it gets in when the
// first is gone.
func TestSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		member := func(id, addr string, incarnation uint64) *Transport {
			cfg := testConfig(m, id, &node{})
			cfg.Self.Addr, cfg.Self.Incarnation = addr, incarnation
			x := New(cfg)
			x.Serve(m.listen(addr))
			return x
		}
		c := member("c", "c", 1)
		first, second := member("x", "one", 1), member("x", "two", 2)
		to := []PeerAddr{{ID: "c", Addr: "c"}}
		first.SetPeers(to)
		await(t, "the first is connected", first.Peer("c").Ready)
		second.SetPeers(to)
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			if second.Peer("c").Ready() || !first.Peer("c").Ready() {
				t.Fatalf("got %+v and %+v", first.Peer("c").Status(), second.Peer("c").Status())
			}
		}
		if !second.Contested() || first.Contested() || c.Contested() {
			t.Errorf("contested: %v, %v, %v; want only the second", first.Contested(), second.Contested(), c.Contested())
		}
		if s := second.Peer("c").Status(); s.Reason == "" {
			t.Error("the second does not know why it is refused")
		}
		large := &Request{Op: OpSet, Keyspace: "ks", Key: "k", Value: make([]byte, 1<<20), HasValue: true, Budget: time.Second}
		if _, err := first.Peer("c").Do(t.Context(), large); err != nil {
			t.Errorf("a large value of the first: %v", err)
		}
		// The list of c decides for the second.
		c.SetPeers([]PeerAddr{{ID: "x", Addr: "two"}})
		await(t, "the second is connected", func() bool { return second.Peer("c").Ready() && c.Peer("x").Ready() })
		if _, err := first.Peer("c").Do(t.Context(), get("k")); !errors.Is(err, ErrDown) {
			t.Errorf("a call of the first: got %v, want %v", err, ErrDown)
		}
		time.Sleep(5 * time.Second)
		if second.Contested() || !first.Contested() {
			t.Errorf("contested: %v, %v; want only the first", first.Contested(), second.Contested())
		}
		shut(t, second)
		await(t, "the first is connected again", first.Peer("c").Ready)
		time.Sleep(2 * contestedFor)
		if first.Contested() {
			t.Error("the first is contested, and alone")
		}
		shut(t, first, c)
		if n := c.claims.streams("x"); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// A peer that is replaced has left before the one that takes its place connects.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, b := start(m, "a", &node{}), start(m, "b", &node{})
		p := connect(t, a)
		a.SetPeers([]PeerAddr{{ID: "b", Addr: "elsewhere"}})
		if !p.Left() || a.Peer("b").Left() {
			t.Errorf("left: %v, and the one in its place: %v; want only the first", p.Left(), a.Peer("b").Left())
		}
		shut(t, a, b)
	})
}

// A member that was restarted gets in although the connections of its former life are still open: its machine went away without a
// word.
func TestTakeOverSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c := start(m, "c", &node{})
		member := func(incarnation uint64) *Transport {
			cfg := testConfig(m, "x", &node{})
			cfg.Self.Incarnation = incarnation
			return New(cfg)
		}
		first := member(2)
		first.SetPeers([]PeerAddr{{ID: "c", Addr: "c"}})
		await(t, "the first is connected", first.Peer("c").Ready)
		m.gate("c").shut() // what it sends does not arrive any more
		time.Sleep(100 * time.Millisecond)
		m.split("c")
		second := member(1) // its clock was set back
		began := time.Now()
		second.SetPeers([]PeerAddr{{ID: "c", Addr: "c"}})
		await(t, "the second is connected", second.Peer("c").Ready)
		if took := time.Since(began); took < 500*time.Millisecond || took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		for i := range 100 {
			if _, err := second.Peer("c").Do(t.Context(), get(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = first.Close(ctx)
		shut(t, second, c)
	})
}
