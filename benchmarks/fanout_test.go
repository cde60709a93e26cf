package benchmarks

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// BenchmarkFanOut invalidates keys of which ten members have near copies, while each of them gets a thousand other values a second from its peers,
// and measures how long it takes from the call until the last copy is gone. The members share this process; a copy is looked for every 200 µs.
func BenchmarkFanOut(b *testing.B) {
	const members = 10
	c := testcluster.Loopback(b, members)
	c.Warm()
	var caches, busy []*nearcache.Cache[[]byte]
	for _, n := range c.Nodes {
		caches = append(caches, openCache(b, n, nearKeyspace, nearConfig()))
		busy = append(busy, openCache(b, n, keyspace, remoteConfig()))
	}
	stop := trickleGets(b, busy, time.Millisecond)
	defer stop()
	var took, confirmed []float64 // ms
	n := max(1, int(*slice/(3*time.Millisecond)))
	invalidate := func() {
		key := valueKey(valueBytes, len(took))
		all, call := fanOut(b, caches, key, caches[len(took)%members])
		took, confirmed = append(took, all), append(confirmed, call)
	}
	eachRound(b, func() {
		for range n {
			invalidate()
		}
	})
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "p50-ms")
	b.ReportMetric(took[len(took)*99/100], "p99-ms")
	b.ReportMetric(median(confirmed), "call-p50-ms")
}

// fanOut gives every cache a copy of key, and invalidates it. It returns how many milliseconds later all copies were gone, and the call had returned.
func fanOut(b *testing.B, caches []*nearcache.Cache[[]byte], key string, by *nearcache.Cache[[]byte]) (all, call float64) {
	b.Helper()
	ctx := b.Context()
	for _, c := range caches {
		for tries := 0; ; tries++ {
			_, info, err := c.GetInfo(ctx, key)
			if err != nil || tries > 100 {
				b.Fatalf("no near copy of %s: %+v, %v", key, info, err)
			}
			if info.Tier == nearcache.TierNear {
				break
			}
		}
	}
	begin := time.Now()
	if err := by.Invalidate(ctx, key); err != nil {
		b.Fatal(err)
	}
	call = float64(time.Since(begin)) / 1e6
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	left := slices.Clone(caches)
	for {
		at := time.Now() // a copy that Peek does not find was gone before
		left = slices.DeleteFunc(left, func(c *nearcache.Cache[[]byte]) bool {
			_, there, err := c.Peek(ctx, key)
			return err == nil && !there
		})
		if len(left) == 0 {
			return float64(at.Sub(begin)) / 1e6, call
		}
		<-tick.C
	}
}

// trickleGets lets each cache get a value every so often until stop.
func trickleGets(b *testing.B, caches []*nearcache.Cache[[]byte], every time.Duration) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	for i, c := range caches {
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for k := i; ctx.Err() == nil; k++ {
				if _, err := c.Get(ctx, valueKey(valueBytes, k%1000)); err != nil && ctx.Err() == nil {
					b.Errorf("a get: %v", err)
					return
				}
				<-tick.C
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}
