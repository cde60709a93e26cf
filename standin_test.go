package nearcache_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
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
