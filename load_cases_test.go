package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// Case singleflight-4. Callers with deadlines of their own leave a slow load on time and do not disturb it.
func TestImpatientCallersLeaveOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for i, owner := range []string{"n0", "n1"} {
			db := newDatabase(func() time.Duration { return 3 * time.Second })
			caches := open(t, c, "of-"+owner, nearcache.Config[int]{Load: db.load})
			key := testcluster.Key(c.Nodes[0], "of-"+owner, owner, i)
			db.write(key, 1)
			var wg sync.WaitGroup
			start := time.Now()
			for n := range 100 {
				wg.Go(func() {
					patience := time.Duration(20+n*480/99) * time.Millisecond
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					_, err := caches[0].Get(ctx, key)
					if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > patience+50*time.Millisecond {
						t.Errorf("owner %s: got %v after %v, want the caller's own deadline after %v", owner, err, took, patience)
					}
				})
			}
			wg.Go(func() {
				if v, err := caches[0].Get(t.Context(), key); v != 1 || err != nil {
					t.Errorf("owner %s, the patient caller: got %d, %v, want the value", owner, v, err)
				}
			})
			wg.Wait()
			if got := db.loads.Load(); got != 1 {
				t.Errorf("owner %s: got %d loads, want 1", owner, got)
			}
			wantIdle(t, caches)
		}
	})
}

// Case singleflight-5. Loads that nobody waits for end, give their slots back, and leave their keys free.
func TestLoadsThatNobodyWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		var running atomic.Int64
		var free atomic.Bool
		caches := open(t, c, "ks", nearcache.Config[string]{LoadTimeout: 2 * time.Second, Load: func(ctx context.Context, _ string) (string, error) {
			if free.Load() {
				return "v", nil
			}
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return "", ctx.Err()
		}})
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if _, err := caches[i%2].Get(ctx, fmt.Sprint("k", i)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want the caller's own deadline", err)
				}
			})
		}
		time.Sleep(25 * time.Millisecond)
		if got := running.Load(); got != 128 {
			t.Errorf("got %d loads on two nodes, want the limit of 64 on each", got)
		}
		wg.Wait()
		free.Store(true)
		start := time.Now()
		for i := range 200 {
			if v, err := caches[(i+1)%2].Get(t.Context(), fmt.Sprint("k", i)); v != "v" || err != nil {
				t.Fatalf("afterwards: got %q, %v, want a new load", v, err)
			}
		}
		if took := time.Since(start); took > 250*time.Millisecond {
			t.Errorf("200 loads afterwards took %v, want nothing to wait for", took)
		}
		if got := running.Load(); got != 0 {
			t.Errorf("%d loads are still running", got)
		}
		wantIdle(t, caches)
	})
}

// Case singleflight-8. Errors are not remembered, whatever they look like.
func TestErrorsAreNotStored(t *testing.T) {
	for _, fail := range []error{errors.New("down"), context.Canceled, context.DeadlineExceeded, errOwn} {
		t.Run(fail.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				for i, owner := range []string{"n0", "n1"} {
					var loads atomic.Int64
					caches := open(t, c, "of-"+owner, nearcache.Config[string]{Load: func(context.Context, string) (string, error) {
						if loads.Add(1) == 1 {
							return "", fail
						}
						return "v", nil
					}})
					key := testcluster.Key(c.Nodes[0], "of-"+owner, owner, i)
					var le *nearcache.LoadError
					if _, err := caches[0].Get(t.Context(), key); !errors.As(err, &le) || !errors.Is(err, fail) {
						t.Errorf("owner %s: got %v, want a *LoadError with the loader's error", owner, err)
					}
					wantEverywhere(t, "owner "+owner+", the next call", caches, key, "v")
					if got := loads.Load(); got != 2 {
						t.Errorf("owner %s: got %d loads, want 2", owner, got)
					}
				}
			})
		})
	}
}

