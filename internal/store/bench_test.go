package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

// keys24 returns n keys of 24 bytes.
func keys24(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("product:%016x", stableHash(fmt.Sprint(i)))
	}
	return keys
}

// BenchmarkHotKey is one resident key; compare with the plain map beside it.
func BenchmarkHotKey(b *testing.B) {
	keys := keys24(1000)
	s := New[[]byte](Config{MaxBytes: 1 << 30})
	m := map[string]*Entry[[]byte]{}
	for _, k := range keys {
		put(s, k, []byte("value"), 5, math.MaxInt64, 0)
		m[k] = s.Find(k)
	}
	key := strings.Clone(keys[7]) // a map compares a key with itself for free
	b.Run("map", func(b *testing.B) {
		for b.Loop() {
			if m[key] == nil {
				b.Fatal("miss")
			}
		}
	})
	b.Run("store", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if s.Get(key, 1) == nil {
				b.Fatal("miss")
			}
		}
	})
	b.Run("store, parallel", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if s.Get(key, 1) == nil {
					b.Error("miss")
					return
				}
			}
		})
	})
}

// BenchmarkZipf is Zipf 0.99 over a million keys with room for 100,000.
func BenchmarkZipf(b *testing.B) {
	keys := keys24(1_000_000)
	ids := zipfIDs(1<<20, len(keys), 0.99)
	s := New[[]byte](Config{MaxBytes: 1 << 40, MaxEntries: 100_000})
	for _, id := range ids {
		if s.Get(keys[id], 1) == nil {
			put(s, keys[id], []byte("value"), 5, math.MaxInt64, 0)
		}
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			s.Get(keys[ids[i&(1<<20-1)]], 1)
			i++
		}
	})
	b.Run("read through", func(b *testing.B) {
		b.ReportAllocs()
		i, hits := 0, 0
		for b.Loop() {
			k := keys[ids[i&(1<<20-1)]]
			if s.Get(k, 1) != nil {
				hits++
			} else {
				put(s, k, []byte("value"), 5, math.MaxInt64, 0)
			}
			i++
		}
		b.ReportMetric(100*float64(hits)/float64(i), "%hits")
	})
	b.Run("95 gets 5 puts", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if k := keys[ids[i&(1<<20-1)]]; i%20 == 0 {
				put(s, k, []byte("value"), 5, math.MaxInt64, 0)
			} else {
				s.Get(k, 1)
			}
			i++
		}
	})
}

func zipfIDs(n, ids int, s float64) []int {
	sum := make([]float64, ids)
	total := 0.0
	for i := range sum {
		total += math.Pow(float64(i+1), -s)
		sum[i] = total
	}
	r := rand.New(rand.NewPCG(1, 1))
	out := make([]int, n)
	for i := range out {
		x := r.Float64() * total
		lo, hi := 0, ids-1
		for lo < hi {
			if mid := (lo + hi) / 2; sum[mid] < x {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		out[i] = lo
	}
	return out
}

// BenchmarkExpiry is the whole life of an entry with a deadline: put, expire, be swept.
func BenchmarkExpiry(b *testing.B) {
	keys := keys24(50_000)
	s := New[int](Config{MaxBytes: 1 << 40})
	now := int64(0)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		put(s, keys[i%len(keys)], i, 100, now+int64(time.Second), now)
		if i++; i%1000 == 0 {
			now += int64(20 * time.Millisecond)
			s.Sweep(now)
		}
	}
}

// TestMemory reports the overhead per entry of a million entries with 24-byte keys and 100-byte values; go test -run
// Memory -v.
func TestMemory(t *testing.T) {
	const n = 1_000_000
	if testing.Short() || raceEnabled {
		t.Skip("a million entries: runs without -race and -short")
	}
	keys := keys24(n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := New[[]byte](Config{MaxBytes: 1 << 40})
	for _, k := range keys {
		put(s, k, make([]byte, 100), 100, int64(time.Hour), 0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	overhead := float64(after.HeapAlloc-before.HeapAlloc)/n - 124
	t.Logf("overhead per entry: %.0f bytes", overhead)
	if overhead > EntryOverhead {
		t.Errorf("overhead per entry is %.0f bytes, accounted for with %d", overhead, EntryOverhead)
	}
	runtime.KeepAlive(s)
	runtime.KeepAlive(keys)
}
