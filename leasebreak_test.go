package nearcache_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// The streams of a lease's holder break while it loads, at the beginning, later, and again and again. It is back at once, so that its load
// stays the only one, however long it takes, and everybody gets its value.
func TestALoadOutlivesItsStreams(t *testing.T) {
	for name, breaks := range map[string][]time.Duration{
		"at once":    {0},
		"later":      {1500 * time.Millisecond},
		"repeatedly": {0, 300 * time.Millisecond, 700 * time.Millisecond, 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				g := newGated()
				caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				var wg sync.WaitGroup
				read := func(i int) {
					wg.Go(func() {
						if v, err := caches[i].Get(t.Context(), key); v != "v" || err != nil {
							t.Errorf("node %d: got %q, %v, want %q", i, v, err, "v")
						}
					})
				}
				read(1)
				<-g.started
				read(2)
				for _, wait := range breaks {
					time.Sleep(wait)
					c.Network.Reset(testcluster.Host(0), testcluster.Host(1))
				}
				time.Sleep(5 * time.Second)
				if got := g.calls.Load(); got != 1 {
					t.Errorf("got %d loads, want 1: the holder of the lease is there", got)
				}
				for range g.calls.Load() {
					g.end <- func() (string, error) { return "v", nil }
				}
				wg.Wait()
			})
		})
	}
}

// A lease is lost with the stream that brings it. Nobody loads for it, and nobody waits for its whole life.
func TestALeaseThatIsLostOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const way = 30 * time.Millisecond
		c := testcluster.Bubble(t, 3)
		g := newGated()
		caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
		go func() {
			for range g.started {
				g.end <- func() (string, error) { return "v", nil }
			}
		}()
		defer close(g.started)
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		c.Network.Delay(testcluster.Host(0), testcluster.Host(1), way)
		var wg sync.WaitGroup
		wg.Go(func() {
			if v, err := caches[1].Get(t.Context(), key); v != "v" || err != nil {
				t.Errorf("got %q, %v, want %q", v, err, "v")
			}
		})
		time.Sleep(way / 2) // the lease is on its way
		if got := caches[0].Stats().Leases; got != 1 {
			t.Errorf("got %d leases, want 1", got)
		}
		c.Network.Reset(testcluster.Host(0), testcluster.Host(1))
		c.Network.Delay(testcluster.Host(0), testcluster.Host(1), 0)
		began := time.Now()
		if v, err := caches[2].Get(t.Context(), key); v != "v" || err != nil {
			t.Errorf("got %q, %v, want %q", v, err, "v")
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("another member waited %v for a lease that nobody has", took)
		}
		wg.Wait()
	})
}
