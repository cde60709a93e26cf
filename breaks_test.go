package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// All members are cut off from each other for twenty minutes, at a load that the origin cannot bear: what was read before is served, the
// rest within the queue's time or not at all, the origin is never asked for more than its limit, and all is well soon after.
func TestPeersAreGoneForTwentyMinutes(t *testing.T) {
	outage := 20 * time.Minute
	if raceEnabled || testing.Short() {
		outage = 2 * time.Minute
	}
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		const known, every = 200, 20 * time.Millisecond // 50 reads a second of each member, of which the origin could load 40
		db := failingDB{took: 25 * time.Millisecond}
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, MaxLoads: 1, TTL: time.Hour, StaleOnError: time.Hour})
		for _, cache := range caches {
			for i := range known {
				if _, err := cache.Get(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		var fresh, stale, shed atomic.Int64
		visit := func(d time.Duration, key func(i int) string) {
			fresh.Store(0)
			stale.Store(0)
			shed.Store(0)
			var wg sync.WaitGroup
			for _, cache := range caches {
				wg.Go(func() {
					for i, start := 0, time.Now(); time.Since(start) < d; i++ {
						wg.Go(func() {
							began := time.Now()
							_, info, err := cache.GetInfo(t.Context(), key(i))
							switch took := time.Since(began); {
							case took > 250*time.Millisecond: // a PeerTimeout, the queue's and the load
								t.Errorf("a read took %v: %v", took, err)
							case errors.Is(err, nearcache.ErrOverloaded):
								shed.Add(1)
							case err != nil:
								t.Errorf("got %v, want a value or an overload", err)
							case info.Stale:
								stale.Add(1)
							default:
								fresh.Add(1)
							}
						})
						time.Sleep(every)
					}
				})
			}
			wg.Wait()
		}
		readKnown := func(i int) string { return fmt.Sprint("k", i%known) }
		for i := range c.Nodes {
			c.Network.Isolate(testcluster.Host(i))
		}
		visit(outage, readKnown)
		if total := fresh.Load() + stale.Load(); shed.Load() != 0 || stale.Load() < total/10 || fresh.Load() < total/10 {
			t.Errorf("%d fresh, %d stale, %d shed, want all served, and some of both kinds", fresh.Load(), stale.Load(), shed.Load())
		}
		visit(10*time.Second, func(i int) string { return fmt.Sprint("new", i) })
		if shed.Load() == 0 || fresh.Load() == 0 || stale.Load() != 0 {
			t.Errorf("new keys: %d fresh, %d stale, %d shed, want some loaded, the others shed", fresh.Load(), stale.Load(), shed.Load())
		}
		if db.most.Load() > 3 {
			t.Errorf("%d loads at once, want 3 at most", db.most.Load())
		}
		c.Network.HealAll()
		time.Sleep(10 * time.Second)
		visit(10*time.Second, readKnown)
		visit(10*time.Second, readKnown)
		if total := fresh.Load() + stale.Load() + shed.Load(); fresh.Load() < total*9/10 {
			t.Errorf("after the outage: %d fresh, %d stale, %d shed, want nearly all fresh", fresh.Load(), stale.Load(), shed.Load())
		}
		wantIdle(t, caches)
	})
}

// A stream of changes is lost for five minutes. The audit sees that values are old; after the replay none is.
func TestAStreamIsLostAndReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		changes := feed.NewMemory(0)
		const keys = 50
		for i := range keys {
			db.write(fmt.Sprint("k", i), 1)
		}
		for _, n := range c.Nodes {
			if _, err := n.Follow(t.Context(), changes, nearcache.FeedConfig{}); err != nil {
				t.Fatal(err)
			}
		}
		caches := open(t, c, "ks", nearcache.Config[int]{
			Load: db.load, TTL: time.Hour, NearTTL: time.Minute, VersionOf: func(v int) uint64 { return uint64(v) },
			Audit: nearcache.AuditConfig{Values: 20},
		})
		old := func() (n int) {
			for i := range keys {
				key := fmt.Sprint("k", i)
				want, err := db.load(context.Background(), key)
				if err != nil {
					t.Fatal(err)
				}
				for _, cache := range caches {
					if v, err := cache.Get(t.Context(), key); err != nil || v < want {
						n++
					}
				}
			}
			return n
		}
		drifted := func() (n uint64) {
			for _, cache := range caches {
				n += cache.Stats().Audit.Drifted
			}
			return n
		}
		write := func(d time.Duration) {
			for i, start := 0, time.Now(); time.Since(start) < d; i++ {
				key := fmt.Sprint("k", i%keys)
				db.bump(key)
				changes.Append(feed.Change{Keyspace: "ks", Key: key})
				time.Sleep(time.Second)
			}
		}
		_ = old() // everything is cached
		write(time.Minute)
		time.Sleep(5 * time.Second)
		if n := old(); n != 0 || drifted() != 0 {
			t.Errorf("while the stream is there: %d old reads, %d values that the audit calls old", n, drifted())
		}
		changes.Break(errors.New("the broker is gone"))
		for range 10 {
			write(30 * time.Second)
			_ = old()
		}
		if n := old(); n < keys || drifted() == 0 {
			t.Errorf("the stream is lost: %d old reads, %d values that the audit calls old, want many and some", n, drifted())
		}
		changes.Break(nil)
		time.Sleep(10 * time.Second)
		if n := old(); n != 0 {
			t.Errorf("%d old reads after the replay", n)
		}
	})
}

