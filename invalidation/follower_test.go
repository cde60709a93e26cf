package invalidation

import (
	"testing"
	"time"
)

const sec = int64(time.Second)

func TestFollower(t *testing.T) {
	contact := func(inc uint64) func(*Follower) Action { return func(f *Follower) Action { return f.Contact(inc) } }
	inv := func(inc, seq uint64) func(*Follower) Action {
		return func(f *Follower) Action { return f.Inv(inc, seq) }
	}
	reset := func(inc, seq uint64) func(*Follower) Action {
		return func(f *Follower) Action { return f.Reset(inc, seq) }
	}
	renewed := func(inc, seq uint64, sent int64) func(*Follower) Action {
		return func(f *Follower) Action { return f.Renewed(inc, seq, sent, time.Second) }
	}
	type step struct {
		what string
		do   func(*Follower) Action
		want Action
	}
	state := func(inc, gen uint64, lease int64) State { return State{inc, gen, lease} }
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		// Case invalidation-4.
		{"joining late misses nothing", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"the first number", renewed(5, 10_000, 3*sec), Action{false, CauseFirst, state(5, 1, 4*sec)}},
			{"the second", renewed(5, 10_000, 4*sec), Action{false, CauseNone, state(5, 1, 5*sec)}},
			{"an event", inv(5, 10_001), Action{false, CauseNone, state(5, 1, 5*sec)}},
		}},
		{"events in order", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"1", inv(5, 1), Action{false, CauseFirst, state(5, 1, 0)}},
			{"2", inv(5, 2), Action{false, CauseNone, state(5, 1, 0)}},
			{"3", inv(5, 3), Action{false, CauseNone, state(5, 1, 0)}},
		}},
		// Case invalidation-3.
		{"a lost event shows with the next one", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"1", inv(5, 1), Action{false, CauseFirst, state(5, 1, 0)}},
			{"3", inv(5, 3), Action{false, CauseHole, state(5, 2, 0)}},
			{"4", inv(5, 4), Action{false, CauseNone, state(5, 2, 0)}},
		}},
		// Case invalidation-3.
		{"a lost last event shows with the renewal", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"1", inv(5, 1), Action{false, CauseFirst, state(5, 1, 0)}},
			{"the answer", renewed(5, 2, sec), Action{false, CauseHole, state(5, 2, 2*sec)}},
			{"again", renewed(5, 2, sec), Action{false, CauseNone, state(5, 2, 2*sec)}},
		}},
		// Case invalidation-6.
		{"late and repeated events still apply", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"1", inv(5, 1), Action{false, CauseFirst, state(5, 1, 0)}},
			{"3", inv(5, 3), Action{false, CauseHole, state(5, 2, 0)}},
			{"2", inv(5, 2), Action{false, CauseNone, state(5, 2, 0)}},
			{"3 again", inv(5, 3), Action{false, CauseNone, state(5, 2, 0)}},
			{"4", inv(5, 4), Action{false, CauseNone, state(5, 2, 0)}},
		}},
		{"a reset kills and continues", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"1", inv(5, 1), Action{false, CauseFirst, state(5, 1, 0)}},
			{"the reset", reset(5, 50), Action{false, CauseReset, state(5, 2, 0)}},
			{"51", inv(5, 51), Action{false, CauseNone, state(5, 2, 0)}},
			{"an old reset", reset(5, 50), Action{false, CauseReset, state(5, 3, 0)}},
			{"52", inv(5, 52), Action{false, CauseNone, state(5, 3, 0)}},
		}},
		{"a restart kills, the old one is ignored", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"1", inv(5, 1), Action{false, CauseFirst, state(5, 1, 0)}},
			{"a lease", renewed(5, 1, sec), Action{false, CauseNone, state(5, 1, 2*sec)}},
			{"the handshake", contact(6), Action{false, CauseRestart, state(6, 2, 2*sec)}},
			{"the old one's event", inv(5, 2), Action{true, CauseNone, state(6, 2, 2*sec)}},
			{"the old one's reset", reset(5, 2), Action{true, CauseNone, state(6, 2, 2*sec)}},
			{"the old one's answer", renewed(5, 2, 9*sec), Action{true, CauseNone, state(6, 2, 2*sec)}},
			{"the first number", renewed(6, 0, 3*sec), Action{false, CauseFirst, state(6, 3, 4*sec)}},
			{"1", inv(6, 1), Action{false, CauseNone, state(6, 3, 4*sec)}},
		}},
		{"a restart with the clock set back", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"7", inv(5, 7), Action{false, CauseFirst, state(5, 1, 0)}},
			{"the new one's handshake", contact(3), Action{false, CauseRestart, state(3, 2, 0)}},
			{"the old one's event", inv(5, 8), Action{true, CauseNone, state(3, 2, 0)}},
			{"1 of the new one", inv(3, 1), Action{false, CauseFirst, state(3, 3, 0)}},
			{"3 of the new one", inv(3, 3), Action{false, CauseHole, state(3, 4, 0)}},
		}},
		{"nothing counts before the handshake", []step{
			{"1", inv(5, 1), Action{true, CauseNone, state(0, 0, 0)}},
			{"an answer", renewed(5, 1, sec), Action{true, CauseNone, state(0, 0, 0)}},
		}},
		{"a lease never shrinks", []step{
			{"the handshake", contact(5), Action{false, CauseNone, state(5, 0, 0)}},
			{"late", renewed(5, 0, 5*sec), Action{false, CauseFirst, state(5, 1, 6*sec)}},
			{"early", renewed(5, 0, 3*sec), Action{false, CauseNone, state(5, 1, 6*sec)}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f Follower
			for _, s := range tt.steps {
				if got := s.do(&f); got != s.want {
					t.Errorf("%s: got %+v, want %+v", s.what, got, s.want)
				}
				if got := f.State(); got != s.want.State {
					t.Errorf("%s: the state is %+v, want %+v", s.what, got, s.want.State)
				}
			}
		})
	}
}

func TestCauseString(t *testing.T) {
	for c := CauseNone; c <= CauseReset; c++ {
		if got := c.String(); got == "unknown" || got == "" {
			t.Errorf("cause %d has no name", c)
		}
	}
	if got := Cause(99).String(); got != "unknown" {
		t.Errorf("got %q, want unknown", got)
	}
}

// Case lease-2.
func TestFetchInstallable(t *testing.T) {
	for _, tt := range []struct {
		name     string
		seen     []uint64
		inc, seq uint64
		state    State
		want     bool
	}{
		{"undisturbed", nil, 5, 10, State{5, 3, 0}, true},
		{"no stream yet", nil, 5, 10, State{0, 3, 0}, true},
		{"overtaken by an event", []uint64{11}, 5, 10, State{5, 3, 0}, false},
		{"the answer is newer", []uint64{9, 10, 4}, 5, 10, State{5, 3, 0}, true},
		{"a late event after a newer one", []uint64{12, 9}, 5, 10, State{5, 3, 0}, false},
		{"something was missed", nil, 5, 10, State{5, 4, 0}, false},
		{"from an older incarnation", nil, 4, 10, State{5, 3, 0}, false},
		{"from one not followed yet", nil, 6, 10, State{5, 3, 0}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &Fetch{Gen: 3}
			for _, seq := range tt.seen {
				f.Seen(seq)
			}
			if got := f.Installable(tt.inc, tt.seq, tt.state); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
