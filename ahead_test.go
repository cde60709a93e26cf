package nearcache_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

const aheadTTL, aheadTime = 10 * time.Second, 2 * time.Second

// readOften reads a key on all caches every 20 ms, and calls slow for each read that took any time.
func readOften(t *testing.T, caches []*nearcache.Cache[string], d time.Duration, key string, slow func(at, took time.Duration)) {
	t.Helper()
	var wg sync.WaitGroup
	began := time.Now()
	for i, cache := range caches {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			for time.Since(began) < d {
				start := time.Now()
				read(t, cache, key)
				if took := time.Since(start); took >= 10*time.Millisecond {
					slow(start.Sub(began), took)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	wg.Wait()
}

// With RefreshAhead who reads a key at all times is always served at once, and there is one load in a lifetime less RefreshAhead, by the
// key's owner, whatever the near copies live.
func TestRefreshAhead(t *testing.T) {
	for name, nearTTL := range map[string]time.Duration{"short near copies": time.Second, "long near copies": time.Minute, "none": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lasts = 60 * time.Second
				c := testcluster.Bubble(t, 3)
				o := newOrigin(func() time.Duration { return 300 * time.Millisecond })
				caches := o.openOn(t, c, nearcache.Config[string]{TTL: aheadTTL, Jitter: -1, NearTTL: nearTTL, RefreshAhead: aheadTime})
				key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
				readOften(t, caches, lasts, key, func(at, took time.Duration) {
					if at > 500*time.Millisecond {
						t.Errorf("%v: a reader waited for %v", at, took)
					}
				})
				got := o.loadsOf(key)
				if least, most := int(lasts/aheadTTL), int(lasts/(aheadTTL-aheadTime))+1; got < least || got > most || o.beside > 0 {
					t.Errorf("got %d loads, %d beside another one, want %d to %d and none", got, o.beside, least, most)
				}
				if s := caches[1].Stats(); s.Refreshes != uint64(got-1) || s.Loads < s.Refreshes {
					t.Errorf("the owner has %d loads and %d refreshes, want %d refreshes", s.Loads, s.Refreshes, got-1)
				}
			})
		})
	}
}

// Without readers nothing is loaded, and what nobody asks for before its end expires.
func TestRefreshAheadNeedsAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		o := newOrigin(noDelay)
		caches := o.openOn(t, c, nearcache.Config[string]{TTL: aheadTTL, Jitter: -1, RefreshAhead: aheadTime})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		read(t, caches[0], key)
		time.Sleep(aheadTTL - aheadTime - time.Millisecond)
		read(t, caches[0], key)
		time.Sleep(2 * aheadTTL)
		if got := o.loadsOf(key); got != 1 {
			t.Errorf("got %d loads, want 1", got)
		}
	})
}

// While the origin fails, a value is served to its end, and there is an attempt a second; then the error is what readers get.
func TestRefreshAheadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		c := testcluster.Bubble(t, 3)
		caches := open(t, c, "ks", nearcache.Config[string]{
			TTL: aheadTTL, Jitter: -1, RefreshAhead: 4 * time.Second,
			Load: func(context.Context, string) (string, error) {
				if loads.Add(1) > 1 {
					return "", errors.New("the database is away")
				}
				return "v", nil
			},
		})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		readOften(t, caches, aheadTTL-100*time.Millisecond, key, func(time.Duration, time.Duration) {})
		if got := loads.Load() - 1; got < 2 || got > 5 {
			t.Errorf("got %d attempts in 4 s, want more than one, and one a second at most", got)
		}
		time.Sleep(100 * time.Millisecond)
		var failed *nearcache.LoadError
		if _, err := caches[0].Get(t.Context(), key); !errors.As(err, &failed) {
			t.Errorf("after its end: got %v, want the load's error", err)
		}
	})
}

// What is invalidated while its successor is loaded ahead is not brought back by it.
func TestRefreshAheadBringsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		o := newOrigin(func() time.Duration { return time.Second })
		caches := o.openOn(t, c, nearcache.Config[string]{TTL: aheadTTL, Jitter: -1, RefreshAhead: aheadTime})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		read(t, caches[0], key)
		time.Sleep(aheadTTL - aheadTime + 100*time.Millisecond - time.Second)
		read(t, caches[2], key)
		time.Sleep(500 * time.Millisecond) // the load has read the row
		if got := o.loadsOf(key); got != 2 {
			t.Fatalf("got %d loads, want the one ahead under way", got)
		}
		want := o.bump(key)
		if err := caches[0].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			time.Sleep(50 * time.Millisecond)
			for i, cache := range caches {
				v, err := cache.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				if got, _ := testcluster.Version(key, v); got != want {
					t.Fatalf("n%d: got version %d, want %d", i, got, want)
				}
			}
		}
	})
}