// A key that is read 2,000 times a second, and takes 250 ms to load: one load for each lifetime. Nobody waits longer than for one load, and with
// a stale copy nobody longer than the queue's time.
func TestAHotKeyExpires(t *testing.T) {
	for _, window := range []time.Duration{0, time.Minute} {
		t.Run(fmt.Sprint("StaleOnError ", window), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const took, ttl, lasts = 250 * time.Millisecond, time.Second, 10 * time.Second
				c := testcluster.Bubble(t, 2)
				db := failingDB{took: took}
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: ttl, Jitter: -1, StaleOnError: window})
				longest := took
				if window > 0 {
					longest = 200 * time.Millisecond // LoadQueueTimeout and a tick
				}
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				if _, err := caches[0].Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for i, start := 0, time.Now(); time.Since(start) < lasts; i++ {
					wg.Go(func() {
						began := time.Now()
						if _, err := caches[i%2].Get(t.Context(), key); err != nil || time.Since(began) > longest+5*time.Millisecond {
							t.Errorf("%v after %v, want a value within %v", err, time.Since(began), longest)
						}
					})
					time.Sleep(500 * time.Microsecond)
				}
				wg.Wait()
				// A hot key is loaded anew before it expires: a fifth of its lifetime before at most.
				if n, most := db.loads.Load(), int64(lasts/(ttl*4/5))+1; n > most || db.most.Load() != 1 {
					t.Errorf("%d loads, %d at once, want %d at most, one after the other", n, db.most.Load(), most)
				}
			})
		})
	}
}

// Case L2-10. A hundred thousand keys that were written together, a half of them by Set and the others by loads, and are read all the time: their loads
// are spread over the tenth of the lifetime that the default jitter has.
func TestMassExpiry(t *testing.T) {
	keys := 100_000
	if raceEnabled || testing.Short() {
		keys = 10_000
	}
	const ttl, jitter, window = time.Minute, 6 * time.Second, time.Second
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		cache, err := nearcache.New(nil, "ks", nearcache.Config[int]{
			TTL: ttl, NearTTL: -1, Load: func(context.Context, string) (int, error) { return int(loads.Add(1)), nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close(t.Context())
		names := make([]string, keys)
		read := func(names []string) int64 {
			before := loads.Load()
			for _, name := range names {
				if _, err := cache.Get(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			return loads.Load() - before
		}
		for i := range names {
			names[i] = fmt.Sprint("k", i)
			if i < keys/2 {
				if _, err := cache.Set(t.Context(), names[i], 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := read(names); n != int64(keys/2) {
			t.Fatalf("%d loads at first, want %d", n, keys/2)
		}
		time.Sleep(ttl - jitter)
		sum, peak := int64(0), int64(0)
		for range jitter/window + 1 {
			n := read(names)
			sum, peak = sum+n, max(peak, n)
			time.Sleep(window)
		}
		if mean := int64(keys) * int64(window) / int64(jitter); sum != int64(keys) || peak > 2*mean {
			t.Errorf("%d loads, %d within %v, want %d, and twice the mean of %d at most", sum, peak, window, keys, mean)
		}
	})
}

// A product in heavy use, 3,750 times a second on each of many members: its owner is asked by each of the others once a second at most, the
// origin once in a lifetime.
func TestOneProductForEverybody(t *testing.T) {
	members := 40
	if raceEnabled || testing.Short() {
		members = 8
	}
	const perSecond, settle, lasts = 3750, 3 * time.Second, 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, members)
		var db failingDB
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		served := func() uint64 {
			for _, k := range caches[0].Stats().Top {
				if k.Key == key {
					return k.Served
				}
			}
			return 0
		}
		read := func(d time.Duration) {
			var wg sync.WaitGroup
			for _, cache := range caches {
				wg.Go(func() {
					const every = 20 * time.Millisecond
					for start := time.Now(); time.Since(start) < d; time.Sleep(every) {
						for range perSecond * every / time.Second {
							if _, err := cache.Get(t.Context(), key); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
		}
		read(settle)
		before := served()
		read(lasts)
		most := uint64((members - 1) * int(lasts/time.Second))
		if n := served() - before; n > most || n < most/2 {
			t.Errorf("the owner was asked %d times by %d others in %v, want %d at most", n, members-1, lasts, most)
		}
		if n := db.loads.Load(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
	})
}
