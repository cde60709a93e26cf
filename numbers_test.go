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

// Case L1-2. Budgets that hold one entry or none work: every read is right, and no more is held than they say.
func TestTinyBudgets(t *testing.T) {
	for _, nearBytes := range []int64{-1, 1, 100, 500} {
		for _, maxBytes := range []int64{1, 100, 500} {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2, func(_ int, cfg *nearcache.NodeConfig) { cfg.NearBytes, cfg.MaxBytes = nearBytes, maxBytes })
				caches := open(t, c, "ks", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) { return "v" + key, nil }})
				for i := range 100 {
					key := fmt.Sprint("k", i%50)
					wantEverywhere(t, fmt.Sprint("budgets of ", nearBytes, " and ", maxBytes), caches, key, "v"+key)
				}
				for i, cache := range caches {
					if s := cache.Stats(); s.NearBytes > max(nearBytes, 0) || s.ShardBytes > maxBytes {
						t.Errorf("node %d holds %d and %d bytes, want %d and %d at most", i, s.NearBytes, s.ShardBytes, nearBytes, maxBytes)
					}
				}
				wantIdle(t, caches)
			})
		}
	}
}

// Case L1-11. A key that is read all the time is loaded again when its lifetime is over.
func TestReadingDoesNotProlongALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const change = 1500 * time.Millisecond
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: 2 * time.Second, NearTTL: time.Second})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
			if time.Since(start) >= change {
				db.write(key, 2)
			}
			for i, cache := range caches {
				v, err := cache.Get(t.Context(), key)
				if err != nil || v != 2 && time.Since(start) > change+3250*time.Millisecond {
					t.Fatalf("node %d, %v after the change: got %d, %v", i, time.Since(start)-change, v, err)
				}
			}
		}
		if got := db.loads.Load(); got < 4 || got > 12 {
			t.Errorf("got %d loads in 10s, want 4 to 12", got)
		}
	})
}

// Case L1-13. A value that is larger than the near cache passes through it: it is counted, and displaces nothing.
func TestAValueLargerThanTheNearCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2, func(_ int, cfg *nearcache.NodeConfig) { cfg.NearBytes = 1 << 20 })
		caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: time.Hour, TTL: time.Hour, Load: func(_ context.Context, key string) (string, error) {
			if strings.HasPrefix(key, "key-0-") {
				return strings.Repeat("b", 2<<20), nil
			}
			return strings.Repeat("s", 1<<10), nil
		}})
		large := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		var small []string
		for i := range 700 {
			small = append(small, testcluster.Key(c.Nodes[0], "ks", "n1", 1+i))
		}
		for range 3 {
			for _, key := range small {
				if _, err := caches[0].Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
		}
		before := caches[0].Stats()
		if before.NearEntries < 690 {
			t.Fatalf("got %d near copies, want nearly all of 700", before.NearEntries)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					if v, info, err := caches[0].GetInfo(t.Context(), large); len(v) != 2<<20 || info.Tier == nearcache.TierNear || err != nil {
						t.Errorf("got %d bytes from %v, %v, want the value from its owner", len(v), info.Tier, err)
					}
				}
			})
		}
		wg.Wait()
		after := caches[0].Stats()
		if lost := before.NearEntries - after.NearEntries; lost > before.NearEntries/100 {
			t.Errorf("%d of %d near copies were displaced by a value that is not kept", lost, before.NearEntries)
		}
		for _, key := range small {
			if _, err := caches[0].Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		if hits := caches[0].Stats().NearHits - after.NearHits; hits < 690 {
			t.Errorf("got %d near hits of 700 keys afterwards", hits)
		}
	})
}

