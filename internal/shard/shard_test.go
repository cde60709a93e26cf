package shard

import (
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"testing"
	"time"
)

const second = int64(time.Second)

// newTest makes a Shard that is large enough never to evict in a test.
func newTest(cfg Config) *Shard {
	cfg.Incarnation = 7
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 64 << 20
	}
	return New(cfg)
}

// person is a waiter with a name for messages.
type person struct{ name string }

func (p *person) String() string { return p.name }

// ask is one of member, who waits for 100 s and loads for 10 s.
func ask(member string, w *person) Ask {
	return Ask{Holder: member, Waiter: w, Life: 10 * second, Until: 100 * second}
}

// text is a value loaded at now that lives for a minute.
func text(s string, now int64) Value {
	return Value{Bytes: []byte(s), LoadedAt: now, Soft: now + 60*second, Hard: now + 60*second}
}

func mustLease(t *testing.T, r Result) Token {
	t.Helper()
	if r.Kind != Lease || r.Token == (Token{}) {
		t.Fatalf("got %+v, want a lease", r)
	}
	return r.Token
}

func mustWait(t *testing.T, s *Shard, key string, a Ask, now int64) {
	t.Helper()
	if r := s.Acquire(key, a, now); r.Kind != Waiting {
		t.Fatalf("Acquire of %v: got %+v, want Waiting", a.Waiter, r)
	}
}

// wakes describes wakes, tokens left out, in their order.
func wakes(ws []Wake) []string {
	var out []string
	for _, w := range ws {
		out = append(out, fmt.Sprintf("%v:%s", w.Waiter, describe(w.Result)))
	}
	return out
}

func describe(r Result) string {
	switch r.Kind {
	case Hit:
		s := "hit " + string(r.Value.Bytes)
		if r.Value.Absent {
			s = "absent"
		}
		if r.Uncached {
			s += " uncached"
		}
		return s
	case Lease:
		return "lease"
	case Stale:
		return "stale " + string(r.Value.Bytes)
	case Waiting:
		return "waiting"
	case Failed:
		return fmt.Sprint("failed ", r.Failure)
	case TimedOut:
		return "timed out"
	case Moved:
		return "moved"
	case Busy:
		return "busy"
	case Held:
		return "held"
	}
	return fmt.Sprint("kind ", r.Kind)
}

func wantWakes(t *testing.T, eff Effect, want ...string) {
	t.Helper()
	if got := wakes(eff.Wakes); !reflect.DeepEqual(got, want) {
		t.Fatalf("wakes: got %q, want %q", got, want)
	}
}

func wantOutcome(t *testing.T, eff Effect, want Outcome) {
	t.Helper()
	if eff.Outcome != want {
		t.Fatalf("outcome: got %d, want %d", eff.Outcome, want)
	}
}

func wantValue(t *testing.T, s *Shard, key string, now int64, want string) {
	t.Helper()
	got := "nothing"
	if v, _ := s.Get(key, now); v != nil {
		got = describe(Result{Kind: Hit, Value: v})
	}
	if got != want {
		t.Fatalf("Get(%q) at %v: got %s, want %s", key, time.Duration(now), got, want)
	}
}

// wantIdle checks that no lease and no waiter is left.
func wantIdle(t *testing.T, s *Shard) {
	t.Helper()
	if st := s.Stats(); st.Leases != 0 || st.Waiters != 0 {
		t.Fatalf("got %d leases and %d waiters, want none", st.Leases, st.Waiters)
	}
	for i := range s.tables {
		if n := len(s.tables[i].due); n != 0 {
			t.Fatalf("table %d: %d deadlines left", i, n)
		}
	}
}

func TestMissLoadHit(t *testing.T) {
	s := newTest(Config{})
	wantValue(t, s, "k", 1, "nothing")
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 1))
	eff := s.Fill("k", tok, text("v", 1), 2)
	wantOutcome(t, eff, Stored)
	wantWakes(t, eff)
	wantValue(t, s, "k", 3, "hit v")
	if r := s.Acquire("k", ask("b", nil), 3); describe(r) != "hit v" {
		t.Fatalf("Acquire after the fill: got %s, want hit v", describe(r))
	}
	wantIdle(t, s)
}

