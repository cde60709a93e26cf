package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// Case invalidation-1. It does not matter who invalidates: the owner, another member with a copy, or one without.
func TestInvalidateFromAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 5)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		for _, tt := range []struct {
			who    string
			writer int
		}{{"the owner", 0}, {"a member with a copy", 1}, {"a member without a copy", 4}} {
			db.bump(key)
			for _, cache := range caches[:4] {
				if _, err := cache.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			want := db.bump(key)
			if err := caches[tt.writer].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			wantEverywhere(t, tt.who+" invalidated", caches[:4], key, want)
			if err := caches[0].Invalidate(t.Context(), key); err != nil { // the next round begins without copies
				t.Fatal(err)
			}
			synctest.Wait()
		}
	})
}

// Case invalidation-2. Members that cannot be told are named, the others are clean at once, and those that were not told serve the
// old value for the bound at most.
func TestMembersThatCannotBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 5)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		db.write(key, 1)
		wantEverywhere(t, "before", caches, key, 1)
		h := testcluster.Host
		c.Network.Isolate(h(3)) // silent
		c.Network.Refuse(h(0), h(4))
		c.Network.Reset(h(0), h(4))
		db.write(key, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := caches[0].InvalidateAll(ctx)
		if took := time.Since(start); took > time.Second {
			t.Errorf("InvalidateAll took %v, want the context's second at most", took)
		}
		var partial *nearcache.PartialError
		if !errors.As(err, &partial) || !slices.Equal(partial.Members, []string{"n3"}) || partial.StaleFor <= 0 {
			t.Errorf("got %v, want a *PartialError that names n3: n4 is told through others", err)
		}
		synctest.Wait()
		wantEverywhere(t, "at once", slices.Delete(slices.Clone(caches), 3, 4), key, 2)
		// n3 hears nobody: its near copy ends with its lease.
		for {
			v, err := caches[3].Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if v == 2 {
				break
			}
			if since := time.Since(start); since > 1250*time.Millisecond {
				t.Fatalf("the silent node serves the old value %v after the change, want a Bound at most", since)
			}
			time.Sleep(5 * time.Millisecond)
		}
		c.Network.HealAll()
	})
}

// Case invalidation-4. A member that joins after 10,000 invalidations does not take their numbers for a hole.
func TestALateJoinerKeepsItsCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, MaxLoads: -1})
		keys := make([]string, 1000)
		for i := range keys {
			keys[i] = testcluster.Key(c.Nodes[0], "ks", "n0", i)
			db.write(keys[i], 1)
		}
		for range 10 {
			if _, err := caches[1].GetMany(t.Context(), keys); err != nil { // n1's copies make the owner number them
				t.Fatal(err)
			}
			if err := caches[0].Invalidate(t.Context(), keys...); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		c.Nodes = append(c.Nodes, c.Start(2))
		c.List.Set(c.Members()...)
		c.Ready()
		late, err := nearcache.New(c.Nodes[2], "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, MaxLoads: -1})
		if err != nil {
			t.Fatal(err)
		}
		var mine []string
		for _, k := range keys {
			if c.Nodes[2].Owner("ks", k).ID == "n0" {
				mine = append(mine, k)
			}
		}
		if _, err := late.GetMany(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
		before := late.Stats()
		for range 10 { // seconds: many renewals of the lease
			for _, k := range mine {
				if v, err := late.Get(t.Context(), k); v != 1 || err != nil {
					t.Fatal(v, err)
				}
			}
			time.Sleep(time.Second)
		}
		after := late.Stats()
		gets, hits := after.Gets-before.Gets, after.NearHits-before.NearHits
		if gets != uint64(10*len(mine)) || hits*100 < gets*99 {
			t.Errorf("the late joiner had %d near hits of %d gets, want 99 %%", hits, gets)
		}
	})
}

