package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		listed string  // addresses on the list
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
		{"the list names both", Session{Member: "x", Addr: "two", Incarnation: 6}, "one two", 0, codes.AlreadyExists},
		{"the list names neither", Session{Member: "x", Addr: "two", Incarnation: 6}, "three", 0, codes.AlreadyExists},
	}
	for i := range cases {
		c := &cases[i]
		t.Run(c.name, func(t *testing.T) {
			var cs claims
			listed := func(_, addr string) bool { return slices.Contains(strings.Fields(c.listed), addr) }
			first := &Session{Member: "x", Addr: "one", Incarnation: 5}
			if err := cs.enter(first, listed, 0, silence); err != nil {
				t.Fatal(err)
			}
			next := &c.next
			err := cs.enter(next, listed, c.now, silence)
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
			if err := cs.enter(&Session{Member: "x", Addr: "three", Incarnation: 1}, listed, 0, silence); err != nil {
				t.Error(err)
			}
		})
	}
}

// A member's streams are bounded, and so are its bulk requests.
func TestClaimsBound(t *testing.T) {
	var cs claims
	listed := func(string, string) bool { return false }
	for _, bulk := range []bool{false, true} {
		n := 0
		var err error
		for ; err == nil && n < 1000; n++ {
			err = cs.enter(&Session{Member: "x", Addr: "one", Bulk: bulk}, listed, 0, 1)
		}
		want := maxMemberStreams
		if bulk {
			want = 2 * maxBulkStreams
		}
		if status.Code(err) != codes.ResourceExhausted || n-1 != want {
			t.Errorf("bulk %v: %d sessions, then %v; want %d", bulk, n-1, err, want)
		}
	}
	if err := cs.enter(&Session{Member: "y", Addr: "two"}, listed, 0, 1); err != nil {
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
		time.Sleep(contestedFor / 3) // all its streams have tried again
		if first.Contested() {
			t.Error("the first is contested, and has been accepted")
		}
		shut(t, first, c)
		if n := c.claims.streams("x"); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// Two processes with one ID and nobody else: they find each other, and the one that came first keeps the ID.
func TestSameIDAlone(t *testing.T) {
	one, two := PeerAddr{ID: "x", Addr: "one"}, PeerAddr{ID: "x", Addr: "two"}
	cases := []struct {
		name    string
		first   []PeerAddr // the list of the one that started first, at one
		second  []PeerAddr // and of the one at two
		clock   uint64     // start time of the second; the first's is 5
		refused string     // the address of the one that gives way
	}{
		{"known by their addresses", []PeerAddr{{ID: "two", Addr: "two"}}, []PeerAddr{{ID: "one", Addr: "one"}}, 6, "two"},
		{"the same, from the other side", []PeerAddr{{ID: "two", Addr: "two"}}, []PeerAddr{{ID: "one", Addr: "one"}}, 4, "one"},
		{"started at the same time", []PeerAddr{{ID: "two", Addr: "two"}}, []PeerAddr{{ID: "one", Addr: "one"}}, 5, "two"},
		{"the list names the first", []PeerAddr{one}, []PeerAddr{one}, 6, "two"},
		{"the list names the first, whose clock is ahead", []PeerAddr{one}, []PeerAddr{one}, 4, "two"},
		{"the list names the second", []PeerAddr{two}, []PeerAddr{two}, 6, "one"},
		{"the lists name each its own", []PeerAddr{one}, []PeerAddr{two}, 6, ""},
	}
	for i := range cases {
		c := &cases[i]
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				first := process(m, "one", 5)
				second := process(m, "two", c.clock)
				first.SetPeers(c.first)
				second.SetPeers(c.second)
				time.Sleep(time.Second)
				for range 50 {
					time.Sleep(100 * time.Millisecond)
					for _, x := range []*Transport{first, second} {
						if got, want := x.Contested(), x.cfg.Self.Addr == c.refused; got != want {
							t.Fatalf("the one at %s is contested: %v, want %v", x.cfg.Self.Addr, got, want)
						}
					}
				}
				// The other one goes.
				left, stays := first, second
				if c.refused == "one" {
					left, stays = second, first
				}
				shut(t, left)
				time.Sleep(2 * contestedFor)
				if stays.Contested() {
					t.Error("the one that is left is contested")
				}
				shut(t, stays)
			})
		})
	}
}

// process starts a member x at an address.
func process(m *memory, addr string, incarnation uint64) *Transport {
	cfg := testConfig(m, "x", &node{})
	cfg.Self.Addr, cfg.Self.Incarnation = addr, incarnation
	x := New(cfg)
	x.Serve(m.listen(addr))
	return x
}

// A third member that knows two processes by their addresses only, and hears one ID from both, stays with the first.
func TestSameIDByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c := start(m, "c", &node{})
		c.SetPeers([]PeerAddr{{ID: "one", Addr: "one"}, {ID: "two", Addr: "two"}})
		first, second := process(m, "one", 5), process(m, "two", 6)
		first.SetPeers([]PeerAddr{{ID: "c", Addr: "c"}})
		await(t, "the first is connected", first.Peer("c").Ready)
		second.SetPeers([]PeerAddr{{ID: "c", Addr: "c"}})
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			if !first.Peer("c").Ready() || first.Contested() {
				t.Fatalf("got %+v of the first, contested: %v", first.Peer("c").Status(), first.Contested())
			}
		}
		if !second.Contested() {
			t.Error("the second is not contested")
		}
		shut(t, first, second, c)
	})
}

// A peer that is replaced has left before the one that takes its place connects.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a, one, two := start(m, "a", &node{}), process(m, "one", 5), process(m, "two", 6)
		a.SetPeers([]PeerAddr{{ID: "x", Addr: "one"}})
		p := a.Peer("x")
		await(t, "the first is connected", p.Ready)
		a.SetPeers([]PeerAddr{{ID: "x", Addr: "two"}})
		if !p.Left() || a.Peer("x").Left() {
			t.Errorf("left: %v, and the one in its place: %v; want only the first", p.Left(), a.Peer("x").Left())
		}
		shut(t, a, one, two)
	})
}

// A member whose list has it at a second address dials itself. That is no other process.
func TestDialsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		x := process(m, "one", 5)
		x.Serve(m.listen("alias"))
		for _, ps := range [][]PeerAddr{{{ID: "alias", Addr: "alias"}}, {{ID: "x", Addr: "alias"}}} {
			x.SetPeers(ps)
			time.Sleep(time.Second)
			if x.Contested() {
				t.Errorf("contested by itself at %v", ps)
			}
		}
		shut(t, x)
	})
}

// The address that the list has for the own ID may be another member's by now: it is let alone.
func TestRivalIsAnotherMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		x, y := process(m, "one", 5), start(m, "y", &node{})
		x.SetPeers([]PeerAddr{{ID: "x", Addr: "y"}})
		time.Sleep(5 * time.Second)
		if x.Contested() || y.Contested() {
			t.Errorf("contested: %v, %v; want neither", x.Contested(), y.Contested())
		}
		shut(t, x, y)
		if n := y.claims.streams("x"); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
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
