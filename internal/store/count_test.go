package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// Whatever happens to an entry, the hits on it are reported, up to 63 of them late and none twice.
func TestHitsAreReported(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	reported, want := map[string]uint32{}, map[string]uint32{}
	s := New[int](Config{MaxBytes: 1 << 20, MaxEntries: 100, Shards: 1, Hits: func(key string, n uint32) { reported[key] += n }})
	keys := make([]string, 200)
	for i := range keys {
		keys[i] = fmt.Sprint("key:", i)
	}
	now := int64(1)
	for range 200_000 {
		key := keys[min(r.IntN(len(keys)), r.IntN(len(keys)))]
		now += r.Int64N(2e7)
		switch r.IntN(20) {
		case 0:
			put(s, key, 1, 0, now+r.Int64N(5e9), now)
		case 1:
			tx := s.Begin(key)
			tx.Delete()
			tx.End()
		case 2:
			s.Sweep(now)
		default:
			if s.Get(key, now) != nil {
				want[key]++
			}
		}
		if late := want[key] - reported[key]; late >= batch {
			t.Fatalf("%q: %d hits, %d reported, want less than %d late", key, want[key], reported[key], batch)
		}
	}
	s.Resize(0)
	for key, n := range want {
		if reported[key] != n {
			t.Errorf("%q: %d hits, %d reported when all entries have gone", key, n, reported[key])
		}
	}
}

// The entry of a key in heavy use is written 4,095 times in a window at most. The rest is estimated.
func TestHeavyUseIsEstimated(t *testing.T) {
	reported := 0
	s := New[int](Config{MaxBytes: 1 << 20, Shards: 1, Hits: func(_ string, n uint32) { reported += int(n) }})
	put(s, "k", 1, 0, math.MaxInt64, 0)
	const perMilli, millis, windowLen = 80, 1073, 1 << windowBits
	for ms := range int64(millis) {
		for range perMilli {
			s.Get("k", windowLen+ms*1e6)
		}
	}
	if want := perMilli * millis; math.Abs(float64(reported-want)) > float64(want)/50 {
		t.Errorf("%d hits were reported, want %d", reported, want)
	}
	before := s.Find("k").word.Load()
	s.Get("k", windowLen+millis*1e6)
	if after := s.Find("k").word.Load(); before != after || after != full(windowLen) {
		t.Errorf("the word went from %#x to %#x, want %#x", before, after, full(windowLen))
	}
	s.Find("k").word.And(^uint32(usesMax)) // as the hand does
	told := reported
	for range usesMax {
		s.Get("k", windowLen+millis*1e6)
	}
	if after := s.Find("k").word.Load(); after != before || reported != told {
		t.Errorf("uses without hits made the word %#x, want %#x; %d hits were reported twice", after, before, reported-told)
	}
	s.Get("k", 2*windowLen)
	if n := s.Find("k").word.Load() >> hitsShift & hitsMax; n != hitsMax%batch+1 {
		t.Errorf("the next window begins with %d hits, want those that were not reported and one more", n)
	}
}

// Readers on several cores may lose counts to each other, and none else.
func TestConcurrentHits(t *testing.T) {
	const readers, reads = 4, 1000
	var reported atomic.Int64
	s := New[int](Config{MaxBytes: 1 << 20, Shards: 1, Hits: func(_ string, n uint32) { reported.Add(int64(n)) }})
	put(s, "k", 1, 0, math.MaxInt64, 0)
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for range reads {
				s.Get("k", 1)
			}
		})
	}
	wg.Wait()
	if got := reported.Load(); got > readers*reads || got < reads/2 {
		t.Errorf("%d hits were reported, want %d at most and not much less", got, readers*reads)
	}
}
