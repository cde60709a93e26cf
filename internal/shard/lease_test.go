package shard

import (
	"errors"
	"testing"
	"time"
)

// Case lease-3.
func TestDeadHolderDelaysOneLifetime(t *testing.T) {
	s := newTest(Config{})
	dead := mustLease(t, s.Acquire("k", ask("dead", nil), 0))
	impatient := ask("a", &person{"impatient"})
	impatient.Until = 300e6
	mustWait(t, s, "k", impatient, 1)
	mustWait(t, s, "k", ask("b", &person{"first"}), 2)
	mustWait(t, s, "k", ask("c", &person{"second"}), 3)
	s.HolderGone("dead", second)
	wantWakes(t, s.Tick(300e6), "impatient:timed out")
	wantWakes(t, s.Tick(second-1))
	eff := s.Tick(second)
	wantWakes(t, eff, "first:lease")
	if len(eff.Revoked) != 1 || eff.Revoked[0] != (Revoked{Key: "k", Token: dead, Holder: "dead"}) {
		t.Fatalf("revoked: got %v, want the dead holder's", eff.Revoked)
	}
	wantOutcome(t, s.Fill("k", dead, text("late", 0), second+1), Rejected)
	eff = s.Fill("k", eff.Wakes[0].Result.Token, text("v", second), second+2)
	wantOutcome(t, eff, Stored)
	wantWakes(t, eff, "second:hit v")
	wantIdle(t, s)
	if st := s.Stats(); st.Expired != 1 || st.RefusedLease != 1 {
		t.Fatalf("got %d expired leases and %d rejected fills, want 1 and 1", st.Expired, st.RefusedLease)
	}
}

func TestHolderComesBackInTime(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	mustWait(t, s, "k", ask("b", &person{"w"}), 1)
	s.HolderGone("a", second)
	s.HolderGone("other", 1)
	s.HolderBack("a")
	wantWakes(t, s.Tick(2*second))
	eff := s.Fill("k", tok, text("v", 0), 3*second)
	wantOutcome(t, eff, Stored)
	wantWakes(t, eff, "w:hit v")
	wantIdle(t, s)
}

// Case lease-4.
func TestSupersededHolderCannotStore(t *testing.T) {
	s := newTest(Config{})
	a := ask("one", nil)
	a.Life = second / 2
	first := mustLease(t, s.Acquire("k", a, 0))
	second1 := mustLease(t, s.Acquire("k", ask("two", nil), second/2)) // expired, and nobody waits: no Tick needed
	wantOutcome(t, s.Fill("k", second1, text("v2", second/2), second), Stored)
	wantOutcome(t, s.Fill("k", first, text("v1", 0), 3*second/2), Rejected)
	wantValue(t, s, "k", 3*second/2, "hit v2")
	if n := s.Stats().RefusedLease; n != 1 {
		t.Fatalf("rejected fills: got %d, want 1", n)
	}
}

func TestExpiredLeaseIsRefusedBeforeTheTick(t *testing.T) {
	for _, op := range []string{"fill", "release"} {
		t.Run(op, func(t *testing.T) {
			s := newTest(Config{})
			tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
			mustWait(t, s, "k", ask("b", &person{"w"}), 1)
			mustWait(t, s, "k", ask("c", &person{"x"}), 10*second) // queues behind w, does not overtake
			var eff Effect
			if op == "fill" {
				eff = s.Fill("k", tok, text("late", 0), 10*second)
				wantOutcome(t, eff, Rejected)
			} else {
				eff = s.Release("k", tok, LoadFailed, "late", 10*second)
			}
			wantWakes(t, eff, "w:lease")
			wantValue(t, s, "k", 10*second, "nothing")
		})
	}
}

