package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

const hotKey = "sale"

// stat returns what a cache says of the hot key.
func stat(c *nearcache.Cache[string]) nearcache.KeyStats {
	for _, k := range c.Stats().Top {
		if k.Key == hotKey {
			return k
		}
	}
	return nearcache.KeyStats{}
}

// everyMilli calls f once a millisecond for d, with the number of the call.
func everyMilli(d time.Duration, f func(ms int)) {
	for ms := range int(d / time.Millisecond) {
		f(ms)
		time.Sleep(time.Millisecond)
	}
}

// One key has a fifth of the reads of three nodes. Its owner answers it at most three times a second for each member, the origin has one load
// in a lifetime, and from its promotion on no reader waits for either: not where the near copy ends, nor where the entry does.
func TestAHotKeyCostsItsOwnerLittle(t *testing.T) {
	const (
		nodes, seconds = 3, 16
		ttl            = 6 * time.Second
		rebuild        = 300 * time.Millisecond
	)
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, nodes)
		o := newOrigin(func() time.Duration { return rebuild })
		caches := o.openOn(t, c, nearcache.Config[string]{TTL: ttl, Jitter: -1, MaxLoads: -1})
		var wg sync.WaitGroup
		for i, cache := range caches {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			var servedBefore uint64
			wg.Go(func() {
				everyMilli(seconds*time.Second, func(ms int) {
					if ms%1000 == 999 {
						if served := stat(cache).Served - servedBefore; served > nodes*3 {
							t.Errorf("second %d: n%d answered %d requests for the hot key, want %d at most", ms/1000, i, served, nodes*3)
						}
						servedBefore = stat(cache).Served
					}
					info := read(t, cache, hotKey)
					if ms > 2000 && info.Tier != nearcache.TierNear {
						t.Errorf("n%d, %d ms: a reader went to tier %v", i, ms, info.Tier)
					}
					if ms > 2000 {
						wg.Go(func() { read(t, cache, fmt.Sprint("other:", r.IntN(500))) })
					}
				})
			})
		}
		wg.Wait()
		lifetimes := seconds * time.Second / (ttl - ttl/4 - time.Second)
		if got := o.loadsOf(hotKey); got > int(lifetimes)+1 || o.beside > 0 {
			t.Errorf("got %d loads of the hot key, %d of any key beside another one, want one in a lifetime and none", got, o.beside)
		}
		for i, cache := range caches {
			if s := cache.Stats(); s.HotKeys != 1 || stat(cache).HotSince == 0 {
				t.Errorf("n%d: got %d hot keys, %+v, want the one", i, s.HotKeys, stat(cache))
			}
		}
	})
}

// A catalogue without an outstanding key makes nothing hot in a minute: the one read most has 0.009 % of the reads, an eleventh of the threshold.
func TestAFlatCatalogueMakesNothingHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		caches := newOrigin(noDelay).openOn(t, c, nearcache.Config[string]{Hot: nearcache.HotConfig{PerSecond: 20}})
		r := rand.New(rand.NewPCG(1, 2))
		everyMilli(time.Minute, func(ms int) {
			if ms%3 > 0 {
				read(t, caches[ms%3], flatProduct(r))
			}
			if ms%1000 == 0 && caches[1].Stats().HotKeys+caches[2].Stats().HotKeys > 0 {
				t.Fatalf("second %d: something is hot: %+v", ms/1000, caches[1].Stats().Top[0])
			}
		})
	})
}

func noDelay() time.Duration { return 0 }

// flatProduct draws one of ten million products by a distribution with a flat head.
func flatProduct(r *rand.Rand) string {
	const q, n = 11235.455, 1e7
	v := r.Float64() * n / (n + q)
	return fmt.Sprint("product:", int(q*v/(1-v)))
}

// A product that nobody knew is wanted by 2,000 visitors a second, after a ramp of two seconds, and less and less after a while. It is hot
// within the ramp, has one load in a lifetime and no second one at once, and is hot no more within a minute after it is read less than half as
// often as makes a key hot.
func TestAFlashSale(t *testing.T) {
	const (
		ramp, peak, halfLife = 2 * time.Second, 10 * time.Second, 10 * time.Second
		visitors, threshold  = 2000, 500
		ttl                  = 8 * time.Second
	)
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		o := newOrigin(func() time.Duration { return 250 * time.Millisecond })
		caches := o.openOn(t, c, nearcache.Config[string]{TTL: ttl, Jitter: -1})
		r, due := rand.New(rand.NewPCG(1, 2)), 0.0
		var promoted, quiet, demoted time.Duration
		var wg sync.WaitGroup
		everyMilli(70*time.Second, func(ms int) {
			at := time.Duration(ms) * time.Millisecond
			rate := visitors * min(1, at.Seconds()/ramp.Seconds(), math.Pow(0.5, (at-ramp-peak).Seconds()/halfLife.Seconds()))
			for due += rate / 1000; due >= 1; due-- {
				wg.Go(func() { read(t, caches[0], hotKey) })
			}
			if ms%10 > 0 {
				return
			}
			other := flatProduct(r)
			wg.Go(func() { read(t, caches[0], other) })
			switch hot := caches[0].Stats().HotKeys > 0; {
			case hot && promoted == 0:
				promoted = at
			case at > ramp && rate < threshold/2 && quiet == 0:
				quiet = at
			case !hot && promoted > 0 && demoted == 0:
				demoted = at
			}
		})
		wg.Wait()
		if promoted == 0 || promoted > ramp || demoted < quiet || demoted > quiet+time.Minute {
			t.Errorf("hot after %v, quiet after %v, hot no more after %v", promoted, quiet, demoted)
		}
		if got := o.loadsOf(hotKey); o.beside > 0 || got > int(demoted/(ttl*3/4-time.Second))+2 {
			t.Errorf("got %d loads until %v, %d beside another one, want one in a lifetime of %v and none", got, demoted, o.beside, ttl)
		}
	})
}

