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

// loaderOf is a loader of the cache of node i.
type loaderOf func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error)

// openNested opens a keyspace whose loader calls the cache of the node that it runs on.
func openNested(t *testing.T, c *testcluster.Cluster, name string, cfg nearcache.Config[string], load loaderOf) []*nearcache.Cache[string] {
	t.Helper()
	caches := make([]*nearcache.Cache[string], len(c.Nodes))
	for i, n := range c.Nodes {
		cfg := cfg
		cfg.Load = func(ctx context.Context, key string) (string, error) { return load(ctx, caches[i], key) }
		var err error
		if caches[i], err = nearcache.New(n, name, cfg); err != nil {
			t.Fatal(err)
		}
	}
	return caches
}

// wantCircle checks that err tells of the circle.
func wantCircle(t *testing.T, when string, err error, circle ...string) {
	t.Helper()
	e, ok := errors.AsType[*nearcache.CircularLoadError](err)
	if !ok || !slices.Equal(e.Circle, circle) {
		t.Errorf("%s: got %v, want the circle %v", when, err, circle)
	}
}

// Case singleflight-7. Loads that need each other, whatever call they use: the callers get an error at once, nothing is left, and those who read other keys do not notice.
func TestCirclesEndAtOnce(t *testing.T) {
	needs := map[string]string{"s": "s", "a": "b", "b": "a", "x": "y", "y": "z", "z": "x"}
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for _, call := range []string{"Get", "GetInfo", "GetMany", "Refresh"} {
			caches := openNested(t, c, call, nearcache.Config[string]{LoadTimeout: time.Second, NearTTL: -1}, func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error) {
				if needs[key] == "" {
					return "v", nil
				}
				return everyGet(c)[call](ctx, needs[key])
			})
			for n, cache := range caches {
				start := time.Now()
				others := readOthers(t, cache)
				for key, circle := range map[string][]string{"s": {"s"}, "a": {"a", "b"}, "b": {"b", "a"}, "z": {"z", "x", "y"}} {
					for i, k := range circle {
						circle[i] = fmt.Sprintf("%s/%q", call, k)
					}
					for name, get := range everyGet(cache) {
						_, err := get(t.Context(), key)
						wantCircle(t, fmt.Sprintf("node %d: %s of %s, whose loader calls %s", n, name, key, call), err, circle...)
					}
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("node %d, %s: took %v, want no time", n, call, took)
				}
				others.Wait()
				wantIdle(t, caches)
			}
		}
	})
}

// readOthers begins to read other keys.
func readOthers[V any](t *testing.T, cache *nearcache.Cache[V]) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for k := range 20 {
				at := time.Now()
				if _, err := cache.Get(t.Context(), fmt.Sprintf("free-%d-%d", i, k)); err != nil {
					t.Errorf("an unrelated key: %v", err)
				}
				if took := time.Since(at); took > 5*time.Millisecond {
					t.Errorf("an unrelated key took %v", took)
				}
			}
		})
	}
	return &wg
}

// Case singleflight-7. A LoadMany that reads its own keys.
func TestALoadManyThatNeedsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := make([]*nearcache.Cache[string], 2)
		for i, n := range c.Nodes {
			var err error
			caches[i], err = nearcache.New(n, "ks", nearcache.Config[string]{LoadTimeout: time.Second, LoadMany: func(ctx context.Context, keys []string) (map[string]string, error) {
				if slices.Contains(keys, "free") {
					return map[string]string{"free": "v"}, nil
				}
				m, err := caches[i].GetMany(ctx, append([]string{"free"}, keys...))
				if m["free"] != "v" || len(m) != 1 {
					t.Errorf("got %v, want the key that is none of its own", m)
				}
				b, ok := errors.AsType[*nearcache.BatchError](err)
				if !ok || len(b.Errs) != len(keys) {
					t.Errorf("got %v, want an error for each of %v", err, keys)
				}
				for _, k := range keys {
					wantCircle(t, k, b.Errs[k], fmt.Sprintf("ks/%q", k))
				}
				return nil, err
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		for _, cache := range caches {
			_, err := cache.GetMany(t.Context(), []string{keyWith(c, "a", "n0"), keyWith(c, "b", "n1"), keyWith(c, "c", "n0")})
			if _, ok := errors.AsType[*nearcache.CircularLoadError](err); !ok {
				t.Errorf("got %v, want a *CircularLoadError in it", err)
			}
			wantIdle(t, caches)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("took %v, want no time", took)
		}
	})
}

// Case singleflight-7. A circle through two keyspaces, which two callers enter at the same time from both ends: one call is refused, and a
// loader that can do without goes on.
func TestACircleIsClosedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		var all [2][]*nearcache.Cache[string]
		var refused atomic.Int64
		for i := range all {
			all[i] = openNested(t, c, fmt.Sprint("ks", i), nearcache.Config[string]{LoadTimeout: time.Second}, func(ctx context.Context, cache *nearcache.Cache[string], key string) (string, error) {
				node := slices.Index(all[i], cache)
				time.Sleep(10 * time.Millisecond)
				v, err := all[1-i][node].Get(ctx, key)
				if _, ok := errors.AsType[*nearcache.CircularLoadError](err); ok {
					refused.Add(1)
					return "without", nil
				}
				return "with " + v, err
			})
		}
		for n := range c.Nodes {
			key := strings.Repeat("k", 100+n)
			var got [2]string
			var wg sync.WaitGroup
			for i := range all {
				wg.Go(func() {
					var err error
					if got[i], err = all[i][n].Get(t.Context(), key); err != nil {
						t.Errorf("node %d: %v", n, err)
					}
				})
			}
			wg.Wait()
			slices.Sort(got[:])
			if want := [2]string{"with without", "without"}; got != want {
				t.Errorf("node %d: got %q, want %q", n, got, want)
			}
			if got := refused.Swap(0); got != 1 {
				t.Errorf("node %d: %d calls were refused, want 1", n, got)
			}
			wantIdle(t, all[0])
			wantIdle(t, all[1])
		}
	})
}