// Case L1-9 for the owner's copy: to the nanosecond of the clock it is given.
func TestLifetimes(t *testing.T) {
	s := newTest(Config{})
	v := text("v", 0)
	v.Soft, v.Hard = 5*second, 8*second
	s.Set("k", v, Cond{}, 1)
	wantValue(t, s, "k", 5*second-1, "hit v")
	wantValue(t, s, "k", 5*second, "nothing")
	if got, _ := s.Peek("k", 8*second-1); got == nil || s.Fresh(got, 8*second-1) {
		t.Fatalf("Peek before the hard end: got %v, want a stale value", got)
	}
	if got, _ := s.Peek("k", 8*second); got != nil {
		t.Fatalf("Peek at the hard end: got %v, want nothing", got)
	}
	mustLease(t, s.Acquire("k", ask("a", nil), 6*second))
}

func TestKeyMayAliasABuffer(t *testing.T) {
	s := newTest(Config{})
	buf := []byte("key1")
	alias := func(name string) string {
		copy(buf, name)
		return unsafeString(buf)
	}
	tok := mustLease(t, s.Acquire(alias("key1"), ask("a", nil), 1))
	s.Set(alias("key2"), text("two", 1), Cond{}, 1)
	s.Invalidate(alias("key3"), 9, 1)
	alias("xxxx")
	wantOutcome(t, s.Fill("key1", tok, text("one", 1), 1), Stored)
	alias("xxxx")
	wantValue(t, s, "key1", 2, "hit one")
	wantValue(t, s, "key2", 2, "hit two")
	if _, least := s.Invalidated("key3"); least != 9 {
		t.Fatalf("Invalidated(key3): got lowest version %d, want 9", least)
	}
}

func TestGetDoesNotAllocate(t *testing.T) {
	s := newTest(Config{Seq: new(atomic.Uint64).Load})
	s.Set("k", text("v", 1), Cond{}, 1)
	if n := testing.AllocsPerRun(100, func() {
		if v, _ := s.Get("k", 2); v == nil {
			t.Error("got nothing, want a hit")
		}
	}); n != 0 {
		t.Fatalf("got %v allocations, want 0", n)
	}
}

func TestStatsAndRange(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("a", ask("x", nil), 1))
	mustWait(t, s, "a", ask("y", &person{"w"}), 1)
	s.Set("b", text("v", 1), Cond{}, 1)
	s.Set("c", Value{Absent: true, Soft: second, Hard: second}, Cond{}, 1)
	st := s.Stats()
	if st.Leases != 1 || st.Waiters != 1 || st.Entries != 2 {
		t.Fatalf("got %d leases, %d waiters, %d entries, want 1, 1, 2", st.Leases, st.Waiters, st.Entries)
	}
	seen := map[string]bool{}
	s.Range(func(key string, v *Value) bool { seen[key] = v.Absent; return true })
	if want := map[string]bool{"b": false, "c": true}; !reflect.DeepEqual(seen, want) {
		t.Fatalf("Range: got %v, want %v", seen, want)
	}
	if negative, expired := s.Stats().Counted, s.Expired(1); negative != 1 || expired != 0 {
		t.Fatalf("got %d negative, %d expired, want one negative entry", negative, expired)
	}
	if negative, expired := s.Stats().Counted, s.Expired(second); negative != 1 || expired != 1 {
		t.Fatalf("after its lifetime: got %d negative, %d expired, want both", negative, expired)
	}
	s.Sweep(2 * second)
	if n := s.Stats().Entries; n != 1 {
		t.Fatalf("entries after the negative one expired: got %d, want 1", n)
	}
	s.Fill("a", tok, text("v", 1), 2)
	wantIdle(t, s)
}

