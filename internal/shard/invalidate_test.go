package shard

import (
	"fmt"
	"strings"
	"testing"
)

// Case lease-1.
func TestFillThatBeganBeforeAnInvalidationIsRefused(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	mustWait(t, s, "k", ask("b", &person{"w"}), 1)
	mustWait(t, s, "k", ask("c", &person{"x"}), 1)
	eff := s.Invalidate("k", 0, 2)
	if eff.Dropped != 0 || len(eff.Revoked) != 1 || eff.Revoked[0] != (Revoked{"k", tok, "a"}) {
		t.Fatalf("got %+v, want no entry dropped and the lease of a revoked", eff)
	}
	wantWakes(t, eff, "w:lease") // w's load begins after the invalidation
	wantOutcome(t, s.Fill("k", tok, text("v1", 0), 3), Rejected)
	wantValue(t, s, "k", 3, "nothing")
	eff = s.Fill("k", eff.Wakes[0].Result.Token, text("v2", 3), 4)
	wantOutcome(t, eff, Stored)
	wantWakes(t, eff, "x:hit v2")
	wantValue(t, s, "k", 5, "hit v2")
	wantIdle(t, s)
	if st := s.Stats(); st.RefusedLease != 1 || st.Invalidations != 1 {
		t.Fatalf("got %d rejected, %d invalidations, want 1 and 1", st.RefusedLease, st.Invalidations)
	}
}

// Case invalidation-9.
func TestAbsentIsInvalidatedLikePresent(t *testing.T) {
	s := newTest(Config{})
	absent := Value{Absent: true, Soft: 30 * second, Hard: 30 * second}
	s.Fill("k", mustLease(t, s.Acquire("k", ask("a", nil), 0)), absent, 0)
	wantValue(t, s, "k", 1, "absent")
	if eff := s.Invalidate("k", 0, 1); eff.Dropped != 1 {
		t.Fatalf("dropped: got %d, want the negative entry", eff.Dropped)
	}
	wantValue(t, s, "k", 1, "nothing")

	tok := mustLease(t, s.Acquire("k", ask("a", nil), 2)) // an absent result in flight
	s.Invalidate("k", 0, 3)
	wantOutcome(t, s.Fill("k", tok, absent, 4), Rejected)
	wantValue(t, s, "k", 4, "nothing")
}

// Case L2-4.
func TestNegativeEntryNeverShadowsAPositiveOne(t *testing.T) {
	s := newTest(Config{})
	absent := Value{Absent: true, Soft: second, Hard: second}
	s.Fill("k", mustLease(t, s.Acquire("k", ask("a", nil), 0)), absent, 0)
	wantValue(t, s, "k", second-1, "absent")
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 12*second/10))
	s.Fill("k", tok, text("v", second), 12*second/10)
	for range 999 {
		wantValue(t, s, "k", 13*second/10, "hit v")
	}
	if n := s.Stats().Entries; n != 1 {
		t.Fatalf("entries: got %d, want 1", n)
	}
}

// The number of an event is taken between the unlinking and the return, and never while the old value can be read.
func TestDroppedFollowsTheUnlinking(t *testing.T) {
	var s *Shard
	var events []string
	seq := uint64(0)
	s = newTest(Config{
		Dropped: func(key string) {
			seq++
			v := "nothing"
			if e := s.store.Find(key); e != nil {
				v = string(e.Value.bytes)
			}
			events = append(events, fmt.Sprintf("%s %s", key, v))
		},
		Seq: func() uint64 { return seq },
	})
	eff := s.Set("a", text("v1", 0), Cond{}, 1)
	if eff.Seq != 1 {
		t.Fatalf("seq of the set: got %d, want its own event's, 1", eff.Seq)
	}
	s.Set("a", text("v2", 0), Cond{IfAbsent: true}, 1) // refused: no event
	s.Set("a", text("v3", 0), Cond{}, 1)
	s.Invalidate("a", 0, 2)
	s.Invalidate("b", 0, 2) // not resident here, but perhaps elsewhere
	r := s.Acquire("b", ask("m", nil), 3)
	if r.Seq != 4 {
		t.Fatalf("seq of the lease: got %d, want 4", r.Seq)
	}
	if eff := s.Fill("b", r.Token, text("v", 3), 3); eff.Seq != 4 {
		t.Fatalf("seq of the fill: got %d, want 4", eff.Seq)
	}
	if got, want := strings.Join(events, ", "), "a v1, a v3, a nothing, b nothing"; got != want {
		t.Fatalf("events: got %s, want %s", got, want)
	}
}

