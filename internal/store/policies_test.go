package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Each policy does what it is chosen for: LRU where keys are read again soon, LFU and TinyLFU where some are always popular, Random in a loop
// that does not fit. Points are hit ratios in percent, above those of an exact LRU.
func TestHitRatiosOfPolicies(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine, nothing for the race detector: runs without -race")
	}
	const n, size = 200_000, 1000
	type between struct{ least, most float64 }
	tests := []struct {
		name   string
		keys   []string
		points map[Policy]between
	}{
		{"zipf", zipf(1, n, 100_000, 1, 0), map[Policy]between{LRU: {-1, 2}, LFU: {5, 12}, TinyLFU: {5, 12}, Random: {-5, 0}}},
		{"read again soon or never", soonOrNever(4, n, size/2), map[Policy]between{LRU: {-2, 1}, LFU: {-60, -5}, TinyLFU: {-60, -5}, Random: {-20, -3}}},
		{"loop a little larger than the cache", loop(n, size+size/10), map[Policy]between{LRU: {-1, 1}, Random: {60, 100}, TinyLFU: {60, 100}}},
	}
	for _, tt := range tests {
		base := lruRatio(tt.keys, size)
		for policy, want := range tt.points {
			got := ratio(tt.keys, Config{MaxEntries: size, Shards: 1, Policy: policy}) - base
			t.Logf("%s, policy %d: %+.2f", tt.name, policy, got)
			if got < want.least || got > want.most {
				t.Errorf("%s, policy %d: %+.2f points beside LRU's %.2f %%, want %+.0f to %+.0f", tt.name, policy, got, base, want.least, want.most)
			}
		}
	}
}

// Whatever the policy, the budget holds after each operation, and nothing is read that was not written last. (LRU and TinyLFU are compared
// step by step in TestModel.)
func TestPoliciesKeepTheBudget(t *testing.T) {
	for _, policy := range []Policy{LRU, LFU, TinyLFU, Random} {
		t.Run(fmt.Sprint("policy ", policy), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(policy), 3))
			s := New[int](Config{MaxBytes: 50_000, MaxEntries: 120, Shards: 1, Policy: policy})
			popular := rand.NewZipf(r, 1.1, 1, 600)
			last := map[string]int{}
			now := int64(1) << tickBits
			for i := range 5000 {
				key := fmt.Sprint(popular.Uint64())
				switch op := r.IntN(100); {
				case op < 50:
					if e := s.Get(key, now); e != nil && (e.Value != last[key] || e.Deadline <= now) {
						t.Fatalf("Get(%s) = %d until %d at %d, want %d", key, e.Value, e.Deadline, now, last[key])
					}
				case op < 90:
					last[key] = i
					tx := s.Begin(key)
					tx.Kept = r.IntN(20) == 0
					tx.Put(i, int64(r.IntN(3000)), now+int64(1+r.IntN(200))<<tickBits, now)
					tx.End()
				case op < 95:
					del(s, key)
				case op < 98:
					now += r.Int64N(4 << tickBits)
					s.Sweep(now)
				default:
					s.Resize(int64(20_000 + r.IntN(30_000)))
				}
				check(t, s)
				if t.Failed() {
					t.Fatalf("after step %d", i)
				}
			}
			if st := s.Stats(); st.Evictions < 500 || st.Entries < 10 {
				t.Errorf("%d evictions, %d entries: this has tested nothing", st.Evictions, st.Entries)
			}
		})
	}
}