// Case singleflight-7. The load's own flight is not joined any more when its loader asks for the key: it is too old, or split. The new flight
// waits for the lease of the old one, or would load in turn.
func TestACircleThroughAnotherFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for name, meanwhile := range map[string]func(*nearcache.Cache[string], string){
			"old":   func(*nearcache.Cache[string], string) { time.Sleep(3 * time.Second) },
			"split": func(cache *nearcache.Cache[string], key string) { _ = cache.Invalidate(context.Background(), key) },
		} {
			caches := openNested(t, c, name, nearcache.Config[string]{LoadTimeout: 10 * time.Second, NearTTL: -1}, func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error) {
				meanwhile(c, key)
				return c.Get(ctx, key)
			})
			for _, owner := range []string{"n0", "n1"} {
				key := testcluster.Key(c.Nodes[0], name, owner, 0)
				start := time.Now()
				_, err := caches[0].Get(t.Context(), key)
				wantCircle(t, name, err, fmt.Sprintf("%s/%q", name, key))
				if took := time.Since(start); took > 3*time.Second {
					t.Errorf("%s, owner %s: took %v", name, owner, took)
				}
				wantIdle(t, caches)
			}
		}
	})
}

// What a loader leaves behind does not wait for the load: it may read the load's key, and closes no circle.
func TestWhatALoaderLeavesBehindIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		var left sync.WaitGroup
		caches := openNested(t, c, "ks", nearcache.Config[string]{NearTTL: -1, TTLOf: func(string, string) time.Duration { return -1 }}, func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error) {
			time.Sleep(10 * time.Millisecond)
			if key == "b" {
				return c.Get(ctx, "a")
			}
			if ctx.Value(testKey{}) == nil {
				return "v", nil
			}
			ctx = context.WithValue(context.WithoutCancel(ctx), testKey{}, nil)
			left.Go(func() { // begins to wait while the load runs
				if v, err := c.Get(ctx, "b"); v != "v" || err != nil {
					t.Errorf("begun in time: got %q, %v", v, err)
				}
			})
			left.Go(func() { // begins when it is over
				time.Sleep(time.Second)
				if v, err := c.Get(ctx, "a"); v != "v" || err != nil {
					t.Errorf("begun afterwards: got %q, %v", v, err)
				}
			})
			synctest.Wait()
			return "v", nil
		})
		for n, cache := range caches {
			if v, err := cache.Get(context.WithValue(t.Context(), testKey{}, true), "a"); v != "v" || err != nil {
				t.Errorf("node %d: got %q, %v", n, v, err)
			}
			left.Wait()
			wantIdle(t, caches)
		}
	})
}

type testKey struct{}