func TestTokenOfAnotherIncarnationOrKey(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	other := mustLease(t, s.Acquire("l", ask("a", nil), 0))
	old := tok
	old.Incarnation--
	for _, bad := range []Token{old, other, {}} {
		wantOutcome(t, s.Fill("k", bad, text("v", 0), 1), Rejected)
		wantWakes(t, s.Release("k", bad, LoadFailed, "no", 1))
	}
	wantOutcome(t, s.Fill("k", tok, text("v", 0), 1), Stored)
	wantOutcome(t, s.Fill("k", tok, text("again", 0), 1), Rejected)
	wantValue(t, s, "k", 1, "hit v")
}

// Case lease-5.
func TestEveryEndGivesTheLeaseBack(t *testing.T) {
	absent := Value{Absent: true, Soft: 60 * second, Hard: 60 * second}
	large := text("", 0)
	large.Bytes = make([]byte, 1<<20)
	expired := text("v", 0)
	expired.Soft, expired.Hard = 0, 0
	failure := errors.New("no")
	for _, c := range []struct {
		name string
		end  func(s *Shard, tok Token) Effect
		// what the one who waits gets, what one who comes later gets, and what is resident
		wait, later, resident string
	}{
		{"value", func(s *Shard, tok Token) Effect { return s.Fill("k", tok, text("v", 0), 1) }, "hit v", "hit v", "hit v"},
		{"not found", func(s *Shard, tok Token) Effect { return s.Fill("k", tok, absent, 1) }, "absent", "absent", "absent"},
		{"not found, not kept", func(s *Shard, tok Token) Effect { return s.Pass("k", tok, absent, 1) }, "absent uncached", "lease", "nothing"},
		{"error", func(s *Shard, tok Token) Effect { return s.Release("k", tok, LoadFailed, failure, 1) }, "failed no", "lease", "nothing"},
		{"cancel", func(s *Shard, tok Token) Effect { return s.Release("k", tok, Abandoned, nil, 1) }, "lease", "waiting", "nothing"},
		{"shed", func(s *Shard, tok Token) Effect { return s.Release("k", tok, Shed, failure, 1) }, "lease", "waiting", "nothing"},
		{"too large", func(s *Shard, tok Token) Effect { return s.Fill("k", tok, large, 1) }, "hit  uncached", "lease", "nothing"},
		{"lifetime over", func(s *Shard, tok Token) Effect { return s.Fill("k", tok, expired, 1) }, "hit v uncached", "lease", "nothing"},
		{"not to be kept", func(s *Shard, tok Token) Effect { return s.Pass("k", tok, text("v", 0), 1) }, "hit v uncached", "lease", "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTest(Config{MaxBytes: 1 << 18})
			tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
			mustWait(t, s, "k", ask("b", &person{"w"}), 0)
			eff := c.end(s, tok)
			for i := range eff.Wakes { // the large value is no reading matter
				if v := eff.Wakes[i].Result.Value; v != nil && len(v.Bytes) > 10 {
					eff.Wakes[i].Result.Value = &Value{}
				}
			}
			wantWakes(t, eff, "w:"+c.wait)
			wantValue(t, s, "k", 2, c.resident)
			later := s.Acquire("k", ask("c", &person{"x"}), 2)
			if got := describe(later); got != c.later {
				t.Fatalf("later ask: got %s, want %s", got, c.later)
			}
			for _, r := range []Result{eff.Wakes[0].Result, later} {
				if r.Kind == Lease {
					s.Fill("k", r.Token, text("v", 2), 2)
				}
			}
			wantIdle(t, s)
		})
	}
}

// Case lease-6.
func TestValueThatCannotBeStoredMakesNoQueue(t *testing.T) {
	s := newTest(Config{MaxBytes: 1 << 18})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	for range 100 {
		mustWait(t, s, "k", ask("b", &person{"w"}), 0)
	}
	v := text("", 0)
	v.Bytes = make([]byte, 1<<20)
	eff := s.Fill("k", tok, v, 1)
	wantOutcome(t, eff, Passed)
	if len(eff.Wakes) != 100 {
		t.Fatalf("got %d wakes, want all 100 waiters served by the one load", len(eff.Wakes))
	}
	for _, w := range eff.Wakes {
		if w.Result.Kind != Hit || !w.Result.Uncached || len(w.Result.Value.Bytes) != 1<<20 {
			t.Fatalf("got %s, want the value, uncached", describe(w.Result))
		}
	}
	wantIdle(t, s)
}