func TestVersions(t *testing.T) {
	version := func(n uint64) Value {
		v := text(fmt.Sprint("v", n), 0)
		v.Version = n
		return v
	}
	refresh := ask("a", &person{"refresh"})
	refresh.Fresh = true

	t.Run("fill under a resident version", func(t *testing.T) {
		s := newTest(Config{})
		s.Set("k", version(5), Cond{}, 0)
		tok := mustLease(t, s.Acquire("k", refresh, 1))
		mustWait(t, s, "k", refresh, 1)
		eff := s.Fill("k", tok, version(4), 2)
		wantOutcome(t, eff, Rejected)
		wantWakes(t, eff, "refresh:lease") // asked for a load that begins after the ask
		wantOutcome(t, s.Fill("k", eff.Wakes[0].Result.Token, version(5), 3), Stored)
		wantIdle(t, s)
	})
	t.Run("set", func(t *testing.T) {
		s := newTest(Config{})
		wantOutcome(t, s.Set("k", version(5), Cond{}, 0), Stored)
		wantOutcome(t, s.Set("k", version(4), Cond{}, 0), Rejected)
		wantOutcome(t, s.Set("k", version(6), Cond{}, 0), Stored)
		wantOutcome(t, s.Set("k", version(0), Cond{}, 0), Stored) // none: compared with nothing
		wantValue(t, s, "k", 1, "hit v0")
	})
	t.Run("lowest after an invalidation", func(t *testing.T) {
		s := newTest(Config{})
		s.Set("k", version(5), Cond{}, 0)
		s.Invalidate("k", 7, 1)
		wantValue(t, s, "k", 1, "nothing")
		wantOutcome(t, s.Set("k", version(6), Cond{}, 1), Rejected)
		tok := mustLease(t, s.Acquire("k", ask("a", nil), 2))
		mustWait(t, s, "k", ask("b", &person{"w"}), 2)
		eff := s.Fill("k", tok, version(6), 3) // a lagging origin
		wantOutcome(t, eff, Rejected)
		wantWakes(t, eff, "w:lease")
		wantOutcome(t, s.Fill("k", eff.Wakes[0].Result.Token, version(7), 4), Stored)
		s.Invalidate("k", 7, 5) // late or repeated: it is about what is resident
		wantValue(t, s, "k", 5, "hit v7")
		s.Invalidate("k", 6, 5)
		if at, least := s.Invalidated("k"); at != 5 || least != 7 {
			t.Fatalf("Invalidated: got %d, %d, want 5, 7", at, least)
		}
		s.Invalidate("k", 0, 6)
		wantValue(t, s, "k", 6, "nothing")
	})
}

func TestTombstonesHaveAFloor(t *testing.T) {
	s := newTest(Config{MaxTombstones: 1})
	for i := range int64(200) {
		s.Invalidate(fmt.Sprint("k", i), 3, 100+i)
	}
	if at, least := s.Invalidated("k199"); at != 299 || least != 3 {
		t.Fatalf("the last one: got %d, %d, want 299, 3", at, least)
	}
	for i := range int64(200) {
		if at, _ := s.Invalidated(fmt.Sprint("k", i)); at < 100+i {
			t.Fatalf("k%d: got %d, want not before its invalidation at %d", i, at, 100+i)
		}
	}
}

