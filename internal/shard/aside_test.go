package shard

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nearcache/nearcache/internal/store"
)

// until is a text value that is fresh until the given time.
func until(s string, loaded, end int64) Value {
	return Value{Bytes: []byte(s), LoadedAt: loaded, Soft: end, Hard: end}
}

func wantAside(t *testing.T, s *Shard, key string, now int64, want string) {
	t.Helper()
	got := "nothing"
	if v, _, given := s.Aside(key, now); v != nil && !given {
		got = string(v.Bytes)
	}
	if got != want {
		t.Errorf("Aside(%s) at %d: got %s, want %s", key, now, got, want)
	}
}

// What a member lost is there for its new owner, for nobody else, and not for long.
func TestWhatWasLostIsKeptAside(t *testing.T) {
	s := newTest(Config{})
	fill := func() {
		for _, key := range []string{"a", "b", "c", "d", "keep"} {
			s.Set(key, until("v", 0, 100), Cond{View: 9}, 1)
		}
		s.Set("short", until("v", 0, 7), Cond{View: 9}, 1)
	}
	fill()
	s.Move(Change{View: 2, Fate: losing(""), Now: 5, Until: 10})
	wantValue(t, s, "a", 6, "nothing")
	if r, _ := s.Peek("a", 6); r != nil {
		t.Error("Peek sees what is kept aside")
	}
	wantOutcome(t, s.Set("b", until("w", 6, 100), Cond{View: 9, IfPresent: true}, 6), Rejected)
	wantAside(t, s, "b", 6, "v")
	wantOutcome(t, s.Set("b", until("w", 6, 100), Cond{View: 9}, 6), Stored)
	wantAside(t, s, "b", 6, "nothing") // an older one
	s.Invalidate("c", 0, 6)
	wantAside(t, s, "c", 6, "nothing")
	wantAside(t, s, "a", 9, "v")
	wantAside(t, s, "a", 10, "nothing")
	wantAside(t, s, "short", 6, "v")
	wantAside(t, s, "short", 7, "nothing")
	if _, since, _ := s.Aside("d", 6); since != 5 {
		t.Errorf("lost at %d, want 5", since)
	}
	s.Sweep(9)
	if n := s.Stats().Aside; n != 3 { // a, d, keep; short has expired
		t.Errorf("got %d kept aside, want 3", n)
	}
	s.Sweep(10)
	if st := s.Stats(); st.Aside != 0 || st.AsideBytes != 0 {
		t.Errorf("got %d kept aside, %d bytes, want none", st.Aside, st.AsideBytes)
	}
}

// A key that comes back, or goes on to somebody else, is another one: who owned it meanwhile was told of what this member was not.
func TestWhatWasLostIsGoneWithTheNextChange(t *testing.T) {
	for fate, want := range map[Fate]string{Elsewhere: "v", Gained: "nothing", Changed: "nothing", Stays: "nothing"} {
		s := newTest(Config{})
		s.Set("a", until("v", 0, 100), Cond{View: 1}, 1)
		s.Move(Change{View: 2, Fate: losing(""), Now: 5, Until: 20})
		s.Move(Change{View: 3, Fate: func(string) Fate { return fate }, Now: 6, Until: 21})
		wantAside(t, s, "a", 7, want)
		wantValue(t, s, "a", 7, "nothing")
	}
	s := newTest(Config{})
	s.Set("a", until("v", 0, 100), Cond{View: 1}, 1)
	s.Move(Change{View: 2, Fate: losing(""), Now: 5, Until: 20})
	s.Clear(6)
	wantAside(t, s, "a", 7, "nothing")
}

// What is kept aside has the room that the entries leave, exactly.
func TestWhatIsAsideGoesFirst(t *testing.T) {
	const budget = 100 * (store.EntryOverhead + 14)
	s := newTest(Config{MaxBytes: budget})
	set := func(name string) {
		for i := range 100 {
			s.Set(fmt.Sprintf("%s%03d", name, i), until("0123456789", 0, 100), Cond{View: 9}, 1)
			if st := s.Stats(); st.Bytes+st.AsideBytes > budget {
				t.Fatalf("%d bytes and %d aside, the budget is %d", st.Bytes, st.AsideBytes, budget)
			}
		}
	}
	set("a")
	s.Move(Change{View: 2, Fate: losing(""), Now: 5, Until: 20})
	if n := s.Stats().Aside; n < 90 {
		t.Fatalf("got %d aside, want about all", n)
	}
	s.Resize(budget / 2)
	if n := s.Stats().Aside; n > 50 || n < 40 {
		t.Errorf("half the budget: got %d aside, want half", n)
	}
	s.Resize(budget)
	set("b")
	if st := s.Stats(); st.Evictions > 10 || st.Aside > 10 {
		t.Errorf("got %d evictions and %d aside, want what is aside to go first", st.Evictions, st.Aside)
	}
}

