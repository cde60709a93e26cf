package nearcache_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// spread is a cluster of six without near copies, of which three members keep each key.
type spread struct {
	*testing.T
	c      *testcluster.Cluster
	origin *origin
	caches []*nearcache.Cache[string]
	key    string   // n0 owns it
	served []uint64 // how often each member was asked for key by others, when it was looked last
}

func newSpread(t *testing.T, load time.Duration, cfg nearcache.Config[string]) *spread {
	t.Helper()
	x := &spread{T: t, c: testcluster.Bubble(t, 6, replicas(3)), origin: newOrigin(func() time.Duration { return load })}
	cfg.NearTTL, cfg.Jitter = -1, -1
	x.caches = x.origin.openOn(t, x.c, cfg)
	x.key, x.served = testcluster.Key(x.c.Nodes[0], "ks", "n0", 0), make([]uint64, len(x.caches))
	time.Sleep(5 * time.Second) // who has opened a keyspace lately takes no copies
	return x
}

// each runs f for each cache, all at once, again and again with a pause of a millisecond, for d.
func (x *spread) each(d time.Duration, f func(i int, c *nearcache.Cache[string])) {
	var wg sync.WaitGroup
	for i, c := range x.caches {
		wg.Go(func() { everyMilli(d, func(int) { f(i, c) }) })
	}
	wg.Wait()
}

// asked returns how often each member was asked for the key since the last call, by others.
func (x *spread) asked() []int {
	all := make([]int, len(x.caches))
	for i, c := range x.caches {
		for _, k := range c.Stats().Top {
			if k.Key == x.key {
				all[i], x.served[i] = int(k.Served-x.served[i]), k.Served
			}
		}
	}
	return all
}

// serving returns how many members were asked for the key since the last call, and how often the one that was asked most.
func (x *spread) serving() (members, most int) {
	for _, n := range x.asked() {
		if most = max(most, n); n > 0 {
			members++
		}
	}
	return members, most
}

// A key that all members together read much is read from all three that keep it, each of which serves itself and one other, whether it is
// read alone or with others. Without Spread its owner serves five.
func TestAHotKeyIsSpreadOverItsReplicas(t *testing.T) {
	alone := func(t *testing.T, c *nearcache.Cache[string], key string) { read(t, c, key) }
	together := func(t *testing.T, c *nearcache.Cache[string], key string) {
		if got, err := c.GetMany(t.Context(), []string{"other", key}); len(got) != 2 || err != nil {
			t.Errorf("got %v, %v, want two values", got, err)
		}
	}
	for name, tt := range map[string]struct {
		spread  int
		get     func(*testing.T, *nearcache.Cache[string], string)
		members int // that serve
		most    int // requests a second of any of them
	}{
		"by default":        {0, alone, 3, 1000},
		"with other keys":   {0, together, 3, 1000},
		"over two":          {2, alone, 2, 2000},
		"more than keep it": {8, alone, 3, 1000},
		"not at all":        {-1, alone, 1, 5000},
	} {
		if raceEnabled && name != "with other keys" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newSpread(t, time.Millisecond, nearcache.Config[string]{TTL: time.Hour, Hot: nearcache.HotConfig{PerSecond: 2000, Spread: tt.spread}})
				x.each(3*time.Second, func(_ int, c *nearcache.Cache[string]) { tt.get(t, c, x.key) })
				x.asked()
				x.each(time.Second, func(_ int, c *nearcache.Cache[string]) { tt.get(t, c, x.key) })
				if members, most := x.serving(); members != tt.members || most > tt.most*11/10 {
					t.Errorf("%d members serve, one of them %d times a second, want %d, %d at most", members, most, tt.members, tt.most)
				}
				if got := x.origin.loadsOf(x.key); got != 1 {
					t.Errorf("got %d loads, want 1", got)
				}
			})
		})
	}
}

