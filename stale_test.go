package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

var errDown = errors.New("the database is down")

// failingDB is an origin that can fail. Its value is the number of the load.
type failingDB struct {
	failing atomic.Bool
	loads   atomic.Int64
	running atomic.Int64
	most    atomic.Int64
	took    time.Duration
}

func (s *failingDB) load(context.Context, string) (int, error) {
	n := s.loads.Add(1)
	s.most.Store(max(s.most.Load(), s.running.Add(1)))
	defer s.running.Add(-1)
	time.Sleep(s.took)
	if s.failing.Load() {
		return 0, errDown
	}
	return int(n), nil
}

// Case L2-6. A failing origin is no reader's business while there is a stale copy; recovery is seen soon.
func TestATransientErrorIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		var db failingDB
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: 500 * time.Millisecond, StaleOnError: 10 * time.Second})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		start := time.Now()
		read := func(until time.Duration, want func(v int, info nearcache.Info) bool) {
			t.Helper()
			for ; time.Since(start) < until; time.Sleep(50 * time.Millisecond) {
				for i, cache := range caches {
					if v, info, err := cache.GetInfo(t.Context(), key); err != nil || !want(v, info) {
						t.Fatalf("node %d after %v: got %d, %+v, %v", i, time.Since(start), v, info, err)
					}
				}
			}
		}
		read(time.Second, func(_ int, info nearcache.Info) bool { return !info.Stale })
		db.failing.Store(true)
		before := int(db.loads.Load())
		read(5*time.Second, func(v int, info nearcache.Info) bool {
			return v <= before && (info.Stale || info.Age < 500*time.Millisecond)
		})
		if failed := int(db.loads.Load()) - before; failed < 2 || failed > 10 {
			t.Errorf("%d loads while the origin failed, want a few and 10 at most", failed)
		}
		db.failing.Store(false)
		read(7*time.Second, func(int, nearcache.Info) bool { return true })
		read(8*time.Second, func(v int, info nearcache.Info) bool { return v > before && !info.Stale })
		if s := caches[1].Stats(); s.Stale == 0 || s.Failed != 0 {
			t.Errorf("got %d stale and %d failed, want some and none", s.Stale, s.Failed)
		}
		wantIdle(t, caches)
	})
}

// Case L2-7. One load for the whole cluster replaces a stale copy, and nobody waits for it when the patience is none.
func TestOneRefreshPerStaleKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 5)
		db := failingDB{took: 400 * time.Millisecond}
		caches := open(t, c, "ks", nearcache.Config[int]{
			Load: db.load, TTL: 500 * time.Millisecond, Jitter: -1, StaleOnError: 10 * time.Second, LoadQueueTimeout: -1,
		})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		if _, err := caches[0].Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i, cache := range caches {
			for r := range 200 {
				wg.Go(func() {
					time.Sleep(time.Duration(r) * 5 * time.Millisecond)
					for range 20 {
						began := time.Now()
						_, err := cache.Get(t.Context(), key)
						if took := time.Since(began); err != nil || took > 50*time.Millisecond {
							t.Errorf("node %d: %v after %v, want a value within 50ms", i, err, took)
							return
						}
						time.Sleep(time.Second)
					}
				})
			}
		}
		wg.Wait()
		if n, most := db.loads.Load(), db.most.Load(); n > 42 || n < 20 || most != 1 {
			t.Errorf("%d loads, %d at once, want 20 to 42, one after the other", n, most)
		}
	})
}

// Case L2-8. A load that takes longer than a lifetime is worth something all the same.
func TestALoadLongerThanALifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		const ttl, window = 200 * time.Millisecond, 5 * time.Second
		db := failingDB{took: time.Second}
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: ttl, StaleOnError: window})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
			for i, cache := range caches {
				v, info, err := cache.GetInfo(t.Context(), key)
				if done := int(db.loads.Load() - db.running.Load()); err != nil || v < done-2 || info.Age > ttl+window {
					t.Fatalf("node %d after %v: got %d, %+v, %v, want at least %d", i, time.Since(start), v, info, err, done-2)
				}
			}
		}
		if n := db.loads.Load(); n < 10 {
			t.Errorf("%d loads in 20 s, want progress", n)
		}
	})
}