// What an owner that leaves gives away waits for the ring that says so, and is no older than what is known here.
func TestGiven(t *testing.T) {
	s := newTest(Config{})
	wait, owned := Given{View: 1, Until: 50}, Given{View: 1, Kept: true}
	give := func(key string, v Value, g Given, now int64, want bool) {
		t.Helper()
		if got := s.Give(key, v, g, now); got != want {
			t.Errorf("Give(%s, %s): got %v, want %v", key, v.Bytes, got, want)
		}
	}
	s.Invalidate("old", 0, 5)
	give("old", until("v", 5, 100), wait, 6, false)
	give("old", until("v", 5, 100), owned, 6, false)
	give("old", until("v", 6, 100), owned, 6, true)
	s.Invalidate("versions", 7, 5)
	v := until("v", 1, 100)
	give("versions", v, owned, 6, false)
	v.Version = 6
	give("versions", v, owned, 6, false)
	v.Version = 7
	give("versions", v, owned, 6, true)
	give("expired", until("v", 0, 6), wait, 6, false)
	s.Set("there", until("newer", 0, 100), Cond{View: 1}, 6)
	give("there", until("v", 0, 100), owned, 6, false)

	for _, key := range []string{"mine", "other", "gone"} {
		give(key, until("v", 0, 100), wait, 6, true)
	}
	wantValue(t, s, "mine", 7, "nothing")
	wantAside(t, s, "mine", 7, "nothing")
	s.Invalidate("gone", 0, 7)
	tok := mustLease(t, s.Acquire("mine", ask("m", nil), 7)) // as a stand-in
	wantOutcome(t, s.Fill("mine", tok, until("stand-in's", 7, 9), 7), Stored)
	give("mine", until("v", 0, 100), wait, 7, true)
	fates := map[string]Fate{"mine": Gained, "other": Elsewhere, "gone": Gained}
	s.Move(Change{View: 2, Fate: func(key string) Fate { return fates[key] }, Now: 8, Until: 60})
	wantValue(t, s, "mine", 9, "hit v")
	wantValue(t, s, "other", 9, "nothing")
	wantValue(t, s, "gone", 9, "nothing")
	give("mine", until("v", 0, 100), wait, 9, false) // by an old ring
	if n := s.Stats().Aside; n != 1 {
		t.Errorf("got %d aside, want other", n)
	}
	s.Move(Change{View: 3, Fate: func(string) Fate { return Changed }, Now: 10})
	if n := s.Stats().Aside; n != 0 {
		t.Errorf("got %d aside, want none", n)
	}
}

// A value that another owner vouched for ends with a doubt that came after that, not with one before.
func TestVouchedInDoubt(t *testing.T) {
	var limits atomic.Pointer[Limits]
	limits.Store(&Limits{Before: 10, BeforeEnd: 20, End: 1 << 60})
	s := newTest(Config{Limits: &limits})
	v := until("v", 1, 100)
	for vouched, want := range map[int64]int64{0: 20, 9: 20, 10: 100, 11: 100} {
		v.Vouched = vouched
		if got := s.FreshUntil(&v); got != want {
			t.Errorf("vouched for at %d: fresh until %d, want %d", vouched, got, want)
		}
	}
	limits.Store(&Limits{Before: 10, BeforeEnd: 20, Caused: 30, Bound: 7, End: 1 << 60})
	for vouched, want := range map[int64]int64{9: 16, 12: 19, 29: 36, 30: 100} {
		v.Vouched = vouched
		if got := s.FreshUntil(&v); got != want {
			t.Errorf("vouched for at %d, and doubted again: fresh until %d, want %d", vouched, got, want)
		}
	}
}

// Who does not wait is not queued.
func TestAskWithoutAWaiter(t *testing.T) {
	s := newTest(Config{})
	mustLease(t, s.Acquire("a", Ask{Holder: "m", Life: 10}, 1))
	if r := s.Acquire("a", Ask{Holder: "n", Life: 10}, 1); r.Kind != Busy || s.Stats().Waiters != 0 {
		t.Errorf("got %s and %d waiters, want busy and none", describe(r), s.Stats().Waiters)
	}
}

// A copy takes the place of an older one, and of what a stand-in has loaded before, but not of what is newer.
func TestCopiesReplaceWhatIsOlder(t *testing.T) {
	s := newTest(Config{Lag: 10})
	kept := Given{View: 1, Kept: true}
	give := func(what string, v Value, want bool) {
		t.Helper()
		if got := s.Give("k", v, kept, 20); got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	give("the first", until("a", 1, 100), true)
	give("an older one", until("b", 0, 100), false)
	give("a newer one", until("c", 2, 90), true)
	wantValue(t, s, "k", 20, "hit c")
	tok := mustLease(t, s.Acquire("k", Ask{Holder: "m", Life: 100, Fresh: true, View: 1}, 20))
	wantOutcome(t, s.Fill("k", tok, until("stand-in's", 20, 30), 20), Stored)
	give("older than the stand-in's", until("d", 19, 100), false)
	// What a load that began soon after an invalidation may have read too early is a copy for as long (R11).
	s.Invalidate("k", 0, 15)
	give("one from before", until("e", 15, 100), false)
	give("one from soon after", until("f", 16, 100), true)
	wantValue(t, s, "k", 24, "hit f")
	wantValue(t, s, "k", 25, "nothing")
}