func TestSetConditions(t *testing.T) {
	absent := Value{Absent: true, Soft: second, Hard: second}
	for _, c := range []struct {
		name     string
		resident *Value
		cond     Cond
		now      int64
		want     Outcome
	}{
		{"if absent, nothing", nil, Cond{IfAbsent: true}, 1, Stored},
		{"if absent, negative", &absent, Cond{IfAbsent: true}, 1, Stored},
		{"if absent, value", &Value{Soft: second, Hard: second}, Cond{IfAbsent: true}, 1, Rejected},
		{"if absent, stale value", &Value{Soft: second, Hard: 2 * second}, Cond{IfAbsent: true}, second, Stored},
		{"if present, nothing", nil, Cond{IfPresent: true}, 1, Rejected},
		{"if present, negative", &absent, Cond{IfPresent: true}, 1, Rejected},
		{"if present, value", &Value{Soft: second, Hard: second}, Cond{IfPresent: true}, 1, Stored},
		{"if present, stale value", &Value{Soft: second, Hard: 2 * second}, Cond{IfPresent: true}, second, Rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTest(Config{})
			if c.resident != nil {
				wantOutcome(t, s.Set("k", *c.resident, Cond{}, 0), Stored)
			}
			wantOutcome(t, s.Set("k", text("v", 1), c.cond, c.now), c.want)
		})
	}
}

func TestSetAnswersThoseWhoWait(t *testing.T) {
	s := newTest(Config{})
	tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	mustWait(t, s, "k", ask("b", &person{"w"}), 0)
	wantOutcome(t, s.Set("k", text("v", 1), Cond{IfPresent: true}, 1), Rejected)
	eff := s.Set("k", text("v", 1), Cond{}, 1)
	wantOutcome(t, eff, Stored)
	wantWakes(t, eff, "w:hit v")
	if len(eff.Revoked) != 1 || eff.Revoked[0].Token != tok {
		t.Fatalf("revoked: got %v, want the load that may have read the old value", eff.Revoked)
	}
	wantOutcome(t, s.Fill("k", tok, text("old", 0), 2), Rejected)
	wantValue(t, s, "k", 2, "hit v")
	wantIdle(t, s)

	over := text("over", 0)
	over.Soft, over.Hard = 2, 2
	wantOutcome(t, s.Set("k", over, Cond{}, 2), Passed)
	wantValue(t, s, "k", 2, "nothing")
}

func TestClear(t *testing.T) {
	s := newTest(Config{})
	s.Set("a", text("v", 0), Cond{}, 0)
	s.Set("b", Value{Absent: true, Soft: second, Hard: second}, Cond{}, 0)
	s.Invalidate("d", 7, 0)
	tok := mustLease(t, s.Acquire("c", ask("m", nil), 0))
	mustWait(t, s, "c", ask("n", &person{"w"}), 0)
	eff := s.Clear(1)
	if eff.Dropped != 2 || len(eff.Revoked) != 1 {
		t.Fatalf("got %d dropped, %d revoked, want 2 and 1", eff.Dropped, len(eff.Revoked))
	}
	wantWakes(t, eff, "w:lease")
	wantOutcome(t, s.Fill("c", tok, text("old", 0), 2), Rejected)
	wantOutcome(t, s.Fill("c", eff.Wakes[0].Result.Token, text("new", 1), 2), Stored)
	if at, least := s.Invalidated("d"); at != 1 || least != 0 {
		t.Fatalf("Invalidated after Clear: got %d, %d, want 1, 0", at, least)
	}
	wantIdle(t, s)
}

