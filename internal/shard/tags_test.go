package shard

import (
	"testing"

	"github.com/nearcache/nearcache/internal/tag"
)

// tagged is text with tags.
func tagged(s string, now int64, tags ...uint64) Value {
	v := text(s, now)
	v.Mark = tag.Of(tags)
	return v
}

// R15: the tags of a value are known when it has been loaded, and may have been invalidated by then.
func TestFillThatBeganBeforeItsTagWasInvalidatedIsRefused(t *testing.T) {
	const red, blue = 1, 2
	absent := Value{Absent: true, Soft: 60 * second, Hard: 60 * second, Mark: tag.Of(nil)}
	tests := []struct {
		name string
		v    Value
		want Outcome
	}{
		{"its tag", tagged("v", 0, blue, red), Rejected},
		{"another tag", tagged("v", 0, blue), Stored},
		{"no tags", tagged("v", 0), Stored},
		{"an absence", absent, Stored},
		{"tags that are not known", text("v", 0), Rejected},
	}
	for _, tt := range tests {
		for _, op := range []string{"Fill", "Pass"} {
			s := newTest(Config{})
			tok := mustLease(t, s.Acquire("k", ask("a", nil), 0))
			mustWait(t, s, "k", ask("b", &person{"w"}), 0)
			s.InvalidateTags([]uint64{red}, 0)
			fill, want := s.Fill, tt.want
			if op == "Pass" {
				fill = s.Pass
				if want == Stored {
					want = Passed
				}
			}
			eff := fill("k", tok, tt.v, 0)
			if eff.Outcome != want {
				t.Errorf("%s of a value with %s: got %d, want %d", op, tt.name, eff.Outcome, want)
			}
			if want != Rejected {
				continue
			}
			wantWakes(t, eff, "w:lease") // its load begins after the invalidation
			wantOutcome(t, s.Fill("k", eff.Wakes[0].Result.Token, tt.v, 0), Stored)
		}
	}
}

// What is resident is dead at once, for whoever reads it, and its place is free for a load.
func TestInvalidatedTagEndsEntries(t *testing.T) {
	s := newTest(Config{})
	for key, v := range map[string]Value{"one": tagged("v", 0, 1), "both": tagged("v", 0, 1, 2), "two": tagged("v", 0, 2), "none": tagged("v", 0)} {
		s.Fill(key, mustLease(t, s.Acquire(key, ask("a", nil), 0)), v, 0)
	}
	s.Set("set", tagged("v", 0, 1), Cond{}, 0)
	s.InvalidateTags([]uint64{1}, 0)
	for key, want := range map[string]string{"one": "nothing", "both": "nothing", "set": "nothing", "two": "hit v", "none": "hit v"} {
		wantValue(t, s, key, 0, want)
	}
	if stored := s.Set("set", tagged("w", 0, 1), Cond{IfAbsent: true}, 0); stored.Outcome != Stored {
		t.Errorf("Set where only a dead entry is: got %d, want %d", stored.Outcome, Stored)
	}
	wantValue(t, s, "set", 0, "hit w")
	tok := mustLease(t, s.Acquire("one", ask("a", nil), 0))
	wantOutcome(t, s.Fill("one", tok, tagged("w", 0, 1), 0), Stored)
	wantValue(t, s, "one", 0, "hit w")
}

// A stale copy that Expire left is no more served than any other once its tag is invalidated.
func TestInvalidatedTagEndsStaleCopies(t *testing.T) {
	s := newTest(Config{})
	s.Set("k", tagged("v", 0, 1), Cond{}, 0)
	s.Expire("k", 0, 1)
	s.InvalidateTags([]uint64{1}, 2)
	if r := s.Acquire("k", ask("a", nil), 3); r.Kind != Lease || r.Value != nil {
		t.Errorf("got %+v, want a lease and no value", r)
	}
}

// R11 for tags: a load that begins less than the lag after the invalidation may read what was invalidated.
func TestLagOfInvalidatedTag(t *testing.T) {
	s := newTest(Config{Lag: 10})
	s.InvalidateTags([]uint64{1}, 100)
	for key, v := range map[string]Value{"one": tagged("v", 105, 1), "unknown": text("v", 105), "two": tagged("v", 105, 2), "late": tagged("v", 110, 1)} {
		s.Fill(key, mustLease(t, s.Acquire(key, ask("a", nil), v.LoadedAt)), v, v.LoadedAt)
	}
	for key, want := range map[string]string{"one": "nothing", "unknown": "nothing", "two": "hit v", "late": "hit v"} {
		wantValue(t, s, key, 109, "hit v")
		wantValue(t, s, key, 110, want)
	}
}

// What comes from another member began to be loaded elsewhere, maybe before its tag was invalidated here, although that one does not know of that
// yet (R10b, R15).
func TestWhatOthersHeldIsOlderThanATag(t *testing.T) {
	s := newTest(Config{})
	s.InvalidateTags([]uint64{1}, 100)
	tests := []struct {
		name string
		v    Value
		want bool // it is missed
	}{
		{"loaded before", tagged("v", 99, 1, 2), true},
		{"loaded then", tagged("v", 100, 1), true},
		{"loaded after", tagged("v", 101, 1), false},
		{"another tag", tagged("v", 99, 2), false},
		{"no tags", tagged("v", 99), false},
		{"tags that are not known", text("v", 99), true},
	}
	for _, tt := range tests {
		if got := s.Missed("k", &tt.v); got != tt.want {
			t.Errorf("%s: Missed is %v", tt.name, got)
		}
		for _, g := range []Given{{Kept: true}, {Until: second}} {
			if got := s.Give(tt.name, tt.v, g, 102); got == tt.want {
				t.Errorf("%s: Give %+v is %v", tt.name, g, got)
			}
			s.Invalidate(tt.name, 0, 1)
		}
	}
	s.Give("later", tagged("v", 101, 1), Given{Kept: true}, 102)
	s.InvalidateTags([]uint64{1}, 103)
	wantValue(t, s, "later", 104, "nothing")
}
