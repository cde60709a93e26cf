package benchmarks

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/clock"
	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/near"
)

// local is a cache in this process. run gets keys[i&(len(keys)-1)] for n values of i from at on and returns the number of
// hits: the loop is the system's own, so that no call through a function value adds to what is measured.
type local struct {
	name string
	run  func(keys []string, at, n int) int
}

// BenchmarkNearHit gets a near copy of a value that another process owns, with everything a Get does: lifetime, the lease on the owner's
// invalidations, exact counters. Its opponents are a plain map without a lock and otter with a lifetime and its coarse clock.
func BenchmarkNearHit(b *testing.B) {
	const entries = 1000 // that are there: Go's maps treat a handful in another way
	m, o := make(map[string][]byte), newOtter(b, 2*entries)
	for i := range entries {
		m[ownedKey(i)] = newValue(ownedKey(i))
		o.Set(ownedKey(i), newValue(ownedKey(i)))
	}
	systems := chosenLocals([]local{
		{"nearcache", nearHits(b, entries)},
		{"map", func(keys []string, at, n int) (hits int) {
			for i := at; i < at+n; i++ {
				if _, ok := m[keys[i&(len(keys)-1)]]; ok {
					hits++
				}
			}
			return hits
		}},
		otterLocal(o),
	})
	keys := []string{ownedKey(entries / 2)} // 24 bytes
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			compareLocals(b, systems, keys, goroutines)
		})
	}
}

// nearHits returns the loop over Cache.Get of a node with near copies of that many of the owner process' entries.
func nearHits(b *testing.B, entries int) func([]string, int, int) int {
	b.Helper()
	n, list := clientNode(b)
	joinOwner(b, n, list, startOwner(b, n.Addr()))
	c, err := nearcache.New(n, nearKeyspace, nearConfig(loadNothing))
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	for i := range entries {
		if _, info, err := c.GetInfo(ctx, ownedKey(i)); err != nil || info.Tier != nearcache.TierOwner {
			b.Fatalf("first get of a key: %+v, %v", info, err)
		}
	}
	b.Cleanup(func() {
		if s := c.Stats(); s.Gets-s.NearHits > uint64(entries)+s.Gets/10_000 { // a starved process may lose its lease now and then
			b.Errorf("%d of %d gets were no near hits, want %d", s.Gets-s.NearHits, s.Gets, entries)
		}
	})
	return func(keys []string, at, n int) (hits int) {
		for i := at; i < at+n; i++ {
			if _, err := c.Get(ctx, keys[i&(len(keys)-1)]); err == nil {
				hits++
			}
		}
		return hits
	}
}

// BenchmarkNearZipf gets from caches of 100,000 entries, filled read-through, with the popularity of Zipf 0.99 over a million keys. The
// map holds the 100,000 most popular keys. nearcache is the engine of the near copies without the library around it.
func BenchmarkNearZipf(b *testing.B) {
	const ids, capacity = 1_000_000, 100_000
	keys := zipf(1, ids, 1<<20, 0.99)
	value := make([]byte, 16)
	clk := clock.New()
	b.Cleanup(clk.Close)
	near, m, o := near.New[[]byte](store.Config{MaxBytes: 1 << 40, MaxEntries: capacity}), make(map[string][]byte), newOtter(b, capacity)
	for i := range capacity {
		m[zipfKey(i)] = value
	}
	src := newSource()
	for _, k := range zipf(2, ids, 2<<20, 0.99) {
		if near.Get(k, clk.Now()) == nil {
			near.Install(k, nearItem(src, value), int64(len(value)), math.MaxInt64, clk.Now(), func() bool { return true })
		}
		if _, ok := o.GetIfPresent(k); !ok {
			o.Set(k, value)
		}
	}
	systems := chosenLocals([]local{
		{"nearcache", func(keys []string, at, n int) (hits int) {
			for i := at; i < at+n; i++ {
				if near.Get(keys[i&(len(keys)-1)], clk.Now()) != nil {
					hits++
				}
			}
			return hits
		}},
		{"map", func(keys []string, at, n int) (hits int) {
			for i := at; i < at+n; i++ {
				if _, ok := m[keys[i&(len(keys)-1)]]; ok {
					hits++
				}
			}
			return hits
		}},
		otterLocal(o),
	})
	compareLocals(b, systems, keys, 1)
}