func TestShedPassesOnceToAnotherMember(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	late := ask("b", &person{"late"})
	late.Until = 5
	mustWait(t, s, "k", late, 1)
	mustWait(t, s, "k", ask("a", &person{"same"}), 1)
	mustWait(t, s, "k", ask("c", &person{"other"}), 1)
	mustWait(t, s, "k", ask("d", &person{"third"}), 1)
	eff := s.Release("k", tok, Shed, "full", 5)
	wantWakes(t, eff, "other:lease")
	eff = s.Release("k", eff.Wakes[0].Result.Token, Shed, "full too", 6)
	wantWakes(t, eff, "late:failed full too", "same:failed full too", "third:failed full too")
	wantIdle(t, s)
}

func TestShedWithNobodyElsewhere(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	mustWait(t, s, "k", ask("a", &person{"same"}), 1)
	wantWakes(t, s.Release("k", tok, Shed, "full", 5), "same:failed full")
	wantIdle(t, s)
}

func TestAbandonedSkipsThoseWhoseTimeIsOver(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	late := ask("b", &person{"late"})
	late.Until = 5
	mustWait(t, s, "k", late, 1)
	mustWait(t, s, "k", ask("b", &person{"next"}), 1)
	mustWait(t, s, "k", ask("c", &person{"last"}), 1)
	eff := s.Release("k", tok, Abandoned, nil, 5)
	wantWakes(t, eff, "late:timed out", "next:lease")
	eff = s.Release("k", eff.Wakes[1].Result.Token, Abandoned, nil, 6)
	wantWakes(t, eff, "last:lease")
	wantWakes(t, s.Release("k", eff.Wakes[0].Result.Token, Abandoned, nil, 7))
	wantIdle(t, s)
}

func TestFreshAskIsNotAnsweredByALoadThatBeganBefore(t *testing.T) {
	s := newTest(Config{})
	s.Set("k", text("old", 0), Cond{}, 0)
	fresh := func(name string) Ask {
		a := ask("m", &person{name})
		a.Fresh = true
		return a
	}
	first := mustLease(t, s.Acquire("k", fresh("r1"), 1))
	wantValue(t, s, "k", 1, "hit old")
	mustWait(t, s, "k", fresh("r2"), 2)
	mustWait(t, s, "k", fresh("r3"), 2)
	eff := s.Fill("k", first, text("new", 1), 3)
	wantOutcome(t, eff, Stored)
	wantWakes(t, eff, "r2:lease")
	eff = s.Fill("k", eff.Wakes[0].Result.Token, text("newer", 3), 4)
	wantWakes(t, eff, "r3:hit newer") // its load began after r3 had asked
	wantIdle(t, s)
}

func TestOrdinaryWaiterBehindARefresh(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	a := ask("b", &person{"refresh"})
	a.Fresh = true
	mustWait(t, s, "k", a, 1)
	mustWait(t, s, "k", ask("c", &person{"reader"}), 1)
	eff := s.Fill("k", tok, text("v", 0), 2)
	wantWakes(t, eff, "reader:hit v", "refresh:lease")
}

func TestLeaveAndForget(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	p := []*person{{"p0"}, {"p1"}, {"p2"}, {"p3"}}
	for _, w := range p {
		mustWait(t, s, "k", ask("b", w), 1)
	}
	if !s.Leave("k", p[1]) {
		t.Fatal("Leave of a queued waiter: got false")
	}
	if s.Leave("k", p[1]) || s.Leave("l", p[0]) {
		t.Fatal("Leave of one that is not queued: got true")
	}
	if n := s.Forget(func(w any) bool { return w == p[0] || w == p[3] }); n != 2 {
		t.Fatalf("Forget: got %d, want 2", n)
	}
	wantWakes(t, s.Fill("k", tok, text("v", 0), 2), "p2:hit v")
	if s.Leave("k", p[2]) {
		t.Fatal("Leave after the wake: got true")
	}
	wantIdle(t, s)
}