// An Invalidate that returned nil is seen by all members at once, wherever they read the key. No reader sees the key go
// back, and the replicas serve it again when they have the new value.
func TestASpreadKeyIsInvalidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 20
		if raceEnabled {
			rounds = 5
		}
		x := newSpread(t, 5*time.Millisecond, nearcache.Config[string]{TTL: time.Hour, Hot: nearcache.HotConfig{PerSecond: 80}})
		x.c.Network.SetLatency(200 * time.Microsecond)
		version := func(i int) int {
			v, err := x.caches[i].Get(t.Context(), x.key)
			if err != nil {
				t.Fatal(err)
			}
			got, err := testcluster.Version(x.key, v)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		seen := make([]int, len(x.caches))
		var wg sync.WaitGroup
		wg.Go(func() {
			x.each(2*time.Second*time.Duration(rounds), func(i int, _ *nearcache.Cache[string]) {
				got := version(i)
				if got < seen[i] {
					t.Errorf("n%d reads version %d after %d", i, got, seen[i])
				}
				seen[i] = got
			})
		})
		for round := range rounds {
			time.Sleep(time.Duration(1900+round) * time.Millisecond)
			if members, most := x.serving(); members != 3 || most > 3500 {
				t.Errorf("round %d: %d members serve, one of them %d times, want 3 to share in the work", round, members, most)
			}
			loads, want := x.origin.loadsOf(x.key), x.origin.bump(x.key)
			if err := x.caches[1+round%(len(x.caches)-1)].Invalidate(t.Context(), x.key); err != nil {
				t.Fatal(err)
			}
			for i := range x.caches {
				wg.Go(func() {
					if got := version(i); got != want {
						t.Errorf("round %d: n%d reads version %d after the call, want %d", round, i, got, want)
					}
				})
			}
			time.Sleep(20 * time.Millisecond)
			if got := x.origin.loadsOf(x.key) - loads; got > 3 {
				t.Errorf("round %d: got %d loads, want one, and another one where that began before the caller or a target had heard", round, got)
			}
		}
		wg.Wait()
	})
}

// A hot key is loaded anew before it expires without a near cache as well, though all who read it read it from replicas: no reader waits for a
// load, and the replicas get the new value.
func TestASpreadKeyIsLoadedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, lasts = 10 * time.Second, 12 * time.Second
		x := newSpread(t, 300*time.Millisecond, nearcache.Config[string]{TTL: ttl, Hot: nearcache.HotConfig{PerSecond: 200}})
		x.each(2*time.Second, func(_ int, c *nearcache.Cache[string]) { read(t, c, x.key) })
		x.caches = slices.DeleteFunc(x.caches, func(c *nearcache.Cache[string]) bool { return read(t, c, x.key).Member == "n0" })
		x.each(lasts, func(i int, c *nearcache.Cache[string]) {
			start := time.Now()
			if read(t, c, x.key); time.Since(start) > 100*time.Millisecond {
				t.Errorf("reader %d waited for %v", i, time.Since(start))
			}
		})
		if got, most := x.origin.loadsOf(x.key), int((lasts+2*time.Second)/(ttl*3/4))+1; got > most || x.origin.beside > 0 {
			t.Errorf("got %d loads, %d beside another one, want %d at most and none", got, x.origin.beside, most)
		}
		if len(x.caches) != 4 {
			t.Errorf("%d members read from replicas, want 4", len(x.caches))
		}
	})
}

// What replicas cannot have, a value that was Set without a version, costs each of its readers five requests in vain a second.
func TestASpreadKeyThatIsNotCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSpread(t, 0, nearcache.Config[string]{TTL: time.Hour, Hot: nearcache.HotConfig{PerSecond: 80}})
		if _, err := x.caches[0].Set(t.Context(), x.key, "set"); err != nil {
			t.Fatal(err)
		}
		x.each(4*time.Second, func(_ int, c *nearcache.Cache[string]) {
			if v, err := c.Get(t.Context(), x.key); v != "set" || err != nil {
				t.Errorf("got %q, %v", v, err)
			}
		})
		for i, got := range x.asked() {
			if i > 0 && got > 4*5*5 {
				t.Errorf("n%d was asked %d times in 4 s for what it does not have, want 5 times a second by each member at most", i, got)
			}
		}
	})
}
