package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// Loads of a higher priority take the slots first; whoever waited for a load of a lower one that is shed starts another.
func TestPriorityOfLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{
			MaxLoads: 2, LoadQueueTimeout: time.Second,
			Load: func(context.Context, string) (string, error) { time.Sleep(300 * time.Millisecond); return "v", nil },
		})
		cache := caches[0]
		var shed [3]atomic.Int64
		var wg sync.WaitGroup
		for i := range 4 {
			for _, p := range []nearcache.Priority{nearcache.PriorityLow, nearcache.PriorityNormal, nearcache.PriorityHigh} {
				wg.Go(func() {
					_, err := cache.Get(nearcache.WithPriority(t.Context(), p), fmt.Sprint(p, "-", i))
					if oe, ok := errors.AsType[*nearcache.OverloadError](err); ok && oe.RetryAfter > 0 {
						shed[p].Add(1)
					} else if err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		wg.Wait()
		if h, n, l := shed[nearcache.PriorityHigh].Load(), shed[nearcache.PriorityNormal].Load(), shed[nearcache.PriorityLow].Load(); h != 0 || n > 1 || l < 3 {
			t.Errorf("shed: %d high, %d normal, %d low; want none, one at most and nearly all", h, n, l)
		}

		for i := range 2 { // both slots are taken until just before the low load is shed, and then again
			go func() { _, _ = cache.Get(t.Context(), fmt.Sprint("busy", i)) }()
		}
		synctest.Wait()
		for i := range 6 {
			go func() { _, _ = cache.Get(t.Context(), fmt.Sprint("busier", i)) }()
		}
		synctest.Wait()
		go func() { _, _ = cache.Get(nearcache.WithPriority(t.Context(), nearcache.PriorityLow), "k") }()
		time.Sleep(900 * time.Millisecond)
		if v, err := cache.Get(t.Context(), "k"); v != "v" || err != nil {
			t.Errorf("got %q, %v, want the value: the low load was shed", v, err)
		}
		time.Sleep(time.Second)
		wantIdle(t, caches)
	})
}

// Case L2-12. A dead origin is asked twenty times a second by each node, whatever is read; when it is back that is seen at once.
func TestADeadOriginIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		const keys, outage = 1000, 15 * time.Second
		var db failingDB
		db.failing.Store(true)
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		served := map[string]bool{}
		offered := 0
		read := func(d time.Duration) {
			for start, i := time.Now(), 0; time.Since(start) < d; time.Sleep(time.Millisecond) {
				for _, cache := range caches {
					key := fmt.Sprint("k", i*7%keys)
					i++
					offered++
					began := time.Now()
					v, err := cache.Get(t.Context(), key)
					_, failed := errors.AsType[*nearcache.LoadError](err)
					switch took := time.Since(began); {
					case took > 20*time.Millisecond:
						t.Errorf("got %v after %v", err, took)
					case err == nil && v > 0:
						served[key] = true
					case !failed && !errors.Is(err, nearcache.ErrOverloaded):
						t.Errorf("got %d, %v, want the load's error or that of an overload", v, err)
					}
				}
			}
		}
		read(time.Second)
		db.loads.Store(0)
		offered = 0
		read(outage - time.Second)
		if n := int(db.loads.Load()); n > offered/10 || n < 100 {
			t.Errorf("%d loads for %d reads, want 10 %% at most", n, offered)
		}
		if !caches[0].Stats().LoaderFailing {
			t.Error("Stats does not say that the loader fails")
		}
		db.failing.Store(false)
		read(3 * time.Second)
		if len(served) < keys*95/100 {
			t.Errorf("%d of %d keys were served 3 s after the heal", len(served), keys)
		}
		wantIdle(t, caches)
	})
}

// What one keyspace does takes neither slots nor memory from another.
func TestKeyspacesAreFairToEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, err := nearcache.Start(t.Context(), nearcache.NodeConfig{MaxBytes: 4 << 20, NearBytes: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer node.Close(t.Context())
		value := make([]byte, 1000)
		load := func(d time.Duration) func(context.Context, string) ([]byte, error) {
			return func(context.Context, string) ([]byte, error) { time.Sleep(d); return value, nil }
		}
		quiet, err := nearcache.New(node, "quiet", nearcache.Config[[]byte]{Load: load(10 * time.Millisecond), NearTTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		storm, err := nearcache.New(node, "storm", nearcache.Config[[]byte]{Load: load(time.Second), NearTTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		const keys = 500
		for i := range keys {
			if _, err := quiet.Get(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		before := quiet.Stats()
		var wg sync.WaitGroup
		for i := range 20_000 {
			wg.Go(func() { _, _ = storm.Get(t.Context(), fmt.Sprint(i)) })
			if i%64 == 0 {
				synctest.Wait()
			}
		}
		for i := range keys {
			began := time.Now()
			if _, err := quiet.Get(t.Context(), fmt.Sprint("new", i)); err != nil || time.Since(began) > 10*time.Millisecond {
				t.Fatalf("beside the storm: %v after %v, want one load", err, time.Since(began))
			}
		}
		wg.Wait()
		for i := range 20_000 {
			if _, err := storm.Set(t.Context(), fmt.Sprint(i), value); err != nil {
				t.Fatal(err)
			}
		}
		if s := storm.Stats(); s.Shed == 0 || s.Evictions == 0 {
			t.Errorf("%d shed, %d evicted: there was no storm", s.Shed, s.Evictions)
		}
		if after := quiet.Stats(); after.Evictions != before.Evictions || after.ShardEntries != 2*keys || after.Shed != 0 {
			t.Errorf("beside the storm: %d evictions, %d entries, %d shed, want none lost", after.Evictions, after.ShardEntries, after.Shed)
		}
	})
}