// Case L2-1. An absence is the owner's answer: nobody asks the origin again, and no peer looks sick.
func TestNotFoundIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		for range 10 {
			for i, cache := range caches[1:] {
				if _, err := cache.Get(t.Context(), key); !errors.Is(err, nearcache.ErrNotFound) {
					t.Errorf("node %d: got %v, want ErrNotFound", i+1, err)
				}
				if m, err := cache.GetMany(t.Context(), []string{key}); len(m) != 0 || err != nil {
					t.Errorf("node %d, GetMany: got %v, %v, want nothing", i+1, m, err)
				}
			}
		}
		if got := db.loads.Load(); got != 1 {
			t.Errorf("got %d loads, want 1", got)
		}
		for i, n := range c.Nodes {
			s := n.Stats()
			if got := s.Keyspaces["ks"].PeerErrors; got != 0 {
				t.Errorf("node %d: got %d peer errors, want none", i, got)
			}
			for _, m := range s.Members {
				if m.Breaker != "closed" || m.Errors != 0 {
					t.Errorf("node %d sees %s with breaker %s and %d errors", i, m.Member.ID, m.Breaker, m.Errors)
				}
			}
		}
	})
}

// Case L2-2. A dead owner's keys are loaded once each by their stand-ins, not once by every caller, and go home when it is back.
func TestLosingAnOwnerDoesNotMultiplyLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 6)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		keys := make([]string, 1000)
		for i := range keys {
			keys[i] = testcluster.Key(c.Nodes[0], "ks", "n5", i)
			db.write(keys[i], 1)
		}
		if _, err := caches[0].GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		db.loads.Store(0)
		c.Network.Host(testcluster.Host(5)).Crash()
		var wg sync.WaitGroup
		for i, cache := range caches[:5] {
			wg.Go(func() {
				for part := range slices.Chunk(keys, 200) { // twice each, within the life of a stand-in's copy
					for _, k := range slices.Concat(part, part) {
						if v, err := cache.Get(t.Context(), k); v != 1 || err != nil {
							t.Errorf("node %d: got %d, %v, want the value from a stand-in", i, v, err)
							return
						}
						time.Sleep(2 * time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		if got := db.loads.Load(); got > 1150 {
			t.Errorf("got %d loads of 1000 keys by 5 nodes that lost their owner, want one a key", got)
		}
		// What a stand-in holds lives a Bound: it may not hear of invalidations.
		time.Sleep(1100 * time.Millisecond)
		for _, k := range keys {
			db.write(k, 2)
		}
		for i, cache := range caches[:5] {
			m, err := cache.GetMany(t.Context(), keys)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range m {
				if v != 2 {
					t.Fatalf("node %d: %s is still %d, want what stand-ins hold to live a Bound", i, k, v)
				}
			}
		}
		home := c.Start(5)
		again, err := nearcache.New(home, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for _, cache := range caches[:5] {
			for _, k := range keys {
				if v, err := cache.Get(t.Context(), k); v != 2 || err != nil {
					t.Fatalf("got %d, %v, want the value", v, err)
				}
			}
		}
		if got := again.Stats().ShardEntries; got != int64(len(keys)) {
			t.Errorf("the restarted owner holds %d of its %d keys after two seconds", got, len(keys))
		}
	})
}

// Case L2-5. Asking for an absent key all the time does not keep it absent.
func TestPollingNoticesCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NotFoundTTL: time.Second})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		start := time.Now()
		var seen [2]time.Duration
		for time.Since(start) < 6*time.Second {
			if time.Since(start) >= 3*time.Second {
				db.write(key, 1)
			}
			for i, cache := range caches {
				v, err := cache.Get(t.Context(), key)
				switch {
				case v == 1 && err == nil && seen[i] == 0:
					seen[i] = time.Since(start)
				case seen[i] != 0 && err != nil:
					t.Fatalf("node %d: got %v after it had the value", i, err)
				case err != nil && !errors.Is(err, nearcache.ErrNotFound):
					t.Fatalf("node %d: got %v", i, err)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		for i, at := range seen {
			if at == 0 || at > 5250*time.Millisecond {
				t.Errorf("node %d noticed the creation at %v, want 5.25s at most", i, at)
			}
		}
	})
}

// Case L2-10. Keys that are loaded together expire one after the other, and none late.
func TestKeysLoadedTogetherExpireApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		last := make(map[string]time.Time)
		buckets := make(map[int]int)
		start := time.Now()
		cache, err := nearcache.New(nil, "ks", nearcache.Config[string]{
			TTL: 10 * time.Second, NearTTL: -1,
			Load: func(_ context.Context, key string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				if at, ok := last[key]; ok {
					life := time.Since(at)
					if life > 10*time.Second+120*time.Millisecond || life < 9*time.Second {
						t.Errorf("%s lived %v, want 9 to 10s", key, life)
					}
					buckets[int(time.Since(start)/(100*time.Millisecond))]++
				}
				last[key] = time.Now()
				return "v", nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close(t.Context())
		keys := make([]string, 1000)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		for time.Since(start) < 14*time.Second {
			for _, k := range keys {
				if _, err := cache.Get(t.Context(), k); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		sum, most := 0, 0
		for _, n := range buckets {
			sum, most = sum+n, max(most, n)
		}
		if sum != len(keys) {
			t.Errorf("got %d loads after the first, want each of %d keys once", sum, len(keys))
		}
		if mean := len(keys) / 10; most > 5*mean {
			t.Errorf("%d keys expired within 100ms, want 5 times the mean of %d at most", most, mean)
		}
	})
}

// Case L2-15. A caller that leaves the queue for a load slot does not hold up the ones behind it, and no slot is lost.
func TestALeaverDoesNotHoldUpTheQueue(t *testing.T) {
	for _, limit := range []int{1, 2} {
		t.Run(fmt.Sprint("limit=", limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				var running, most atomic.Int64
				db := newStalling()
				load := func(ctx context.Context, key string) (int, error) {
					n := running.Add(1)
					defer running.Add(-1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					return db.load(ctx, key)
				}
				cache := open(t, c, "ks", nearcache.Config[int]{Load: load, MaxLoads: limit, LoadQueueTimeout: time.Minute})[0]
				for i := range 200 {
					db.write(fmt.Sprint("k", i), 1)
				}
				var wg sync.WaitGroup
				get := func(ctx context.Context, key string, want error) {
					wg.Go(func() {
						if _, err := cache.Get(ctx, key); !errors.Is(err, want) {
							t.Errorf("%s: got %v, want %v", key, err, want)
						}
					})
					synctest.Wait()
				}
				var releases []func()
				for i := range limit {
					releases = append(releases, db.stall(fmt.Sprint("k", i)))
					get(t.Context(), fmt.Sprint("k", i), nil)
				}
				ctx, cancel := context.WithCancel(t.Context())
				get(ctx, "k10", context.Canceled)
				get(t.Context(), "k11", nil)
				cancel()
				synctest.Wait()
				start := time.Now()
				for _, release := range releases {
					release()
				}
				wg.Wait()
				if took := time.Since(start); took > 50*time.Millisecond {
					t.Errorf("the one behind the leaver took %v, want it to load at once", took)
				}
				if got := db.loads.Load(); got != int64(limit)+1 {
					t.Errorf("got %d loads, want %d: not the leaver's", got, limit+1)
				}
				// A context that has ended never loads.
				get(ctx, "k12", context.Canceled)
				if got := db.loads.Load(); got != int64(limit)+1 {
					t.Error("a call with a context that had ended ran the loader")
				}
				// Many leave at random: all slots are there afterwards.
				rng := rand.New(rand.NewPCG(1, 2))
				for i := range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(3000))*time.Microsecond)
					key, release := fmt.Sprint("k", i), func() {}
					if i%3 == 0 {
						release = db.stall(key)
					}
					wg.Go(func() {
						defer cancel()
						_, _ = cache.Get(ctx, key)
					})
					time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, release)
					time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
				}
				wg.Wait()
				time.Sleep(time.Second)
				if s := cache.Stats(); s.LoadsRunning != 0 || s.Flights != 0 {
					t.Errorf("left over: %d slots, %d flights", s.LoadsRunning, s.Flights)
				}
				if got := most.Load(); got != int64(limit) {
					t.Errorf("got %d loads at once, want %d", got, limit)
				}
			})
		})
	}
}

