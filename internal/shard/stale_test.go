package shard

import (
	"sync/atomic"
	"testing"
)

// What Expire or a gap left is served without waiting for a load, and so only while nothing was missed. Where values are kept beyond their lifetime
// a gap leaves such a copy then.
func TestDoubtAndWhatExpireLeft(t *testing.T) {
	for name, tt := range map[string]struct {
		expire       func(*Shard)
		hard         int64
		before, then Kind
	}{
		"expired":                   {func(s *Shard) { s.Expire("k", 0, 5) }, 200, Stale, Waiting},
		"a gap":                     {func(s *Shard) { s.ExpireAll(5) }, 100, Stale, Waiting},
		"a gap, kept for longer":    {func(s *Shard) { s.ExpireAll(5) }, 200, Stale, Waiting},
		"a gap, after the patience": {func(s *Shard) { s.ExpireAll(5) }, 200, Stale, Stale},
	} {
		t.Run(name, func(t *testing.T) {
			var limits atomic.Pointer[Limits]
			s := newTest(Config{Limits: &limits, Patience: 5})
			v := until("v", 1, 100)
			v.Hard = tt.hard
			s.Set("k", v, Cond{}, 1)
			tt.expire(s)
			ask := Ask{Holder: "m", Waiter: new(int), Life: 100, Until: 200}
			mustLease(t, s.Acquire("k", ask, 6))
			ask.Waiter = new(int)
			if got := s.Acquire("k", ask, 7).Kind; got != tt.before {
				t.Errorf("before the doubt: got %v, want %v", got, tt.before)
			}
			limits.Store(&Limits{Before: 8, BeforeEnd: 20, End: 1 << 60})
			at := int64(9)
			if tt.then == Stale {
				at = 12
			}
			ask.Waiter = new(int)
			if got := s.Acquire("k", ask, at).Kind; got != tt.then {
				t.Errorf("in doubt: got %v, want %v", got, tt.then)
			}
		})
	}
}

// What doubt ends early is a stale copy only where values are kept beyond their lifetime.
func TestDoubtLeavesNoStaleCopies(t *testing.T) {
	for name, tt := range map[string]struct {
		hard int64
		want Kind
	}{
		"kept for its lifetime": {100, Waiting},
		"kept for longer":       {200, Stale},
	} {
		t.Run(name, func(t *testing.T) {
			var limits atomic.Pointer[Limits]
			s := newTest(Config{Limits: &limits, Patience: 5})
			v := until("v", 1, 100)
			v.Hard = tt.hard
			s.Set("k", v, Cond{}, 1)
			limits.Store(&Limits{Before: 10, BeforeEnd: 20, End: 1 << 60})
			mustLease(t, s.Acquire("k", Ask{Holder: "m", Waiter: new(int), Life: 100, Until: 200}, 30))
			if got := s.Acquire("k", Ask{Holder: "n", Waiter: new(int), Life: 100, Until: 200}, 40).Kind; got != tt.want {
				t.Errorf("after the patience with a load: got %v, want %v", got, tt.want)
			}
		})
	}
}
