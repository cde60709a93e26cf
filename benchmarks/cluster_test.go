package benchmarks

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// BenchmarkOwnerKilled kills one of three owner processes while 64 callers get what they own, and measures the gets of the killed one's keys in the
// first second.
func BenchmarkOwnerKilled(b *testing.B) {
	v := values{valueBytes, 4 << 10}
	n, list := clientNode(b, nil)
	spec := ownerSpec{Keyspaces: []string{keyspace}, Values: []values{v}}
	killed := joinOwners(b, n, list, spec, spec, spec)[0]
	var loads atomic.Int64
	cfg := remoteConfig()
	cfg.Load = func(ctx context.Context, key string) ([]byte, error) {
		loads.Add(1)
		return loadValue(ctx, key)
	}
	c := openCache(b, n, keyspace, cfg)
	var affected []string
	for _, k := range keysOf(v.Size, v.N) {
		if n.Owner(keyspace, k).Addr == killed.Nearcache[0] {
			affected = append(affected, k)
		}
	}
	get := func(ctx context.Context, rnd *rand.Rand) error {
		got, err := c.Get(ctx, affected[rnd.IntN(len(affected))])
		return check(len(got), v.Size, err)
	}
	var before, after []float64 // µs
	once(b, func() {
		_, before = runSlice(b, 64, *slice, get)
		if err := killed.cmd.Process.Kill(); err != nil {
			b.Fatal(err)
		}
		_, after = runSlice(b, 64, time.Second, get) // any error is fatal
	})
	slices.Sort(before)
	slices.Sort(after)
	b.ReportMetric(before[len(before)*99/100]/1e3, "before-p99-ms")
	b.ReportMetric(after[len(after)*99/100]/1e3, "p99-ms")
	b.ReportMetric(after[len(after)-1]/1e3, "max-ms")
	b.ReportMetric(float64(loads.Load())/float64(len(affected)), "loads/key")
}

// BenchmarkColdKey lets 1,000 callers on each of ten members get one key that is nowhere, and counts the loads.
func BenchmarkColdKey(b *testing.B) {
	const members, callers = 10, 1000
	c := testcluster.Loopback(b, members)
	c.Warm() // else a value lives a Bound, which on a busy machine is over before the last caller comes
	var loads atomic.Int64
	var caches []*nearcache.Cache[[]byte]
	for _, n := range c.Nodes {
		caches = append(caches, openCache(b, n, keyspace, nearcache.Config[[]byte]{Load: func(ctx context.Context, key string) ([]byte, error) {
			loads.Add(1)
			<-time.After(20 * time.Millisecond) // an origin
			return loadValue(ctx, key)
		}}))
	}
	keys := 0
	eachRound(b, func() {
		key := valueKey(valueBytes, keys)
		keys++
		var wg sync.WaitGroup
		for i := range members * callers {
			wg.Go(func() {
				if v, err := caches[i%members].Get(b.Context(), key); check(len(v), valueBytes, err) != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	})
	b.ReportMetric(float64(loads.Load())/float64(keys), "loads/key")
}

// BenchmarkByteBudget puts values of 1 MiB into a store of 64 MiB as fast as it goes, and looks how much more it holds: over is in
// entries per shard.
func BenchmarkByteBudget(b *testing.B) {
	const budget, size = 64 << 20, 1 << 20
	s := store.New[[]byte](store.Config{MaxBytes: budget, Shards: 4})
	held := int64(0)
	eachRound(b, func() {
		for range 1000 {
			tx := s.Begin(fmt.Sprint(rand.Uint64()))
			tx.Put(make([]byte, size), size, math.MaxInt64, 0)
			tx.End()
			held = max(held, s.Stats().Bytes)
		}
	})
	b.ReportMetric(float64(max(0, held-budget))/size/float64(s.Shards()), "over")
	b.ReportMetric(100*float64(held)/budget, "held-%")
}

// BenchmarkExpired lets 50,000 keys a second come in with a lifetime of one, and sweeps as a node does: the store knows no clock, so that this takes
// no such time. held-% are the expired entries that are still there, at most, of those that live.
func BenchmarkExpired(b *testing.B) {
	const perMilli, life, pause = 50, int64(time.Second), int64(12500 * time.Microsecond)
	worst := 0.0
	eachRound(b, func() {
		s, swept := store.New[struct{}](store.Config{MaxBytes: 1 << 30}), int64(0)
		for now := int64(1); now < 4*life; now += int64(time.Millisecond) {
			for range perMilli {
				tx := s.Begin(fmt.Sprint(rand.Uint64()))
				tx.Put(struct{}{}, 100, now+life, now)
				tx.End()
			}
			if now > 2*life {
				expired := float64(s.Expired(now))
				worst = max(worst, expired/(float64(s.Stats().Entries)-expired))
			}
			if now-swept >= pause {
				s.Sweep(now)
				swept = now
			}
		}
	})
	b.ReportMetric(100*worst, "held-%")
}
