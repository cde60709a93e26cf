package shard

import "testing"

// A lease ahead is granted beside a fresh entry, to one; the entry is served meanwhile, and its successor takes its place.
func TestLeaseAhead(t *testing.T) {
	s := newTest(Config{})
	first := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	wantOutcome(t, s.Fill("k", first, text("old", 0), 0), Stored)
	ahead := ask("a", &person{"renewer"})
	ahead.Ahead = true
	tok := mustLease(t, s.Acquire("k", ahead, second))
	wantValue(t, s, "k", second, "hit old")
	if r := s.Acquire("k", ahead, second); r.Kind != Hit || string(r.Value.Bytes) != "old" {
		t.Errorf("a second one got %+v, want the entry", r)
	}
	if r := s.Acquire("k", ask("b", &person{"reader"}), second); r.Kind != Hit {
		t.Errorf("a reader got %+v, want the entry", r)
	}
	wantOutcome(t, s.Fill("k", tok, text("new", second), second+1), Stored)
	wantValue(t, s, "k", second+1, "hit new")
	wantIdle(t, s)
}

// An invalidation revokes a lease ahead: what it brings is not stored.
func TestLeaseAheadIsRevoked(t *testing.T) {
	s := newTest(Config{})
	first := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	wantOutcome(t, s.Fill("k", first, text("old", 0), 0), Stored)
	ahead := ask("a", &person{"renewer"})
	ahead.Ahead = true
	tok := mustLease(t, s.Acquire("k", ahead, second))
	if eff := s.Invalidate("k", 0, second+1); len(eff.Revoked) != 1 || eff.Revoked[0].Token != tok {
		t.Errorf("revoked: got %v, want the lease ahead", eff.Revoked)
	}
	wantOutcome(t, s.Fill("k", tok, text("old", second), second+2), Rejected)
	wantValue(t, s, "k", second+2, "nothing")
	wantIdle(t, s)
}