// Case L2-9. A stale copy has an end, and survives failed loads until then.
func TestStaleCopiesEnd(t *testing.T) {
	for _, size := range []int{0, 100 << 10} { // the larger ones do not come with a lease
		for _, window := range []time.Duration{0, time.Second, 3 * time.Second} {
			t.Run(fmt.Sprint(size, "/", window), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 3)
					const ttl = 300 * time.Millisecond
					want := strings.Repeat(".", size)
					var loads atomic.Int64
					caches := open(t, c, "ks", nearcache.Config[string]{
						TTL: ttl, Jitter: -1, StaleOnError: window,
						Load: func(context.Context, string) (string, error) {
							if loads.Add(1) > 1 {
								return "", errDown
							}
							return want, nil
						},
					})
					key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
					for start := time.Now(); time.Since(start) < 6*time.Second; time.Sleep(50 * time.Millisecond) {
						for i, cache := range caches {
							v, info, err := cache.GetInfo(t.Context(), key)
							now := time.Since(start)
							switch {
							case now < ttl+window-50*time.Millisecond:
								if err != nil || v != want || info.Stale != (now >= ttl) && now != ttl {
									t.Fatalf("node %d after %v: got %d bytes, %+v, %v, want the value", i, now, len(v), info, err)
								}
							case now > ttl+window+250*time.Millisecond:
								if _, ok := errors.AsType[*nearcache.LoadError](err); !ok {
									t.Fatalf("node %d after %v: got %+v, %v, want the load's error", i, now, info, err)
								}
							}
						}
					}
					wantIdle(t, caches)
				})
			})
		}
	}
}

// Case L2-11. An error at the origin changes no entry, and asks it no more than once a second and key.
func TestErrorsFeedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		const keys = 500
		var db failingDB
		caches := open(t, c, "ks", nearcache.Config[int]{
			Load: db.load, TTL: time.Second, NearTTL: -1, StaleOnError: 20 * time.Second,
		})
		entries := func() (n int64) {
			for _, cache := range caches {
				n += cache.Stats().ShardEntries
			}
			return n
		}
		read := func(d time.Duration) (failed int) {
			for start, i := time.Now(), 0; time.Since(start) < d; time.Sleep(time.Millisecond) {
				for _, cache := range caches {
					if _, err := cache.Get(t.Context(), fmt.Sprint("k", i%keys)); err != nil {
						failed++
					}
					i++
				}
			}
			return failed
		}
		read(time.Second)
		db.failing.Store(true)
		time.Sleep(2 * time.Second) // all are past their lifetime
		before, loads := entries(), db.loads.Load()
		const outage = 10 * time.Second
		if failed := read(outage); failed != 0 {
			t.Errorf("%d reads failed", failed)
		}
		if after := entries(); before != keys || after != keys {
			t.Errorf("%d entries before, %d after, want %d", before, after, keys)
		}
		if n := db.loads.Load() - loads; n > 2*keys*int64(outage/time.Second) {
			t.Errorf("%d loads while the origin failed, want at most two a second and key", n)
		}
		db.failing.Store(false)
		read(2 * time.Second)
		for i := range keys {
			if _, info, err := caches[0].GetInfo(t.Context(), fmt.Sprint("k", i)); err != nil || info.Stale {
				t.Fatalf("two seconds later: %+v, %v, want a fresh value", info, err)
			}
		}
	})
}

// R19: an invalidation that is heard of ends stale copies: its owner's, and the near ones.
func TestInvalidatedIsNotServedStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var db failingDB
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: 2 * time.Second, StaleOnError: time.Minute})
		for owner := range 3 {
			key := testcluster.Key(c.Nodes[0], "ks", fmt.Sprint("n", owner), 0)
			for writer := range 3 {
				db.failing.Store(false)
				for _, cache := range caches {
					if _, err := cache.Get(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				}
				db.failing.Store(true)
				time.Sleep(30 * time.Second)
				for i, cache := range caches {
					if _, info, err := cache.GetInfo(t.Context(), key); err != nil || !info.Stale {
						t.Fatalf("owner %d, node %d: %+v, %v, want a stale copy", owner, i, info, err)
					}
				}
				if err := caches[writer].Invalidate(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
				for i, cache := range caches {
					if v, info, err := cache.GetInfo(t.Context(), key); err == nil {
						t.Errorf("owner %d, writer %d, node %d: got %d, %+v after the invalidation", owner, writer, i, v, info)
					}
				}
			}
		}
	})
}

