package invalidation

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestInterestForgetsNoGrantTooEarly(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 0))
		in := NewInterest()
		ends := map[uint64]int64{} // the naive one
		now := int64(1)
		for range 20_000 {
			now += r.Int64N(int64(20 * time.Millisecond))
			hash := r.Uint64()
			d := time.Duration(r.Int64N(int64(2 * time.Second)))
			if r.IntN(1000) == 0 {
				d += time.Minute
			}
			in.Grant(hash, d, now)
			ends[hash] = now + int64(d)
			if r.IntN(50) > 0 {
				continue
			}
			for hash, end := range ends {
				if end < now {
					delete(ends, hash)
				} else if !in.Granted(hash) {
					t.Fatalf("seed %d: a grant with %v to go is forgotten", seed, time.Duration(end-now))
				}
			}
		}
	}
}

func TestInterestForgets(t *testing.T) {
	in := NewInterest()
	now := int64(1)
	in.Grant(42, time.Second, now)
	for i := range uint64(10) {
		if got, want := in.Granted(42), i < 5; got != want && (i < 2 || i > 4) {
			t.Errorf("after %d s: granted %v", i, got)
		}
		now += int64(time.Second)
		in.Grant(rand.Uint64(), time.Second, now)
	}
}

func TestInterestFalsePositives(t *testing.T) {
	in := NewInterest()
	in.Grant(1, time.Hour, 1)
	in.Grant(2, time.Hour, 1) // rotates the first, empty pair away: what follows is one generation
	r := rand.New(rand.NewPCG(1, 2))
	for range minInterestKeys {
		in.Grant(r.Uint64(), time.Hour, 1)
	}
	wrong := 0
	for range 100_000 {
		if in.Granted(r.Uint64()) {
			wrong++
		}
	}
	if wrong > 1500 {
		t.Errorf("%d of 100000 keys that nobody holds look granted, want at most 1.5 %%", wrong)
	}
}

func TestInterestGrows(t *testing.T) {
	in := NewInterest()
	r := rand.New(rand.NewPCG(1, 2))
	now := int64(1)
	for range 3 {
		for range 2 * minInterestKeys {
			in.Grant(r.Uint64(), time.Second, now)
		}
		now += int64(3 * time.Second)
	}
	if got, want := len(in.pair.Load().cur.words)*64/bitsPerKey, 2*minInterestKeys; got < want {
		t.Errorf("the filter is made for %d keys, want at least %d", got, want)
	}
	for range 6 {
		now += int64(3 * time.Second)
		in.Grant(r.Uint64(), time.Second, now)
	}
	if got, want := len(in.pair.Load().cur.words)*64/bitsPerKey, minInterestKeys; got > want {
		t.Errorf("the filter is made for %d keys, want no more than %d after a while", got, want)
	}
}

// Grants by several members' requests while the filter rotates all the time and drops of the same keys ask: a drop that follows a
// granted read is always told.
func TestInterestConcurrently(t *testing.T) {
	in := NewInterest()
	var clock atomic.Int64
	clock.Store(1)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 0))
			for range 20_000 {
				now := clock.Add(int64(10 * time.Millisecond))
				hash := r.Uint64()
				in.Grant(hash, time.Second, now)
				if !in.Granted(hash) && clock.Load() < now+int64(time.Second) {
					t.Errorf("a grant just made is forgotten")
				}
			}
		})
	}
	wg.Wait()
}

func TestGrantDoesNotAllocate(t *testing.T) {
	in := NewInterest()
	in.Grant(1, time.Second, 1)
	hash := uint64(0)
	if got := testing.AllocsPerRun(1000, func() {
		hash += 0x9e3779b97f4a7c15
		in.Grant(hash, time.Second, 2)
		in.Granted(hash + 1)
	}); got != 0 {
		t.Errorf("%v allocations for a grant, want 0", got)
	}
}

func BenchmarkInterestGrant(b *testing.B) {
	in := NewInterest()
	hash, now := uint64(0), int64(0)
	b.ReportAllocs()
	for b.Loop() {
		hash += 0x9e3779b97f4a7c15
		now += 200
		in.Grant(hash, time.Second, now)
	}
}

func BenchmarkInterestGrantAgain(b *testing.B) {
	in := NewInterest()
	hash, now := uint64(0), int64(0)
	b.ReportAllocs()
	for b.Loop() {
		hash += 0x9e3779b97f4a7c15
		now += 200
		in.Grant(hash>>52<<52, time.Second, now)
	}
}

func BenchmarkInterestGranted(b *testing.B) {
	in := NewInterest()
	hash := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		hash += 0x9e3779b97f4a7c15
		in.Granted(hash)
	}
}
