package shard

import "testing"

// Of a key that is held nothing is kept: loads before it are refused, those who wait for them and who comes later are told, and a Set or a gift
// leaves nothing.
func TestHeld(t *testing.T) {
	held := false
	s := newTest(Config{Held: func(key string) bool { return held && key == "k" }})
	before := mustLease(t, s.Acquire("k", ask("a", nil), 0))
	mustWait(t, s, "k", ask("b", &person{"w"}), 1)
	held = true
	eff := s.Invalidate("k", 0, 2)
	wantWakes(t, eff, "w:held")
	if len(eff.Revoked) != 1 {
		t.Errorf("got %d revoked, want the lease", len(eff.Revoked))
	}
	wantOutcome(t, s.Fill("k", before, text("old", 0), 3), Rejected)
	if res := s.Acquire("k", ask("c", nil), 4); res.Kind != Held {
		t.Errorf("an ask: got %s, want held", describe(res))
	}
	wantOutcome(t, s.Set("k", text("v", 5), Cond{}, 5), Passed)
	if s.Give("k", text("v", 6), Given{Kept: true}, 6) || s.Give("k", text("v", 6), Given{Until: second}, 6) {
		t.Error("a gift was taken")
	}
	mustLease(t, s.Acquire("other", ask("a", nil), 7))
	held = false
	token := mustLease(t, s.Acquire("k", ask("c", nil), 8))
	wantOutcome(t, s.Fill("k", token, text("new", 8), 9), Stored)
}
