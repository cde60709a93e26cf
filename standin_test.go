package nearcache_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/ring"
)

// A stand-in is not told of every invalidation, so that nobody waits there for a load that is older than a Bound. No two loads run at once.
func TestNobodyWaitsAtAStandInForAnOldLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 4)
		var took atomic.Int64
		took.Store(int64(5 * time.Second))
		o := newOrigin(func() time.Duration { return time.Duration(took.Load()) })
		caches := o.openOn(t, c, nearcache.Config[string]{})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		o.bump(key)
		for i := 1; i < 3; i++ { // only n3 reaches the owner
			c.Network.Cut(testcluster.Host(0), testcluster.Host(i))
		}
		var wg sync.WaitGroup
		get := func(i, want int) {
			wg.Go(func() {
				v, err := caches[i].Get(t.Context(), key)
				if err != nil {
					t.Errorf("node %d: %v", i, err)
				}
				if got, err := testcluster.Version(key, v); got != want || err != nil {
					t.Errorf("node %d: got version %d, %v, want %d", i, got, err, want)
				}
			})
		}
		get(1, 1)
		time.Sleep(500 * time.Millisecond)
		get(2, 1) // shares the load: it is young
		took.Store(int64(time.Second))
		o.bump(key)
		if err := caches[3].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for range 3 {
			get(1, 2)
			get(2, 2)
			get(3, 2)
		}
		wg.Wait()
		if got := o.total(); got > 3 || o.twice > 0 {
			t.Errorf("got %d loads, %d of them beside another one, want the old one and one each at the stand-in and the owner, apart", got, o.twice)
		}
		c.Network.HealAll()
	})
}

// R16: an answer that was waited for is as old as its owner says, however long it is under way: what a stand-in loads meanwhile, which was told of
// nothing, began before the caller's own invalidation.
func TestALateAnswerOfAStandIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3, testcluster.PeerTimeout(200*time.Millisecond))
		o := newOrigin(func() time.Duration { return 600 * time.Millisecond })
		caches := o.openOn(t, c, nearcache.Config[string]{})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		standIn := standInFor(t, c, key)
		writer := 3 - standIn
		o.bump(key)
		c.Network.Cut(testcluster.Host(0), testcluster.Host(standIn))
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = caches[standIn].Get(t.Context(), key) })
		time.Sleep(250 * time.Millisecond) // the load began 50 ms ago
		want := o.bump(key)
		if err := caches[writer].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		c.Network.Cut(testcluster.Host(0), testcluster.Host(writer))
		wg.Go(func() {
			v, err := caches[writer].Get(t.Context(), key)
			if err != nil {
				t.Error(err)
			}
			if got, err := testcluster.Version(key, v); got != want || err != nil {
				t.Errorf("got version %d, %v, want %d, which this process has made known", got, err, want)
			}
		})
		time.Sleep(500 * time.Millisecond) // it waits there, and the load is about to end
		c.Network.Delay(testcluster.Host(standIn), testcluster.Host(writer), 150*time.Millisecond)
		wg.Wait()
		if got := o.total(); got < 2 || o.beside > 0 {
			t.Errorf("got %d loads, %d of them beside another one, want the stand-in's old one and a new one after it", got, o.beside)
		}
		c.Network.HealAll()
	})
}

// standInFor returns which node stands in for the owner of key.
func standInFor(t *testing.T, c *testcluster.Cluster, key string) int {
	t.Helper()
	var all []ring.Member
	for _, m := range c.Members() {
		all = append(all, ring.Member{ID: m.ID})
	}
	r, err := ring.New(all)
	if err != nil {
		t.Fatal(err)
	}
	return r.Prefer(nil, ring.Hash("ks", key), 2)[1]
}

// A flight that went to a stand-in takes callers for a Bound only, although the owner's lease is live: the owner does not know
// that it has something to tell to this node.
func TestNobodyJoinsAnOldFlightToAStandIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var took atomic.Int64
		took.Store(int64(8 * time.Second))
		o := newOrigin(func() time.Duration { return time.Duration(took.Load()) })
		caches := o.openOn(t, c, nearcache.Config[string]{})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		o.bump(key)
		// The owner is slow for a moment only: the lease from it lives on. The second get is not even sent to it.
		c.Network.Delay(testcluster.Host(0), testcluster.Host(1), 200*time.Millisecond)
		var wg sync.WaitGroup
		for _, k := range []string{testcluster.Key(c.Nodes[0], "ks", "n0", 1), key} {
			wg.Go(func() { _, _ = caches[1].Get(t.Context(), k) })
			time.Sleep(60 * time.Millisecond)
		}
		c.Network.Delay(testcluster.Host(0), testcluster.Host(1), 0)
		took.Store(int64(10 * time.Millisecond))
		time.Sleep(2 * time.Second)
		want := o.bump(key)
		if err := caches[2].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)
		v, err := caches[1].Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := testcluster.Version(key, v); got != want || err != nil {
			t.Errorf("got version %d, %v, 1.1s after its invalidation, want %d", got, err, want)
		}
		wg.Wait()
	})
}

// Case lease-3.
// A lease holder that hangs does not hold up those who wait behind it for longer than one that is gone.
func TestAFrozenLeaseHolder(t *testing.T) {
	for name, freeze := range map[string]func(c *testcluster.Cluster){
		"frozen":          func(c *testcluster.Cluster) { c.Network.Isolate(testcluster.Host(2)) },
		"not heard":       func(c *testcluster.Cluster) { c.Network.CutOneWay(testcluster.Host(2), testcluster.Host(0)) },
		"one link is cut": func(c *testcluster.Cluster) { c.Network.Cut(testcluster.Host(0), testcluster.Host(2)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				g := newGated()
				caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				go func() { _, _ = caches[2].Get(t.Context(), key) }()
				<-g.started
				freeze(c)
				start := time.Now()
				var wg sync.WaitGroup
				for _, cache := range caches[:2] {
					for range 25 {
						wg.Go(func() {
							if v, err := cache.Get(t.Context(), key); v != "v" || err != nil {
								t.Errorf("got %q, %v, want the value", v, err)
							}
						})
					}
				}
				select {
				case <-g.started: // the next holder
				case <-time.After(5 * time.Second):
				}
				if took := time.Since(start); took > 1500*time.Millisecond {
					t.Errorf("the lease passed on after %v, want 1s and little more", took)
				}
				go func() {
					for range 2 { // one of them is the frozen one's, and does not count
						g.end <- func() (string, error) { return "v", nil }
					}
				}()
				wg.Wait()
				if got := g.calls.Load(); got != 2 {
					t.Errorf("got %d loads, want 2", got)
				}
				c.Network.HealAll()
			})
		})
	}
}

// A load that ends while the owner drains ends the wait of those who wait for it there, and nobody loads a second time.
func TestALoadEndsWhileItsOwnerDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		g := newGated()
		caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		var wg sync.WaitGroup
		get := func(i int) {
			wg.Go(func() {
				if v, err := caches[i].Get(t.Context(), key); v != "v" || err != nil {
					t.Errorf("node %d: got %q, %v, want the value", i, v, err)
				}
			})
		}
		get(1)
		<-g.started
		get(0)
		get(2)
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- c.Nodes[0].Close(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		g.end <- func() (string, error) { return "v", nil }
		wg.Wait()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("the callers and the node that closes waited %v for a load that had ended", took)
		}
		if got := g.calls.Load(); got != 1 {
			t.Errorf("got %d loads, want 1", got)
		}
	})
}
