package shard

import (
	"sync/atomic"
	"testing"
)

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
			limits.Store(&Limits{Before: 10, BeforeEnd: 20, End: 1 << 60, Cut: true})
			mustLease(t, s.Acquire("k", Ask{Holder: "m", Waiter: new(int), Life: 100, Until: 200}, 30))
			if got := s.Acquire("k", Ask{Holder: "n", Waiter: new(int), Life: 100, Until: 200}, 40).Kind; got != tt.want {
				t.Errorf("after the patience with a load: got %v, want %v", got, tt.want)
			}
		})
	}
}
