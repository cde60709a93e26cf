package benchmarks

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
)

// BenchmarkNearHit gets one key of a thousand near copies of values that another process owns, with everything a Get does: lifetime, the lease on
// the owner's invalidations, exact counters, the detection of hot keys.
func BenchmarkNearHit(b *testing.B) {
	const entries = 1000 // that are there: Go's maps treat a handful in another way
	keys := keysOf(valueBytes, entries)
	systems := makeLocals(b, locals()[1:], 2*entries)
	for _, l := range systems {
		l.fill(keys, make([]byte, valueBytes))
	}
	if chosen("nearcache") {
		systems = append([]local{nearLibrary(b, keys)}, systems...)
	}
	hot := keys[entries/2 : entries/2+1] // 24 bytes
	for _, v := range []struct{ procs, goroutines int }{{1, 1}, {1, 64}, {2, 1}, {2, 64}} {
		b.Run(fmt.Sprintf("procs=%d/goroutines=%d", v.procs, v.goroutines), func(b *testing.B) {
			compareLocals(b, systems, onlyGets, hot, v.procs, v.goroutines)
		})
	}
}

// nearLibrary is Cache.Get of a node with near copies of the owner process' values.
func nearLibrary(b *testing.B, keys []string) local {
	b.Helper()
	n, list := clientNode(b, nil)
	joinOwners(b, n, list, ownerSpec{Keyspaces: []string{nearKeyspace}, Values: []values{{valueBytes, len(keys)}}})
	c, ctx := openCache(b, n, nearKeyspace, nearConfig()), b.Context()
	for _, k := range keys {
		if _, info, err := c.GetInfo(ctx, k); err != nil || info.Tier != nearcache.TierOwner {
			b.Fatalf("first get of a key: %+v, %v", info, err)
		}
	}
	b.Cleanup(func() {
		if s := c.Stats(); s.Gets-s.NearHits > uint64(len(keys))+s.Gets/10_000 { // a starved process may lose its lease now and then
			b.Logf("%d of %d gets were no near hits, instead of %d: this machine is too busy, the figures mean little", s.Gets-s.NearHits, s.Gets, len(keys))
		}
	})
	return local{
		name: "nearcache",
		hits: func(keys []string, at, n int) (hits int) {
			for i := at; i < at+n; i++ {
				if _, err := c.Get(ctx, keys[i&(len(keys)-1)]); err == nil {
					hits++
				}
			}
			return hits
		},
	}
}

const (
	zipfIDs      = 1_000_000
	zipfCapacity = 100_000
)

// BenchmarkNearZipf gets from caches of 100,000 entries with the popularity of Zipf 0.99 over a million keys. What does not evict holds the
// 100,000 most popular keys. Gets only, then 5 % writes, then read-through: what is missing is set. nearcache is the engine of the near copies
// without the library around it.
func BenchmarkNearZipf(b *testing.B) {
	keys, value := zipf(1, zipfIDs, 1<<20, 0.99), make([]byte, 16)
	warm := zipf(2, zipfIDs, 2<<20, 0.99)
	bounded := makeLocals(b, slices.DeleteFunc(locals(), func(m maker) bool { return !m.evicts() }), zipfCapacity)
	for _, l := range bounded {
		loop := readThrough(l)
		for at := 0; at < len(warm); at += 4096 {
			loop(warm, at, 4096)
			if l.settle != nil {
				l.settle()
			}
		}
	}
	unbounded := makeLocals(b, slices.DeleteFunc(locals(), maker.evicts), zipfCapacity)
	for _, l := range unbounded {
		for i := range zipfCapacity {
			l.set(zipfKey(i), value)
		}
	}
	all := append(unbounded, bounded...)
	for _, load := range []struct {
		name    string
		do      work
		systems []local
	}{{"gets", onlyGets, all}, {"writes=5", mixed, shared(all)}, {"read-through", readThrough, bounded}} {
		for _, procs := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/procs=%d", load.name, procs), func(b *testing.B) {
				compareLocals(b, load.systems, load.do, keys, procs, procs)
			})
		}
	}
}