// An invalidation of a hot key is obeyed at once on the node that calls, and everywhere within the bound, whatever refresh is under way.
func TestAHotKeyIsInvalidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds = 60
		c := testcluster.Bubble(t, 3)
		o := newOrigin(func() time.Duration { return 20 * time.Millisecond })
		caches := o.openOn(t, c, nearcache.Config[string]{TTL: 3 * time.Second, NearTTL: 600 * time.Millisecond, Hot: nearcache.HotConfig{PerSecond: 100}})
		version := func(cache *nearcache.Cache[string]) int {
			v, err := cache.Get(t.Context(), hotKey)
			if err != nil {
				t.Fatal(err)
			}
			got, err := testcluster.Version(hotKey, v)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for _, cache := range caches {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
						read(t, cache, hotKey)
					}
				}
			})
		}
		time.Sleep(2 * time.Second)
		r := rand.New(rand.NewPCG(1, 2))
		for round := range rounds {
			for i, cache := range caches {
				if cache.Stats().HotKeys != 1 {
					t.Fatalf("n%d: the key is not hot", i)
				}
			}
			want := o.bump(hotKey)
			caller := caches[round%3]
			if err := caller.Invalidate(t.Context(), hotKey); err != nil {
				t.Fatal(err)
			}
			if got := version(caller); got != want {
				t.Errorf("round %d: the caller got version %d, want %d", round, got, want)
			}
			time.Sleep(100 * time.Millisecond)
			for i, cache := range caches {
				if got := version(cache); got != want {
					t.Errorf("round %d: n%d got version %d after 100 ms, want %d", round, i, got, want)
				}
			}
			time.Sleep(time.Duration(r.IntN(int(time.Second))))
		}
		close(stop)
		wg.Wait()
	})
}

// Keys of Hot.Pin are near without a reader, and stay there whatever else is read. They cost no goroutine, and no more than a fetch in a
// lifetime of their near copy.
func TestPinnedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pinned = 40
		var pins []string
		for i := range pinned {
			pins = append(pins, fmt.Sprint("pinned:", i))
		}
		c := testcluster.Bubble(t, 3, func(_ int, cfg *nearcache.NodeConfig) { cfg.NearBytes = 4 * pinned * 300 })
		before := runtime.NumGoroutine()
		o := newOrigin(noDelay)
		caches := o.openOn(t, c, nearcache.Config[string]{Hot: nearcache.HotConfig{PerSecond: -1, Pin: pins}})
		time.Sleep(300 * time.Millisecond)
		r := rand.New(rand.NewPCG(1, 2))
		everyMilli(5*time.Second, func(ms int) {
			read(t, caches[0], fmt.Sprint("other:", r.IntN(5000)))
			if ms%97 == 0 {
				for _, key := range pins {
					if info := read(t, caches[0], key); info.Tier != nearcache.TierNear {
						t.Fatalf("%d ms: %s is at tier %v, want it near", ms, key, info.Tier)
					}
				}
			}
		})
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before+10 {
			t.Errorf("%d goroutines, %d before, want none for the pinned keys", after, before)
		}
		if got := o.loadsOf(pins[0]); got != 1 || caches[0].Stats().HotKeys != pinned {
			t.Errorf("got %d loads of a pinned key and %d hot keys, want 1 and %d", got, caches[0].Stats().HotKeys, pinned)
		}
		served := uint64(0)
		for _, k := range caches[1].Stats().Top {
			served = max(served, k.Served)
		}
		if served > 2*8 {
			t.Errorf("a key was asked for %d times by two members in 5.3 s, want twice in a near lifetime at most", served)
		}
	})
}

// A hot key that cannot be had is asked for once a second, however many ticks there are: its readers see to it, if there are any.
func TestAPinnedKeyThatCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Second
		var loads atomic.Int64
		c := testcluster.Bubble(t, 2)
		open(t, c, "ks", nearcache.Config[string]{
			Hot: nearcache.HotConfig{Pin: []string{hotKey}},
			Load: func(context.Context, string) (string, error) {
				loads.Add(1)
				return "", errors.New("the database is away")
			},
		})
		time.Sleep(lasts)
		if got, most := loads.Load(), int64(len(c.Nodes))*int64(lasts/time.Second)+2; got < most/4 || got > most {
			t.Errorf("got %d loads in %v, want one a second and member at most", got, lasts)
		}
	})
}

// A key that no member reads often enough to make it hot there, but all together do, is kept near by each of them, though their near caches are
// full of keys that are read more often there, and nowhere else.
func TestAKeyThatIsHotInTheWholeCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3, func(_ int, cfg *nearcache.NodeConfig) { cfg.NearBytes = 20 * 230 })
		caches := newOrigin(noDelay).openOn(t, c, nearcache.Config[string]{NearTTL: time.Minute})
		key, fetched := testcluster.Key(c.Nodes[0], "ks", "n2", 0), 0
		everyMilli(6*time.Second, func(ms int) {
			for n := range 2 {
				for i := range 3 {
					read(t, caches[n], fmt.Sprintf("other:%d:%d", n, (3*ms+i)%60))
				}
				if ms%25 == 0 && read(t, caches[n], key).Tier != nearcache.TierNear && ms > 2000 {
					fetched++
				}
			}
		})
		if fetched > 2 {
			t.Errorf("a key that is read 80 times a second was fetched %d times in four seconds, want it kept near", fetched)
		}
		if got := caches[0].Stats().HotKeys; got != 0 {
			t.Errorf("got %d hot keys, want none on this node", got)
		}
	})
}