// R19: while its owner cannot be reached, and the origin fails, a near copy is served as a stale one, also one that the member has loaded
// meanwhile, and so it is when the owner is back, until that tells of an invalidation.
func TestStaleNearCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var db failingDB
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: 5 * time.Second, StaleOnError: 10 * time.Minute})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		own := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		want := map[string]int{}
		read := func(k string) (int, nearcache.Info) {
			t.Helper()
			v, info, err := caches[1].GetInfo(t.Context(), k)
			if err != nil {
				t.Fatalf("%s: %v", k, err)
			}
			return v, info
		}
		want[key], _ = read(key)
		want[own], _ = read(own)
		c.Network.Isolate(testcluster.Host(1))
		db.failing.Store(true)
		time.Sleep(10 * time.Second)
		for k, v := range want {
			if got, info := read(k); got != v || !info.Stale {
				t.Errorf("%s, cut off: got %d, %+v, want %d as a stale copy", k, got, info, v)
			}
		}
		db.failing.Store(false)
		time.Sleep(2 * time.Second)
		for k := range want {
			got, info := read(k)
			if want[k] = got; info.Stale {
				t.Errorf("%s: got %+v, want what was loaded", k, info)
			}
		}
		db.failing.Store(true)
		time.Sleep(time.Minute)
		for k, v := range want {
			if got, info := read(k); got != v || !info.Stale {
				t.Errorf("%s, cut off, loaded: got %d, %+v, want %d as a stale copy", k, got, info, v)
			}
		}
		c.Network.HealAll()
		time.Sleep(10 * time.Second)
		for k, v := range want {
			if got, info := read(k); got != v || !info.Stale {
				t.Errorf("%s, back: got %d, %+v, want %d as a stale copy", k, got, info, v)
			}
			if err := caches[0].Invalidate(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			if v, info, err := caches[1].GetInfo(t.Context(), k); err == nil {
				t.Errorf("%s, invalidated: got %d, %+v", k, v, info)
			}
		}
	})
}

// R19: near copies outlast a restart of their owner while the origin fails; what the new life tells of ends them, although its numbers are lower.
func TestStaleNearCopiesOutlastTheirOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var db failingDB
		cfg := nearcache.Config[int]{Load: db.load, TTL: 2 * time.Second, StaleOnError: time.Hour}
		caches := open(t, c, "ks", cfg)
		key := testcluster.Key(c.Nodes[0], "ks", "n2", 0)
		other := testcluster.Key(c.Nodes[0], "ks", "n2", 1)
		for range 3 { // numbers of the first life
			for _, cache := range caches {
				if _, err := cache.Get(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
			if err := caches[0].Invalidate(t.Context(), other); err != nil {
				t.Fatal(err)
			}
		}
		want, err := caches[1].Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		db.failing.Store(true)
		c.Crash(2)
		time.Sleep(10 * time.Second)
		if _, err := nearcache.New(c.Restart(2), "ks", cfg); err != nil {
			t.Fatal(err)
		}
		c.Warm()
		if got, info, err := caches[1].GetInfo(t.Context(), key); got != want || !info.Stale || err != nil {
			t.Errorf("after the restart: got %d, %+v, %v, want %d as a stale copy", got, info, err, want)
		}
		if err := caches[0].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if got, info, err := caches[1].GetInfo(t.Context(), key); err == nil {
			t.Errorf("invalidated: got %d, %+v", got, info)
		}
	})
}