// Case invalidation-5. One invalidation is one round: nobody passes it on in circles, whatever the list looks like, and what was loaded
// afterwards stays.
//
// Case ring-2.
func TestOneInvalidationIsOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The list has everybody twice, n0 in another spelling.
		c := testcluster.Bubble(t, 0)
		for i := range 5 {
			c.Nodes = append(c.Nodes, c.Start(i))
		}
		twice := append(c.Members(), c.Members()...)
		twice[0].Addr = " 127.0.0.1:07946"
		c.List.Set(twice...)
		c.Ready()
		c.Warm()
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		owner := func(i int) string { return c.Nodes[0].Owner("ks", fmt.Sprint("k", i)).ID }
		owners := make([]string, 100)
		for i := range owners {
			owners[i] = owner(i)
		}
		dials := func() (n int) {
			for i := range 5 {
				for j := range 5 {
					if i == j && c.Network.Dials(testcluster.Host(i), testcluster.Host(j)) > 0 {
						t.Errorf("node %d dials itself", i)
					}
					n += c.Network.Dials(testcluster.Host(i), testcluster.Host(j))
				}
			}
			return n
		}
		before := dials()
		if before == 0 || before%20 != 0 {
			t.Errorf("%d connections between 20 pairs of nodes, want the same number for each", before)
		}
		c.List.Set(c.Members()...)
		time.Sleep(time.Second)
		if got := dials(); got != before {
			t.Errorf("the list without doubles opened %d connections", got-before)
		}
		for i := range owners {
			if got := owner(i); got != owners[i] {
				t.Fatalf("doubles in the list changed the owner of k%d from %s to %s", i, got, owners[i])
			}
		}
		c.List.Set(twice...)
		time.Sleep(time.Second)
		for i := range 100 {
			db.write(fmt.Sprint("k", i), 1)
			wantEverywhere(t, "before", caches, fmt.Sprint("k", i), 1)
		}
		invalidations := func() int64 {
			return total(caches, func(s nearcache.KeyspaceStats) int64 { return int64(s.Invalidations) })
		}
		requests := func() (n uint64) {
			for _, node := range c.Nodes {
				for _, m := range node.Stats().Members {
					n += m.Requests
				}
			}
			return n
		}
		asked, applied := requests(), invalidations()
		for i := range 100 {
			key := fmt.Sprint("k", i)
			db.write(key, 2)
			if err := caches[2].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got := invalidations() - applied; got > 440 {
			t.Errorf("100 invalidations were applied %d times on 5 nodes", got)
		}
		if got := requests() - asked; got > 440 {
			t.Errorf("100 invalidations made %d requests", got)
		}
		for i := range 100 {
			if v, err := caches[2].Get(t.Context(), fmt.Sprint("k", i)); v != 2 || err != nil {
				t.Fatal(v, err)
			}
		}
		db.loads.Store(0)
		asked, applied = requests(), invalidations()
		time.Sleep(10 * time.Second)
		if r, i := requests()-asked, invalidations()-applied; r != 0 || i != 0 {
			t.Errorf("ten quiet seconds: %d requests and %d invalidations, want none", r, i)
		}
		for i := range 100 {
			if v, err := caches[2].Get(t.Context(), fmt.Sprint("k", i)); v != 2 || err != nil {
				t.Fatal(v, err)
			}
		}
		if got := db.loads.Load(); got != 0 {
			t.Errorf("the sender loaded %d keys again that it had loaded after its invalidations", got)
		}
	})
}