// Case L2-4. The first read after an absence's end loads, the others are hits, and each read is counted once.
func TestAnAbsenceThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NotFoundTTL: time.Second, TTL: 30 * time.Second})
		alone, err := nearcache.New(nil, "ks", nearcache.Config[int]{Load: db.load, NotFoundTTL: time.Second, TTL: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer alone.Close(t.Context())
		for name, cache := range map[string]*nearcache.Cache[int]{"alone": alone, "the owner": caches[0], "another": caches[1]} {
			key := testcluster.Key(c.Nodes[0], "ks", "n0", len(name))
			if _, err := cache.Get(t.Context(), key); !errors.Is(err, nearcache.ErrNotFound) {
				t.Errorf("%s: got %v, want ErrNotFound", name, err)
			}
			db.write(key, 1)
			time.Sleep(1200 * time.Millisecond)
			before := cache.Stats()
			db.loads.Store(0)
			for range 1000 {
				if v, err := cache.Get(t.Context(), key); v != 1 || err != nil {
					t.Fatalf("%s: got %d, %v, want the value", name, v, err)
				}
			}
			s := cache.Stats()
			if loads, hits := db.loads.Load(), s.NearHits+s.OwnerHits-before.NearHits-before.OwnerHits; loads != 1 || hits != 999 || s.Gets-before.Gets != 1000 {
				t.Errorf("%s: got %d loads and %d hits in %d reads, want 1 and 999 in 1000", name, loads, hits, s.Gets-before.Gets)
			}
		}
	})
}

// Case singleflight-6. All nodes walk the same keys while one of them ends and comes back: nothing is loaded a second time but what it owned.
func TestOneLoadEachWhileANodeIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 4)
		var loads atomic.Int64
		cfg := nearcache.Config[string]{TTL: time.Minute, Load: func(_ context.Context, key string) (string, error) {
			loads.Add(1)
			time.Sleep(5 * time.Millisecond)
			return "v" + key, nil
		}}
		caches := open(t, c, "ks", cfg)
		const keys, callers = 400, 16
		owned := 0
		for i := range keys {
			key := fmt.Sprint("k", i)
			if c.Nodes[0].Owner("ks", key).ID == "n3" {
				owned++
			}
			switch i {
			case keys / 4:
				c.Crash(3)
				caches[3] = nil
			case keys / 2:
				var err error
				if caches[3], err = nearcache.New(c.Restart(3), "ks", cfg); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for n, cache := range caches {
				for range callers {
					if cache == nil {
						break
					}
					wg.Go(func() {
						if v, err := cache.Get(t.Context(), key); v != "v"+key || err != nil {
							t.Errorf("node %d: got %q, %v", n, v, err)
						}
					})
				}
			}
			wg.Wait()
		}
		if got := loads.Load(); got > int64(keys+owned) {
			t.Errorf("got %d loads of %d keys, %d of them owned by the node that was restarted", got, keys, owned)
		}
		t.Logf("%d loads of %d keys, %d of which may be loaded twice", loads.Load(), keys, owned)
		wantIdle(t, caches)
	})
}

// Case singleflight-1. The panic of one load fails its fifty callers at once, is counted once, and the next call loads.
func TestAPanicFailsItsCallersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for i, owner := range []string{"n0", "n1"} {
			g := newGated()
			caches := open(t, c, "of-"+owner, nearcache.Config[string]{Load: g.load})
			key := testcluster.Key(c.Nodes[0], "of-"+owner, owner, i)
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					start := time.Now()
					_, err := caches[0].Get(t.Context(), key)
					if _, ok := errors.AsType[*nearcache.PanicError](err); !ok || time.Since(start) > 250*time.Millisecond {
						t.Errorf("owner %s: got %v after %v, want a *PanicError at once", owner, err, time.Since(start))
					}
				})
			}
			<-g.started
			synctest.Wait()
			g.end <- func() (string, error) { panic("boom") }
			wg.Wait()
			if got := caches[0].Stats().LoadErrors + caches[1].Stats().LoadErrors; got != 1 {
				t.Errorf("owner %s: got %d failed loads counted, want 1", owner, got)
			}
			go func() { g.end <- func() (string, error) { return "v", nil } }()
			if v, err := caches[0].Get(t.Context(), key); v != "v" || err != nil {
				t.Errorf("owner %s, afterwards: got %q, %v", owner, v, err)
			}
		}
	})
}