func TestBusy(t *testing.T) {
	s := newTest(Config{MaxLeases: 1, MaxWaiters: 2})
	var keys []string // two in the same part of the store
	for i := 0; len(keys) < 2; i++ {
		if key := string(rune('a' + i)); s.store.ShardOf(key) == s.store.ShardOf("a") {
			keys = append(keys, key)
		}
	}
	tok := mustLease(t, s.Acquire(keys[0], ask("m", nil), 0))
	if r := s.Acquire(keys[1], ask("m", nil), 0); r.Kind != Busy {
		t.Fatalf("lease above the bound: got %s, want busy", describe(r))
	}
	mustWait(t, s, keys[0], ask("m", &person{"w1"}), 0)
	mustWait(t, s, keys[0], ask("m", &person{"w2"}), 0)
	if r := s.Acquire(keys[0], ask("m", &person{"w3"}), 0); r.Kind != Busy {
		t.Fatalf("waiter above the bound: got %s, want busy", describe(r))
	}
	s.Fill(keys[0], tok, text("v", 0), 1)
	mustLease(t, s.Acquire(keys[1], ask("m", nil), 2))
}

func TestTickIsBounded(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	const n = 2*tickDeadlines + 10
	for range n {
		a := ask("b", &person{"w"})
		a.Until = 5
		mustWait(t, s, "k", a, 1)
	}
	for _, want := range []int{tickDeadlines, tickDeadlines, 10, 0} {
		if got := len(s.Tick(5).Wakes); got != want {
			t.Fatalf("wakes of one Tick: got %d, want %d", got, want)
		}
	}
	wantOutcome(t, s.Fill("k", tok, text("v", 0), 6), Stored)
	wantIdle(t, s)
}

// R6: a fill that was long under way is as old as its load may be: it began when the lease was granted, at the earliest.
func TestAgeOfALateFill(t *testing.T) {
	s := newTest(Config{})
	token := mustLease(t, s.Acquire("k", ask("a", nil), 2*second))
	s.Fill("k", token, text("v", 5*second), 5*second)
	if v, _ := s.Peek("k", 5*second); v == nil || v.LoadedAt != 2*second || v.Soft != 62*second {
		t.Errorf("got %+v, want a load that began at 2 s", v)
	}
	token = mustLease(t, s.Acquire("older", ask("a", nil), 5*second))
	s.Fill("older", token, text("v", 4*second), 6*second)
	if v, _ := s.Peek("older", 6*second); v == nil || v.LoadedAt != 4*second {
		t.Errorf("got %+v, want the age as the fill says: a value may be older than its lease", v)
	}
}

// R7: what is loaded by a member that may not hear of an invalidation lives a Bound, however sure of itself it is when the load ends.
func TestCapOfALease(t *testing.T) {
	doubt := true
	s := newTest(Config{Cap: func(string, int64) time.Duration {
		if doubt {
			return time.Second
		}
		return 0
	}})
	token := mustLease(t, s.Acquire("k", ask("a", nil), 2*second))
	doubt = false
	s.Fill("k", token, text("v", 3*second), 3*second)
	wantValue(t, s, "k", 3*second, "nothing")
	token = mustLease(t, s.Acquire("k", ask("a", nil), 4*second))
	s.Fill("k", token, text("v", 4*second), 5*second)
	wantValue(t, s, "k", 60*second, "hit v")
}

// A Set that was under way for long does not replace a later version, even if that has expired by then.
func TestLateSet(t *testing.T) {
	s := newTest(Config{})
	v := text("new", 1*second)
	v.Version, v.Soft, v.Hard = 8, 2*second, 2*second
	s.Set("k", v, Cond{}, 1*second)
	late := text("old", 5*second)
	late.Version = 7
	if eff := s.Set("k", late, Cond{}, 5*second); eff.Outcome != Rejected {
		t.Errorf("got outcome %d, want a refusal", eff.Outcome)
	}
	wantValue(t, s, "k", 5*second, "nothing")
}