// Case invalidation-6. Messages that are late and overtake each other cost misses: a reader never gets a version that is older than the
// bound and the delay allow, and ends with the last one.
func TestLateMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 6 {
			owner := fmt.Sprint("n", i%3)
			c := testcluster.Bubble(t, 3, testcluster.PeerTimeout([]time.Duration{50 * time.Millisecond, 2 * time.Second}[i/3]))
			db := newDatabase(func() time.Duration { return 2 * time.Millisecond })
			caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
			key := testcluster.Key(c.Nodes[0], "ks", owner, 0)
			db.write(key, 0)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			h := testcluster.Host
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(1, 2))
				for ctx.Err() == nil {
					c.Network.Delay(h(0), h(1), time.Duration(rng.IntN(800))*time.Millisecond)
					c.Network.Delay(h(2), h(1), time.Duration(rng.IntN(800))*time.Millisecond)
					time.Sleep(100 * time.Millisecond)
				}
			})
			var mu sync.Mutex
			written := []time.Time{time.Now()} // when each version was there
			wg.Go(func() {
				for ctx.Err() == nil {
					v, err := caches[1].Get(ctx, key)
					if err != nil {
						if ctx.Err() == nil {
							t.Errorf("owner %s: the reader got %v", owner, err)
						}
						break
					}
					mu.Lock()
					if next := v + 1; next < len(written) {
						if late := time.Since(written[next]); late > 2050*time.Millisecond {
							t.Errorf("owner %s: the reader got version %d, replaced %v ago", owner, v, late)
							mu.Unlock()
							break
						}
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
				}
			})
			for i := range 300 {
				mu.Lock()
				db.bump(key)
				written = append(written, time.Now())
				mu.Unlock()
				_ = caches[(i%2)*2].Invalidate(ctx, key) // one that is not confirmed is bounded too
				time.Sleep(20 * time.Millisecond)
			}
			time.Sleep(800*time.Millisecond + 1250*time.Millisecond)
			last := len(written) - 1
			for range 20 {
				wantEverywhere(t, "owner "+owner+", at the end", caches, key, last)
				time.Sleep(50 * time.Millisecond)
			}
			cancel()
			wg.Wait()
			for _, n := range c.Nodes {
				_ = n.Close(t.Context())
			}
		}
	})
}

// Case invalidation-8. Nodes whose clocks show different times, as each counts from its own start: nothing depends on comparing them.
func TestClocksOfMembersAreNotCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 0)
		for i := range 3 {
			c.Nodes = append(c.Nodes, c.Start(i))
			time.Sleep(5 * time.Minute)
		}
		c.List.Set(c.Members()...)
		c.Ready()
		c.Warm()
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TTL: time.Hour})
		for owner := range 3 {
			for writer := range 3 {
				for loader := range 3 {
					key := testcluster.Key(c.Nodes[0], "ks", fmt.Sprint("n", owner), 100*owner+10*writer+loader)
					db.write(key, 1)
					if v, err := caches[loader].Get(t.Context(), key); v != 1 || err != nil {
						t.Fatal(v, err)
					}
					wantEverywhere(t, "before", caches, key, 1)
					db.write(key, 2)
					if err := caches[writer].Invalidate(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					name := fmt.Sprintf("owner %d, invalidator %d, loader %d", owner, writer, loader)
					wantEverywhere(t, name, caches, key, 2)
					db.loads.Store(0)
					time.Sleep(5 * time.Second)
					wantEverywhere(t, name+", later", caches, key, 2)
					if got := db.loads.Load(); got != 0 {
						t.Errorf("%s: got %d loads of what was loaded after the invalidation, want none", name, got)
					}
				}
			}
		}
	})
}

// A Refresh that began before an invalidation is not what a later one gets, whoever calls and whoever owns the key: its load has read the old row.
func TestARefreshAfterAnInvalidation(t *testing.T) {
	for owner := range 2 {
		for caller := range 3 {
			t.Run(fmt.Sprintf("n%d owns it, n%d calls", owner, caller), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 3)
					o := newOrigin(func() time.Duration { return 800 * time.Millisecond })
					caches := o.openOn(t, c, nearcache.Config[string]{})
					key := testcluster.Key(c.Nodes[0], "ks", fmt.Sprint("n", owner), 0)
					var wg sync.WaitGroup
					wg.Go(func() { _, _ = caches[0].Refresh(t.Context(), key) })
					time.Sleep(400 * time.Millisecond)
					want := testcluster.Value(key, o.bump(key))
					if err := caches[caller].Invalidate(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Millisecond)
					if got, err := caches[0].Refresh(t.Context(), key); got != want || err != nil {
						t.Errorf("got %q, %v, want %q", got, err, want)
					}
					wg.Wait()
					if got, err := caches[0].Get(t.Context(), key); got != want || err != nil {
						t.Errorf("later: got %q, %v, want %q", got, err, want)
					}
				})
			})
		}
	}
}