// newSource returns a peer's stream of invalidations with a lease that lasts.
func newSource() *near.Source {
	src := new(near.Source)
	src.LeaseUntil.Store(math.MaxInt64)
	return src
}

func nearItem(src *near.Source, value []byte) near.Item[[]byte] {
	return near.Item[[]byte]{Value: value, Source: src}
}

func newOtter(b *testing.B, size int) *otter.Cache[string, []byte] {
	b.Helper()
	clk := otter.NewCoarseClock(5 * time.Millisecond)
	b.Cleanup(clk.Stop)
	o, err := otter.New(&otter.Options[string, []byte]{
		MaximumSize: size, Clock: clk, ExpiryCalculator: otter.ExpiryWriting[string, []byte](time.Hour),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { o.StopAllGoroutines() })
	return o
}

func otterLocal(o *otter.Cache[string, []byte]) local {
	return local{"otter", func(keys []string, at, n int) (hits int) {
		for i := at; i < at+n; i++ {
			if _, ok := o.GetIfPresent(keys[i&(len(keys)-1)]); ok {
				hits++
			}
		}
		return hits
	}}
}

func chosenLocals(all []local) (out []local) {
	for _, l := range all {
		if chosen(l.name) {
			out = append(out, l)
		}
	}
	return out
}

// compareLocals measures systems with a number of goroutines that share the cores: CPU time per get, which neighbours on the
// machine disturb least, and wall time.
func compareLocals(b *testing.B, systems []local, keys []string, goroutines int) {
	b.Helper()
	type figures struct{ cpu, wall, hits, allocs []float64 }
	all := make(map[string]*figures)
	for _, s := range systems {
		all[s.name] = &figures{}
		s.run(keys, 0, 100_000)
	}
	inRounds(b, systems, func(order []local) {
		for _, s := range order {
			f := all[s.name]
			runtime.GC() // no debts of the one before
			before, begin := usageNow(), time.Now()
			n, hits := runLocal(s, keys, goroutines, *slice/2)
			took, used := time.Since(begin), usageNow().since(before)
			f.cpu = append(f.cpu, float64(used.CPU)/n)
			f.wall = append(f.wall, float64(took)/n)
			f.hits = append(f.hits, 100*hits/n)
			f.allocs = append(f.allocs, math.Round(float64(used.Mallocs)/n*100)/100)
		}
	})
	base := all["nearcache"]
	for name, f := range all {
		b.ReportMetric(median(f.cpu), name+"-cpu-ns/get")
		b.ReportMetric(median(f.wall), name+"-ns/get")
		b.ReportMetric(median(f.hits), name+"-hit-%")
		b.ReportMetric(median(f.allocs), name+"-allocs/get")
		if base != nil && f != base {
			b.ReportMetric(median(ratios(base.cpu, f.cpu)), "cpu-x-"+name)
		}
	}
}

// runLocal lets goroutines run for a while and returns how many gets and hits there were.
func runLocal(s local, keys []string, goroutines int, d time.Duration) (n, hits float64) {
	const chunk = 10_000
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var mu sync.Mutex // guards n and hits
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			at, got, hit := rand.IntN(len(keys)), 0, 0
			for ctx.Err() == nil {
				hit += s.run(keys, at, chunk)
				got += chunk
				at += chunk
			}
			mu.Lock()
			defer mu.Unlock()
			n += float64(got)
			hits += float64(hit)
		})
	}
	wg.Wait()
	return n, hits
}

func zipfKey(rank int) string {
	return fmt.Sprintf("catalog:product:%08d", uint32(rank)*2654435761%100_000_007)
}

// zipf draws n keys of ids whose popularity falls with the power s of their rank.
func zipf(seed uint64, ids, n int, s float64) []string {
	sum := make([]float64, ids)
	total := 0.0
	for i := range sum {
		total += math.Pow(float64(i+1), -s)
		sum[i] = total
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	keys := make([]string, n)
	for i := range keys {
		keys[i] = zipfKey(sort.SearchFloat64s(sum, rnd.Float64()*total))
	}
	return keys
}