func TestTinyBudgets(t *testing.T) {
	for _, budget := range []int64{-1, 1, 100, 1 << 10} {
		s := New(Config{MaxBytes: budget})
		tok := s.Acquire("k", ask("a", nil), 1).Token
		mustWait(t, s, "k", ask("b", &person{"w"}), 1)
		v := text("v", 1)
		v.Bytes = make([]byte, 4<<10)
		eff := s.Fill("k", tok, v, 1)
		wantOutcome(t, eff, Passed)
		if w := eff.Wakes; len(w) != 1 || !w[0].Result.Uncached || len(w[0].Result.Value.Bytes) != 4<<10 {
			t.Fatalf("budget %d: got wakes %q, want the value, uncached", budget, wakes(w))
		}
		wantIdle(t, s)
	}
}

func BenchmarkGet(b *testing.B) {
	s := newTest(Config{Seq: new(atomic.Uint64).Load})
	s.Set("some-key-of-24-characters", text("v", 1), Cond{}, 1)
	b.ReportAllocs()
	for b.Loop() {
		if v, _ := s.Get("some-key-of-24-characters", 2); v == nil {
			b.Fatal("miss")
		}
	}
}

func BenchmarkMissFillInvalidate(b *testing.B) {
	s := newTest(Config{})
	keys := make([]string, 1<<12)
	for i := range keys {
		keys[i] = fmt.Sprint("some-key-", i)
	}
	bytes := make([]byte, 1<<10)
	a := ask("a", nil)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		key := keys[i&(len(keys)-1)]
		i++
		tok := s.Acquire(key, a, 1).Token
		s.Fill(key, tok, Value{Bytes: bytes, Soft: second, Hard: second}, 1)
		s.Invalidate(key, 0, 1)
	}
}

// R7: what was loaded before Limits.Before ends at BeforeEnd, and everything at End, for every operation; what is loaded later is not
// concerned.
func TestLimits(t *testing.T) {
	var limits atomic.Pointer[Limits]
	s := newTest(Config{Limits: &limits})
	put := func(key string, loaded int64) {
		v := text("v", 0)
		v.LoadedAt, v.Soft, v.Hard = loaded, loaded+100*second, loaded+100*second
		s.Set(key, v, Cond{}, loaded)
	}
	put("old", 1*second)
	put("new", 3*second)
	limits.Store(&Limits{Before: 2 * second, BeforeEnd: 4 * second, End: 6 * second})
	for _, c := range []struct {
		key  string
		now  int64
		want string
	}{
		{"old", 4*second - 1, "hit v"},
		{"old", 4 * second, "nothing"},
		{"new", 6*second - 1, "hit v"},
		{"new", 6 * second, "nothing"},
	} {
		wantValue(t, s, c.key, c.now, c.want)
	}
	if got, _ := s.Peek("old", 3*second); got == nil || s.FreshUntil(got) != 4*second {
		t.Errorf("FreshUntil of the old value: got %v, want the limit", got)
	}
	mustLease(t, s.Acquire("old", ask("a", nil), 5*second))
	limits.Store(&Limits{Before: 2 * second, BeforeEnd: 4 * second, End: math.MaxInt64})
	wantValue(t, s, "new", 50*second, "hit v")
	if eff := s.Set("other", text("v", 0), Cond{IfPresent: true}, 5*second); eff.Outcome != Rejected {
		t.Errorf("Set where nothing is: got %v", eff.Outcome)
	}
	put("old", 7*second)
	wantValue(t, s, "old", 50*second, "hit v")
}

// R7: a second doubt gives no more time to what the first one has ended, though nobody has asked for it since.
func TestLimitsOfASecondDoubt(t *testing.T) {
	var limits atomic.Pointer[Limits]
	s := newTest(Config{Limits: &limits})
	for key, loaded := range map[string]int64{"old": second, "new": 9 * second} {
		s.Set(key, Value{Bytes: []byte("v"), LoadedAt: loaded, Soft: 99 * second, Hard: 99 * second}, Cond{}, loaded)
	}
	limits.Store(&Limits{Before: 20 * second, BeforeEnd: 21 * second, Ended: 2 * second, End: math.MaxInt64})
	wantValue(t, s, "old", 20*second, "nothing")
	wantValue(t, s, "new", 20*second, "hit v")
	wantValue(t, s, "new", 21*second, "nothing")
}