func TestMove(t *testing.T) {
	s := newTest(Config{})
	for _, key := range []string{"keep", "lose"} {
		s.Set(key, text("v", 0), Cond{View: 1}, 0)
	}
	view := func(w *person, n uint64) Ask {
		a := ask("m", w)
		a.View = n
		return a
	}
	kept := mustLease(t, s.Acquire("keep-lease", view(nil, 1), 0))
	lost := mustLease(t, s.Acquire("lose-lease", view(nil, 1), 0))
	mustWait(t, s, "lose-lease", view(&person{"w"}, 1), 0)
	gained := mustLease(t, s.Acquire("lose-then-gain", view(nil, 2), 0)) // by the new ring, before its Move
	eff := s.Move(Change{View: 2, Fate: losing("lose"), Until: 10})
	if eff.Dropped != 1 || len(eff.Revoked) != 1 || eff.Revoked[0].Token != lost {
		t.Fatalf("got %+v, want one entry and one lease dropped", eff)
	}
	wantWakes(t, eff, "w:moved")
	wantValue(t, s, "keep", 1, "hit v")
	wantValue(t, s, "lose", 1, "nothing")
	if r := s.Acquire("keep", view(nil, 1), 1); r.Kind != Moved {
		t.Fatalf("ask by the old ring: got %s, want moved", describe(r))
	}
	wantOutcome(t, s.Set("lose", text("v", 1), Cond{View: 1}, 1), Outdated)
	wantOutcome(t, s.Fill("lose-lease", lost, text("v", 0), 1), Rejected)
	wantOutcome(t, s.Fill("keep-lease", kept, text("v", 0), 1), Stored)
	wantOutcome(t, s.Fill("lose-then-gain", gained, text("v", 0), 1), Stored)
	wantIdle(t, s)
}

// losing is a change of the ring by which this member loses the keys that begin with prefix, and no others.
func losing(prefix string) func(key string) Fate {
	return func(key string) Fate {
		if strings.HasPrefix(key, prefix) {
			return Lost
		}
		return Stays
	}
}

func TestClose(t *testing.T) {
	s := newTest(Config{})
	s.Set("a", text("v", 0), Cond{}, 0)
	tok := mustLease(t, s.Acquire("k", ask("m", nil), 0))
	mustWait(t, s, "k", ask("n", &person{"w"}), 0)
	wantWakes(t, s.Close(), "w:moved")
	wantIdle(t, s)
	if n := s.Stats().Entries; n != 0 {
		t.Fatalf("entries: got %d, want 0", n)
	}
	if r := s.Acquire("k", ask("m", nil), 1); r.Kind != Moved {
		t.Fatalf("ask after Close: got %s, want moved", describe(r))
	}
	wantOutcome(t, s.Set("a", text("v", 0), Cond{}, 1), Outdated)
	wantOutcome(t, s.Fill("k", tok, text("v", 0), 1), Rejected)
}

// R11: what was loaded less than the lag after an invalidation may be what was invalidated, and lives until the lag is over; a version tells
// better.
func TestLag(t *testing.T) {
	for name, c := range map[string]struct {
		loaded  int64
		version uint64 // of the value
		least   uint64 // of the invalidation
		before  uint64 // of an invalidation before it
		want    int64  // seconds until which it is fresh; 0: it is not stored
	}{
		"within the lag":                    {loaded: 11 * second, want: 15},
		"after the lag":                     {loaded: 15 * second, want: 100},
		"a version that is new enough":      {loaded: 11 * second, version: 5, least: 5, want: 100},
		"a version that is old":             {loaded: 11 * second, version: 4, least: 5},
		"a version for an earlier one only": {loaded: 11 * second, version: 5, before: 5, want: 15},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTest(Config{Lag: 5 * second})
			if c.before > 0 {
				s.Invalidate("k", c.before, 9*second)
			}
			s.Invalidate("k", c.least, 10*second)
			token := mustLease(t, s.Acquire("k", ask("a", nil), c.loaded))
			v := text("v", c.loaded)
			v.Version, v.Soft, v.Hard = c.version, 100*second, 100*second
			s.Fill("k", token, v, c.loaded+1)
			if c.want > 0 {
				wantValue(t, s, "k", c.want*second-1, "hit v")
			}
			wantValue(t, s, "k", max(c.want*second, c.loaded+2), "nothing")
		})
	}
}
