package shard

import "testing"

// What ExpireAll leaves is served as a stale copy while it is replaced, a bounded number of keys a second; what a load brings that began
// before is refused, and an absence is no stale copy.
func TestExpireAll(t *testing.T) {
	s := newTest(Config{Refreshes: 10})
	for _, key := range []string{"a", "b", "c"} {
		s.Set(key, text("v"+key, second), Cond{}, second)
	}
	s.Set("absent", Value{Absent: true, LoadedAt: second, Soft: 60 * second, Hard: 60 * second}, Cond{}, second)
	old := mustLease(t, s.Acquire("d", ask("m", &person{"d"}), second))

	gap := 2 * second
	if eff := s.ExpireAll(gap); len(eff.Revoked) != 1 || eff.Revoked[0].Key != "d" {
		t.Fatalf("got %+v revoked, want the lease of d", eff.Revoked)
	}
	wantOutcome(t, s.Fill("d", old, text("old", second), gap), Rejected)
	for _, key := range []string{"a", "b", "c", "absent"} {
		wantValue(t, s, key, gap, "nothing")
	}

	now := gap + 1
	r := s.Acquire("a", ask("m", &person{"a1"}), now)
	if token := mustLease(t, r); r.Value == nil || string(r.Value.Bytes) != "va" {
		t.Fatalf("got %v with lease %v, want the stale copy", r.Value, token)
	}
	for _, key := range []string{"a", "b", "c"} { // a is being loaded, the others' turn has not come
		if r := s.Acquire(key, ask("m", &person{"later"}), now); describe(r) != "stale v"+key {
			t.Fatalf("%s: got %s, want its stale copy and no lease", key, describe(r))
		}
	}
	mustLease(t, s.Acquire("absent", ask("m", &person{"absent"}), now)) // nothing to serve: nobody waits for a turn
	granted := 0
	for ; now < gap+second; now += second / 100 {
		for _, key := range []string{"b", "c"} {
			if r := s.Acquire(key, ask("m", &person{"x"}), now); r.Kind == Lease {
				granted++
				wantOutcome(t, s.Release(key, r.Token, LoadFailed, "origin down", now), 0)
			}
		}
	}
	if granted != 9 {
		t.Errorf("got %d leases within a second, want 9 beside the one of a", granted)
	}
	wantOutcome(t, s.Fill("a", r.Token, text("new", gap+1), now), Stored)
	wantValue(t, s, "a", now, "hit new")

	if r := s.Acquire("b", ask("m", &person{"end"}), 61*second); r.Kind != Lease || r.Value != nil {
		t.Errorf("past the hard end: got %s with %v, want a lease and no copy", describe(r), r.Value)
	}
}
