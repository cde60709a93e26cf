package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// warmKeys are n keys; of a hundred one fails and one does not exist.
func warmKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		switch i % 100 {
		case 1:
			keys[i] = fmt.Sprint("fails-", i)
		case 2:
			keys[i] = fmt.Sprint("absent-", i)
		default:
			keys[i] = fmt.Sprint("k-", i)
		}
	}
	return keys
}

// Case L2-14. Members that warm the same keys at once share the loads; readers are not held up, nor is Close, and what fails stops nothing.
func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 5)
		const took, keys, perSecond = 20 * time.Millisecond, 2000, 50
		var loads, running, most atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{
			MaxLoads: 8, NotFoundTTL: time.Hour, Load: func(_ context.Context, key string) (string, error) {
				loads.Add(1)
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				time.Sleep(took)
				switch {
				case strings.HasPrefix(key, "fails"):
					return "", errDown
				case strings.HasPrefix(key, "absent"):
					return "", nearcache.ErrNotFound
				}
				return "v", nil
			},
		})
		list := warmKeys(keys)
		errs := make([]error, len(caches))
		var wg sync.WaitGroup
		began := time.Now()
		for i, cache := range caches {
			wg.Go(func() { errs[i] = cache.Warm(t.Context(), slices.Values(list), perSecond) })
		}
		if err := c.Nodes[0].Ready(t.Context()); err != nil || time.Since(began) > time.Second {
			t.Errorf("not ready beside a Warm: %v after %v", err, time.Since(began))
		}
		for i := range 50 {
			start := time.Now()
			if _, err := caches[i%5].Get(t.Context(), fmt.Sprint("live-", i)); err != nil || time.Since(start) > 100*time.Millisecond {
				t.Errorf("beside a Warm: %v after %v", err, time.Since(start))
			}
		}
		time.Sleep(time.Second)
		if got, limit := loads.Load(), int64(time.Since(began)/time.Second+1)*perSecond*5+50; got > limit {
			t.Errorf("%d loads after %v, want %d at most", got, time.Since(began), limit)
		}
		start := time.Now()
		if err := caches[4].Close(t.Context()); err != nil || time.Since(start) > 2100*time.Millisecond {
			t.Errorf("Close beside a Warm: %v after %v", err, time.Since(start))
		}
		wg.Wait()
		if !errors.Is(errs[4], nearcache.ErrClosed) {
			t.Errorf("the closed one: got %v, want ErrClosed", errs[4])
		}
		for i, err := range errs[:4] {
			be, ok := errors.AsType[*nearcache.BatchError](err)
			if !ok || len(be.Errs) != keys/100 {
				t.Errorf("node %d: got %v, want an error for each of %d keys", i, err, keys/100)
			}
		}
		if most.Load() > 5*4+1 {
			t.Errorf("%d loads at once, want half of the slots at most", most.Load())
		}
		before := loads.Load()
		_ = caches[0].Warm(t.Context(), slices.Values(list), perSecond)
		if n := loads.Load() - before; n > keys/100+keys/4 { // the closed one owned a fifth of them
			t.Errorf("warming again took %d loads, want those that failed and those of the member that was closed", n)
		}
		if m := before; m > keys*13/10 {
			t.Errorf("%d loads of %d keys: they were not shared", m, keys)
		}
	})
}

// A Warm whose loads are shed waits and goes on; one that is interrupted is resumed by another with the same keys.
func TestWarmGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 50 * time.Millisecond
		var loads atomic.Int64
		cache, err := nearcache.New(nil, "ks", nearcache.Config[string]{
			MaxLoads: 2, Load: func(context.Context, string) (string, error) { loads.Add(1); time.Sleep(took); return "v", nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close(t.Context())
		busy, calm := context.WithCancel(t.Context())
		for i := range 2 {
			go func() {
				for n := 0; busy.Err() == nil; n++ {
					if _, err := cache.Get(t.Context(), fmt.Sprint(i, "-", n)); err != nil {
						t.Errorf("a reader beside a Warm: %v", err)
					}
				}
			}()
		}
		synctest.Wait()
		list := warmKeys(100)[10:]
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := cache.Warm(ctx, slices.Values(list), 1000); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
		calm()
		time.Sleep(time.Second)
		loads.Store(0)
		if err := cache.Warm(t.Context(), slices.Values(list), 20); err != nil {
			t.Error(err)
		}
		first := loads.Swap(0)
		began := time.Now()
		if err := cache.Warm(t.Context(), slices.Values(list), 20); err != nil || loads.Load() != 0 || time.Since(began) > time.Second {
			t.Errorf("when all is there: %v, %d loads, %v", err, loads.Load(), time.Since(began))
		}
		if first == 0 || first > int64(len(list)) {
			t.Errorf("%d loads of %d keys", first, len(list))
		}
	})
}

// Single Gets that miss within Gather are loaded by one LoadMany; each gets its own end.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var calls, keysLoaded, largest atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{
			Gather: 5 * time.Millisecond,
			Load:   func(context.Context, string) (string, error) { return "", errors.New("Load was used") },
			LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
				calls.Add(1)
				keysLoaded.Add(int64(len(keys)))
				largest.Store(max(largest.Load(), int64(len(keys))))
				m := make(map[string]string)
				for _, k := range keys {
					if !strings.HasPrefix(k, "absent") {
						m[k] = "v" + k
					}
				}
				return m, nil
			},
		})
		const keys = 1200
		var wg sync.WaitGroup
		for i := range keys {
			for _, cache := range caches[:2] {
				wg.Go(func() {
					key := fmt.Sprint("k", i)
					if i%10 == 0 {
						key = fmt.Sprint("absent", i)
					}
					v, err := cache.Get(t.Context(), key)
					if i%10 == 0 && !errors.Is(err, nearcache.ErrNotFound) || i%10 > 0 && (v != "v"+key || err != nil) {
						t.Errorf("%s: got %q, %v", key, v, err)
					}
				})
			}
		}
		wg.Wait()
		if n := keysLoaded.Load(); n != keys {
			t.Errorf("%d keys loaded, want each of %d once", n, keys)
		}
		if n, most := calls.Load(), largest.Load(); n > 10 || most > 512 {
			t.Errorf("%d calls of LoadMany, %d keys at most, want a few of 512 at most", n, most)
		}
		began := time.Now()
		if v, err := caches[0].Get(t.Context(), "alone"); v != "valone" || err != nil || time.Since(began) > 10*time.Millisecond {
			t.Errorf("one alone: got %q, %v after %v", v, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := caches[0].Get(ctx, "impatient"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the caller's own deadline", err)
		}
		time.Sleep(time.Second)
		wantIdle(t, caches)
	})
}