// R14, R19: an owner tells of an invalidation also who holds nothing but a stale copy, long after that copy's lifetime and whatever others have
// asked for since. It does not matter how the copy came: with an answer from the shard, with a load of one's own, or after waiting for
// another one's.
func TestWhoHoldsAStaleCopyIsTold(t *testing.T) {
	const took = 100 * time.Millisecond
	for name, read := range map[string]func(owner, holder func()){
		"answered": func(owner, holder func()) { owner(); holder() },
		"loaded":   func(_, holder func()) { holder() },
		"waited": func(owner, holder func()) {
			var wg sync.WaitGroup
			wg.Go(owner)
			time.Sleep(took / 2)
			holder()
			wg.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				db := failingDB{took: took}
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: time.Second, StaleOnError: 10 * time.Minute})
				others := open(t, c, "others", nearcache.Config[int]{Load: db.load})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				get := func(i int) func() {
					return func() {
						if _, err := caches[i].Get(t.Context(), key); err != nil {
							t.Errorf("node %d: %v", i, err)
						}
					}
				}
				read(get(0), get(1))
				for i := range 300 { // what is remembered of near copies is forgotten many times meanwhile
					time.Sleep(time.Second)
					if _, err := others[2].Get(t.Context(), testcluster.Key(c.Nodes[0], "others", "n0", i%20)); err != nil {
						t.Fatal(err)
					}
				}
				if n := caches[1].Stats().NearEntries; n != 1 {
					t.Fatalf("%d near copies, want the stale one", n)
				}
				if err := caches[0].Invalidate(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
				if n := caches[1].Stats().NearEntries; n != 0 {
					t.Errorf("%d near copies after the invalidation, want none", n)
				}
				db.failing.Store(true)
				if v, info, err := caches[1].GetInfo(t.Context(), key); err == nil {
					t.Errorf("got %d, %+v, which was invalidated", v, info)
				}
			})
		})
	}
}

// Break 1: no member reaches another for twenty minutes, and the origin can take a tenth of the reads. Whatever somebody has a copy of is served,
// marked stale, before the heal and after it; nobody waits for long, and the origin is asked for what it can take. Once the members are sure of
// themselves again nothing is stale for longer than a lap of the origin.
func TestTheTierGoesAway(t *testing.T) {
	const keys, every, load, patience = 100, 50 * time.Millisecond, 500 * time.Millisecond, 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var slow atomic.Bool
		var running atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[int]{
			TTL: 10 * time.Minute, NearTTL: 2 * time.Second, StaleOnError: time.Hour, MaxLoads: 1, LoadQueueTimeout: patience, Hot: nearcache.HotConfig{PerSecond: -1},
			Load: func(context.Context, string) (int, error) {
				if !slow.Load() {
					return 1, nil
				}
				defer running.Add(-1)
				if n := running.Add(1); n > 3 {
					t.Errorf("%d loads at once, want one a member", n)
				}
				time.Sleep(load)
				return 2, nil
			},
		})
		for _, cache := range caches {
			for k := range keys {
				if _, err := cache.Get(t.Context(), fmt.Sprint("k", k)); err != nil {
					t.Fatal(err)
				}
			}
		}
		slow.Store(true)
		var failed, stale atomic.Int64
		peak := func(d time.Duration) {
			t.Helper()
			failed.Store(0)
			stale.Store(0)
			var wg sync.WaitGroup
			for i, cache := range caches {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 1))
					for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(every) {
						key := fmt.Sprint("k", rng.IntN(keys))
						wg.Go(func() {
							began := time.Now()
							_, info, err := cache.GetInfo(t.Context(), key)
							if took := time.Since(began); took > load+2*patience {
								t.Errorf("a read took %v", took)
							}
							if err != nil {
								failed.Add(1)
							} else if info.Stale {
								stale.Add(1)
							}
						})
					}
				})
			}
			wg.Wait()
		}
		for i := range c.Nodes {
			c.Network.Isolate(testcluster.Host(i))
		}
		outage := 20 * time.Minute
		if raceEnabled {
			outage = 2 * time.Minute
		}
		peak(outage)
		if failed.Load() > 0 || stale.Load() == 0 {
			t.Errorf("apart: %d reads failed and %d were stale, want none and some", failed.Load(), stale.Load())
		}
		c.Network.HealAll()
		peak(time.Minute)
		if failed.Load() > 0 {
			t.Errorf("together again: %d reads failed, want none", failed.Load())
		}
		peak(time.Minute)
		if failed.Load() > 0 || stale.Load() > 0 {
			t.Errorf("a minute later: %d reads failed and %d were stale, want none", failed.Load(), stale.Load())
		}
	})
}