// Case L2-16. With no peer in reach every node serves by itself, without a time-out for each read, and goes back afterwards.
func TestServingWithoutPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
			db.write(keys[i], 1)
		}
		for i := range c.Nodes {
			c.Network.Isolate(testcluster.Host(i))
		}
		start := time.Now()
		read := func(want int, within time.Duration) {
			t.Helper()
			for _, k := range keys {
				for i, cache := range caches {
					at := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					v, err := cache.Get(ctx, k)
					cancel()
					if v != want || err != nil {
						t.Fatalf("node %d, %v after the cut: got %d, %v, want %d", i, time.Since(start), v, err, want)
					}
					if took := time.Since(at); took > within {
						t.Fatalf("node %d, %v after the cut: a read took %v, want %v at most", i, time.Since(start), took, within)
					}
				}
			}
		}
		read(1, 300*time.Millisecond) // the first ones find it out
		for time.Since(start) < 5*time.Second {
			read(1, 12*time.Millisecond)
			time.Sleep(200 * time.Millisecond)
		}
		for _, k := range keys {
			db.write(k, 2)
		}
		// What a node holds for others lives a Bound, its own keys as long as ever: only the former must be new.
		time.Sleep(2100 * time.Millisecond)
		for _, k := range keys {
			for i, cache := range caches {
				if v, err := cache.Get(t.Context(), k); err != nil || v != 2 && c.Nodes[i].Owner("ks", k).ID != c.Nodes[i].ID() {
					t.Fatalf("node %d: got %d, %v of another member's key, want 2", i, v, err)
				}
			}
		}
		for i, n := range c.Nodes {
			for _, m := range n.Stats().Members {
				if m.Member.ID != n.ID() && m.Breaker == "closed" && m.Connected {
					t.Errorf("node %d takes %s for healthy", i, m.Member.ID)
				}
			}
		}
		c.Network.HealAll()
		time.Sleep(5 * time.Second)
		if err := caches[0].Invalidate(t.Context(), keys...); err != nil {
			t.Fatalf("5s after the heal: Invalidate: %v", err)
		}
		db.loads.Store(0)
		for i, cache := range caches {
			m, err := cache.GetMany(t.Context(), keys)
			if len(m) != len(keys) || err != nil {
				t.Fatalf("node %d: got %d values, %v", i, len(m), err)
			}
			for k, v := range m {
				if v != 2 {
					t.Errorf("node %d: %s is %d after Invalidate, want 2", i, k, v)
				}
			}
		}
		if got := db.loads.Load(); got != int64(len(keys)) {
			t.Errorf("5s after the heal: got %d loads of %d keys by 3 nodes, want one each", got, len(keys))
		}
	})
}