// BenchmarkNearUniform gets resident keys, each as often as any other: what is measured is the memory's speed. With ten thousand and four million
// keys only some of the systems take part, for the sake of growth.
func BenchmarkNearUniform(b *testing.B) {
	for _, entries := range []int{10_000, 1_000_000, 4_000_000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			makers := locals()
			if entries != 1_000_000 {
				makers = slices.DeleteFunc(makers, func(m maker) bool {
					return !slices.Contains([]string{"nearcache", "map", "xsync.Map", "otter"}, m.name)
				})
			}
			resident, keys := keysOf(valueBytes, entries), make([]string, 1<<20)
			for i := range keys {
				keys[i] = resident[rand.IntN(entries)]
			}
			systems := makeLocals(b, makers, entries+entries/4) // room enough for shards that are not equally full
			for _, l := range systems {
				l.fill(resident, make([]byte, 16))
			}
			for _, procs := range []int{1, 2} {
				b.Run(fmt.Sprintf("procs=%d", procs), func(b *testing.B) {
					compareLocals(b, systems, onlyGets, keys, procs, procs)
				})
			}
		})
	}
}

// work is what is done with a system, as a loop like local.hits.
type work func(local) func(keys []string, at, n int) int

func onlyGets(l local) func([]string, int, int) int { return l.hits }

// mixed sets every twentieth key.
func mixed(l local) func([]string, int, int) int {
	value := make([]byte, 16)
	return func(keys []string, at, n int) (hits int) {
		for i := at; i < at+n; i++ {
			key := keys[i&(len(keys)-1)]
			switch {
			case i%20 == 0:
				l.set(key, value)
			case l.peek(key):
				hits++
			}
		}
		return hits
	}
}

// readThrough sets what is not there.
func readThrough(l local) func([]string, int, int) int {
	value := make([]byte, 16)
	return func(keys []string, at, n int) (hits int) {
		for i := at; i < at+n; i++ {
			if key := keys[i&(len(keys)-1)]; l.peek(key) {
				hits++
			} else {
				l.set(key, value)
			}
		}
		return hits
	}
}

// shared leaves out what goroutines may not set concurrently.
func shared(all []local) (out []local) {
	for _, l := range all {
		if l.shared {
			out = append(out, l)
		}
	}
	return out
}

// compareLocals measures systems with a number of goroutines that share so many processors: processor time per get, which neighbours on the
// machine disturb least, and wall time.
func compareLocals(b *testing.B, systems []local, do work, keys []string, procs, goroutines int) {
	b.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i] = strings.Clone(keys[i]) // as a caller's are: the very string that a map holds it need not compare
	}
	type figures struct{ cpu, wall, hits, allocs []float64 }
	all := make(map[string]*figures)
	for _, s := range systems {
		all[s.name] = &figures{}
	}
	inRounds(b, systems, func(order []local) {
		runtime.GC()
		for _, s := range order {
			f, loop := all[s.name], do(s)
			loop(keys, rand.IntN(len(keys)), 20_000)
			before, begin := usageNow(), time.Now()
			n, hits := runLocal(loop, keys, goroutines, *slice/2)
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
func runLocal(loop func([]string, int, int) int, keys []string, goroutines int, d time.Duration) (n, hits float64) {
	const chunk = 10_000
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var mu sync.Mutex // guards n and hits
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			at, got, hit := rand.IntN(len(keys)), 0, 0
			for ctx.Err() == nil {
				hit += loop(keys, at, chunk)
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
	names := make([]string, ids)
	sum := make([]float64, ids)
	total := 0.0
	for i := range sum {
		names[i] = zipfKey(i)
		total += math.Pow(float64(i+1), -s)
		sum[i] = total
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	keys := make([]string, n)
	for i := range keys {
		keys[i] = names[sort.SearchFloat64s(sum, rnd.Float64()*total)]
	}
	return keys
}
