package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// R17: after Expire every member serves the old value at once, marked stale, while one load in the whole cluster replaces it; then the new one.
func TestExpire(t *testing.T) {
	for name, size := range map[string]int{"small values": 0, "values that travel alone": 100 << 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const load = 500 * time.Millisecond
				c := testcluster.Bubble(t, 3)
				var version, loads atomic.Int64
				pad := strings.Repeat(".", size)
				caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: time.Minute, Load: func(context.Context, string) (string, error) {
					loads.Add(1)
					v := version.Load()
					time.Sleep(load)
					return fmt.Sprint(v, pad), nil
				}})
				for owner := range 3 {
					key := testcluster.Key(c.Nodes[0], "ks", fmt.Sprint("n", owner), 0)
					version.Store(1)
					wantEverywhere(t, "before", caches, key, "1"+pad)
					version.Store(2)
					if err := caches[1].Expire(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					time.Sleep(5 * time.Millisecond) // the near copies hear of it
					loads.Store(0)
					began := time.Now()
					var wg sync.WaitGroup
					for range 20 {
						for i, cache := range caches {
							wg.Go(func() {
								v, info, err := cache.GetInfo(t.Context(), key)
								switch {
								case err != nil:
									t.Errorf("node %d: %v", i, err)
								case !info.Stale && v != "2"+pad, info.Stale && v != "1"+pad:
									t.Errorf("node %d: got %.3q, stale: %v", i, v, info.Stale)
								case !info.Stale && size == 0:
									t.Errorf("node %d waited for the load", i)
								}
							})
						}
						m, err := caches[0].GetMany(t.Context(), []string{key})
						if err != nil || m[key] != "1"+pad && (size == 0 || m[key] != "2"+pad) { // with a lease it waits for a large value
							t.Errorf("GetMany: got %.3q, %v, want the stale value", m[key], err)
						}
						time.Sleep(10 * time.Millisecond)
					}
					wg.Wait()
					if took := time.Since(began); size == 0 && took > 300*time.Millisecond {
						t.Errorf("the reads took %v: they waited", took)
					}
					time.Sleep(load)
					if got := loads.Load(); got != 1 && (size == 0 || got > 2) { // a lease may be lost beside an answer that travels alone
						t.Errorf("%d loads, want 1", got)
					}
					for i, cache := range caches {
						if v, info, err := cache.GetInfo(t.Context(), key); v != "2"+pad || info.Stale || err != nil {
							t.Errorf("after the load: node %d got %.3q, stale: %v, %v", i, v, info.Stale, err)
						}
					}
				}
				if got := caches[0].Stats().Stale; got == 0 {
					t.Error("Stats counts no stale values")
				}
			})
		})
	}
}

// A stale copy is served while loads fail, but not for longer than its lifetime; an absence is no stale copy, and neither is what Invalidate
// dropped.
func TestExpiredValuesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		c := testcluster.Bubble(t, 3)
		down := errors.New("the database is down")
		var failing atomic.Bool
		caches := open(t, c, "ks", nearcache.Config[string]{TTL: ttl, Jitter: -1, NearTTL: -1, Load: func(_ context.Context, key string) (string, error) {
			if failing.Load() {
				return "", down
			}
			if strings.HasPrefix(key, "absent") {
				return "", nearcache.ErrNotFound
			}
			return "v", nil
		}})
		began := time.Now()
		for _, k := range []string{"k", "dropped"} {
			wantEverywhere(t, "before", caches, k, "v")
		}
		if _, err := caches[0].Get(t.Context(), "absent"); !errors.Is(err, nearcache.ErrNotFound) {
			t.Fatal(err)
		}
		failing.Store(true)
		if err := caches[0].Expire(t.Context(), "k", "dropped", "absent"); err != nil {
			t.Fatal(err)
		}
		if err := caches[2].Invalidate(t.Context(), "dropped"); err != nil {
			t.Fatal(err)
		}
		for time.Since(began) < ttl-100*time.Millisecond {
			for i, cache := range caches {
				if v, info, err := cache.GetInfo(t.Context(), "k"); v != "v" || !info.Stale || err != nil {
					t.Fatalf("node %d, %v after the load: got %q, stale: %v, %v", i, time.Since(began), v, info.Stale, err)
				}
				for _, gone := range []string{"dropped", "absent"} {
					if v, err := cache.Get(t.Context(), gone); err == nil || errors.Is(err, nearcache.ErrNotFound) {
						t.Fatalf("node %d: %s: got %q, %v, want the load's error", i, gone, v, err)
					}
				}
			}
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		for i, cache := range caches {
			if v, err := cache.Get(t.Context(), "k"); err == nil {
				t.Errorf("node %d: got %q beyond the lifetime", i, v)
			}
		}
	})
}