// What the calling node loads right after its invalidation is new, however coarse its clock is: it is not loaded a second time.
func TestOneLoadAfterAnInvalidation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		for i := range 20 {
			time.Sleep(1300*time.Millisecond + time.Duration(i)*700*time.Microsecond)
			want := db.bump(key)
			if err := caches[1].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Microsecond)
			db.loads.Store(0)
			for range 5 {
				if v, err := caches[1].Get(t.Context(), key); v != want || err != nil {
					t.Fatal(v, err)
				}
				time.Sleep(time.Millisecond)
			}
			if got := db.loads.Load(); got != 1 {
				t.Errorf("round %d: got %d loads after an invalidation, want 1", i, got)
			}
		}
	})
}

// The keys of one GetMany do not shed each other, however many they are and whatever the slots.
func TestGetManyOfMoreKeysThanSlots(t *testing.T) {
	for _, maxLoads := range []int{1, 64, -1} {
		synctest.Test(t, func(t *testing.T) {
			c := testcluster.Bubble(t, 3)
			var running, most atomic.Int64
			caches := open(t, c, "ks", nearcache.Config[string]{MaxLoads: maxLoads, Load: func(_ context.Context, key string) (string, error) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				time.Sleep(20 * time.Millisecond)
				return "v" + key, nil
			}})
			keys := make([]string, 200)
			for i := range keys {
				keys[i] = fmt.Sprint("k", i)
			}
			got, err := caches[0].GetMany(t.Context(), keys)
			if len(got) != len(keys) || err != nil {
				t.Errorf("MaxLoads %d: got %d of %d values, %v", maxLoads, len(got), len(keys), err)
			}
			if n := most.Load(); maxLoads > 0 && n > int64(maxLoads) || maxLoads < 0 && n < 200 {
				t.Errorf("MaxLoads %d: %d loads ran at once", maxLoads, n)
			}
			wantIdle(t, caches)
		})
	}
}