// A load that has got what it waited for waits no more: who needs its key later closes no circle.
func TestALoadThatGoesOnWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for _, call := range []string{"Get", "GetInfo", "GetMany", "Refresh"} {
			var turned atomic.Bool // a needs b first, later b needs a
			caches := openNested(t, c, call, nearcache.Config[string]{NearTTL: -1, TTLOf: func(string, string) time.Duration { return -1 }}, func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error) {
				switch {
				case key == "b" && turned.Load():
					return c.Get(ctx, "a")
				case key == "b":
					return "v", nil
				}
				v, err := everyGet(c)[call](ctx, "b")
				turned.Store(true)
				time.Sleep(100 * time.Millisecond)
				return v, err
			})
			go func() {
				if v, err := caches[0].Get(t.Context(), "a"); v != "v" || err != nil {
					t.Errorf("%s: a: got %q, %v", call, v, err)
				}
			}()
			time.Sleep(50 * time.Millisecond)
			if v, err := caches[0].Get(t.Context(), "b"); v != "v" || err != nil {
				t.Errorf("%s: b: got %q, %v", call, v, err)
			}
			synctest.Wait()
			wantIdle(t, caches)
		}
	})
}

// Case singleflight-7. A circle that no node sees: a is loaded by n0 and b by n1, and each waits for the other's lease; or the loader does not
// pass its context on. It ends when the loads do, or when the callers leave, and nothing is left of it.
func TestCirclesThatNobodySees(t *testing.T) {
	for name, tt := range map[string]struct {
		limit, patience time.Duration // LoadTimeout, the callers' deadlines
		deaf            bool          // the loaders call with a context of their own
		took            time.Duration // at most
	}{
		"two processes":                       {2 * time.Second, time.Hour, false, 2 * time.Second},
		"two processes, callers leave":        {2 * time.Second, 500 * time.Millisecond, false, 500 * time.Millisecond},
		"two processes, no limit, they leave": {-1, 500 * time.Millisecond, false, 500 * time.Millisecond},
		"two processes, no limit":             {-1, 3 * time.Hour, false, time.Hour + time.Second},
		"deaf":                                {2 * time.Second, time.Hour, true, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				a, b := keyWith(c, "a", "n0"), keyWith(c, "b", "n1")
				needs := map[string]string{a: b, b: a}
				caches := openNested(t, c, "ks", nearcache.Config[string]{LoadTimeout: tt.limit}, func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error) {
					time.Sleep(10 * time.Millisecond)
					if tt.deaf {
						ctx = context.Background()
					}
					return c.Get(ctx, needs[key])
				})
				start := time.Now()
				var wg sync.WaitGroup
				for i, key := range []string{a, b} {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), tt.patience)
						defer cancel()
						_, err := caches[i].Get(ctx, key)
						if took := time.Since(start); err == nil || took > tt.took+50*time.Millisecond {
							t.Errorf("%s: got %v after %v, want an error after %v at most", key, err, took, tt.took)
						}
					})
				}
				wg.Wait()
				time.Sleep(50 * time.Millisecond) // loaders whose callers have left learn it
				wantIdle(t, caches)
			})
		})
	}
}

// Case singleflight-7. A chain of loads is deeper than there are slots.
func TestAChainOfLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := openNested(t, c, "ks", nearcache.Config[string]{MaxLoads: 2}, func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error) {
			if len(key) == 1 {
				return "v", nil
			}
			return c.Get(ctx, key[1:])
		})
		for i, depth := range []int{20, 25} {
			if v, err := caches[i].Get(t.Context(), strings.Repeat("d", depth)); v != "v" || err != nil {
				t.Errorf("node %d: got %q, %v", i, v, err)
			}
		}
		wantIdle(t, caches)
	})
}

// Case singleflight-7. All slots of two nodes are taken by loads that need what queues for a slot on the other node: it comes back to them when
// it is shed there, and runs in their place.
func TestNestedLoadsOfTwoNodesDoNotStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		inner := []string{keyWith(c, "in", "n0"), keyWith(c, "in", "n1")}
		caches := openNested(t, c, "ks", nearcache.Config[string]{MaxLoads: 1}, func(ctx context.Context, c *nearcache.Cache[string], key string) (string, error) {
			if slices.Contains(inner, key) {
				return "v", nil
			}
			time.Sleep(20 * time.Millisecond) // until the other node has the lease
			return c.Get(ctx, strings.TrimPrefix(key, "out-"))
		})
		start := time.Now()
		var wg sync.WaitGroup
		for i, cache := range caches {
			wg.Go(func() {
				if v, err := cache.Get(t.Context(), "out-"+inner[1-i]); v != "v" || err != nil {
					t.Errorf("node %d: got %q, %v", i, v, err)
				}
			})
			wg.Go(func() {
				time.Sleep(10 * time.Millisecond)
				_, err := cache.Get(t.Context(), inner[i])
				if err != nil && !errors.Is(err, nearcache.ErrOverloaded) {
					t.Errorf("node %d, what queued for a slot: got %v", i, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > 150*time.Millisecond {
			t.Errorf("took %v, want LoadQueueTimeout and not much more", took)
		}
		wantIdle(t, caches)
	})
}
