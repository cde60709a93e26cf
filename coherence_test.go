package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// database is an origin whose rows are versions. A read takes the row when it begins and comes back when its delay is over: a slow
// loader that holds an old row.
type database struct {
	mu    sync.Mutex
	rows  map[string]int
	delay func() time.Duration
	loads atomic.Int64
}

func newDatabase(delay func() time.Duration) *database {
	return &database{rows: make(map[string]int), delay: delay}
}

func (d *database) load(ctx context.Context, key string) (int, error) {
	d.loads.Add(1)
	d.mu.Lock()
	v, ok := d.rows[key]
	d.mu.Unlock()
	t := time.NewTimer(d.delay())
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if !ok {
		return 0, nearcache.ErrNotFound
	}
	return v, nil
}

// write makes v the key's row.
func (d *database) write(key string, v int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows[key] = v
}

func (d *database) bump(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows[key]++
	return d.rows[key]
}

// Case lease-1.
// Case invalidation-1.
// Case invalidation-7.
func TestNoResurrection(t *testing.T) {
	rounds := 10_000
	if raceEnabled || testing.Short() {
		rounds = 1_000
	}
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		rng := rand.New(rand.NewPCG(1, 2))
		var slow sync.Mutex
		db := newDatabase(func() time.Duration {
			slow.Lock()
			defer slow.Unlock()
			return time.Duration(rng.IntN(20)) * time.Millisecond
		})
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		key := ""
		for i := range rounds {
			if i%10 == 0 {
				key = fmt.Sprint("k", i) // every owner has its turn
			}
			db.bump(key)
			// Readers on every node, their loads and answers anywhere when the invalidation passes.
			var wg sync.WaitGroup
			for _, cache := range caches {
				wg.Go(func() {
					if _, err := cache.Get(t.Context(), key); err != nil {
						t.Errorf("round %d: %v", i, err)
					}
				})
			}
			time.Sleep(time.Duration(i%20) * time.Millisecond)
			want := db.bump(key)
			writer := i % len(caches)
			if err := caches[writer].Invalidate(t.Context(), key); err != nil {
				t.Fatalf("round %d: Invalidate: %v", i, err)
			}
			if v, err := caches[writer].Get(t.Context(), key); v != want || err != nil {
				t.Fatalf("round %d: the calling node got %d, %v after Invalidate, want %d", i, v, err, want)
			}
			wg.Wait()
			synctest.Wait() // what was on its way has arrived
			for n, cache := range caches {
				if v, err := cache.Get(t.Context(), key); v != want || err != nil {
					t.Fatalf("round %d: node %d got %d, %v, want %d", i, n, v, err, want)
				}
			}
		}
	})
}

// The owner's invalidations reach near copies in milliseconds, although they would live for a minute.
func TestNearCopiesHearOfInvalidations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 5)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		db.write("k", 1)
		for _, cache := range caches {
			if v, err := cache.Get(t.Context(), "k"); v != 1 || err != nil {
				t.Fatal(v, err)
			}
		}
		for i, cache := range caches {
			if _, info, err := cache.GetInfo(t.Context(), "k"); info.Tier != nearcache.TierNear || err != nil {
				t.Errorf("node %d: got tier %v, %v, want a near copy", i, info.Tier, err)
			}
		}
		db.write("k", 2)
		if err := caches[2].Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, cache := range caches {
			if v, err := cache.Get(t.Context(), "k"); v != 2 || err != nil {
				t.Errorf("node %d: got %d, %v, want the new value", i, v, err)
			}
		}
	})
}

// Case invalidation-3.
// A near copy of a minute is served only while its owner is heard: an invalidation that cannot be delivered bounds it by the lease.
func TestANearCopyNeedsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TTL: time.Hour})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		for range 3 { // far beyond a Bound, the copy is still there: its lease is renewed
			if v, err := caches[1].Get(t.Context(), key); v != 1 || err != nil {
				t.Fatal(v, err)
			}
			time.Sleep(10 * time.Second)
		}
		if _, info, err := caches[1].GetInfo(t.Context(), key); info.Tier != nearcache.TierNear || err != nil {
			t.Fatalf("got tier %v, %v, want the near copy", info.Tier, err)
		}
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
		db.write(key, 2)
		if err := caches[0].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		acked := time.Now()
		for {
			v, err := caches[1].Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			since := time.Since(acked)
			if v == 2 {
				break
			}
			if since > time.Second+50*time.Millisecond {
				t.Fatalf("got the old value %v after the invalidation, want at most a Bound", since)
			}
			time.Sleep(5 * time.Millisecond)
		}
		c.Network.Heal(testcluster.Host(0), testcluster.Host(1))
	})
}

// Case lease-2.
func TestAnOvertakenAnswerIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2, testcluster.PeerTimeout(2*time.Second))
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: 30 * time.Second})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		if _, err := caches[0].Get(t.Context(), key); err != nil { // resident at its owner
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		c.Network.Delay(testcluster.Host(0), testcluster.Host(1), 400*time.Millisecond)
		wg.Go(func() {
			if v, err := caches[1].Get(t.Context(), key); v != 1 || err != nil {
				t.Errorf("the overtaken caller: got %d, %v, want the value it was answered", v, err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		db.write(key, 2)
		if err := caches[0].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		time.Sleep(500 * time.Millisecond)
		if v, err := caches[1].Get(t.Context(), key); v != 2 || err != nil {
			t.Errorf("afterwards: got %d, %v, want the new value", v, err)
		}
	})
}

// Case invalidation-9.
// Case L2-4.
func TestAbsencesAreInvalidatedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NotFoundTTL: 30 * time.Second, NearTTL: 30 * time.Second})
		for range 10 {
			for i, cache := range caches {
				if _, err := cache.Get(t.Context(), "k"); !errors.Is(err, nearcache.ErrNotFound) {
					t.Fatalf("node %d: got %v, want ErrNotFound", i, err)
				}
			}
		}
		if got := db.loads.Load(); got != 1 {
			t.Errorf("got %d loads of an absent key, want 1", got)
		}
		db.write("k", 1)
		if err := caches[1].Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, cache := range caches {
			if v, err := cache.Get(t.Context(), "k"); v != 1 || err != nil {
				t.Errorf("node %d: got %d, %v, want the value that exists now", i, v, err)
			}
		}
	})
}

// Case L1-12.
// Case L1-11.
func TestANearCopyNeverOutlivesItsEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: 3 * time.Second, NearTTL: 2 * time.Second, Jitter: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		start := time.Now()
		if _, err := caches[0].Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		db.write(key, 2) // nobody is told
		time.Sleep(2700 * time.Millisecond)
		for {
			v, err := caches[1].Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			since := time.Since(start)
			if v == 2 {
				if since < 2900*time.Millisecond {
					t.Errorf("got the new value after %v, want the entry's whole lifetime", since)
				}
				break
			}
			if since > 3050*time.Millisecond {
				t.Fatalf("got the old value %v after its load, want at most its lifetime of 3s", since)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

func TestInvalidateAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		keys := make([]string, 50)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
			db.write(keys[i], 1)
		}
		for _, cache := range caches {
			if m, err := cache.GetMany(t.Context(), keys); len(m) != len(keys) || err != nil {
				t.Fatal(len(m), err)
			}
		}
		for _, k := range keys {
			db.write(k, 2)
		}
		if err := caches[0].InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, cache := range caches {
			m, err := cache.GetMany(t.Context(), keys)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range m {
				if v != 2 {
					t.Errorf("node %d: %s is %d after InvalidateAll, want 2", i, k, v)
				}
			}
		}
	})
}

// Case L2-3.
// Case invalidation-2.
func TestADeadOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 6)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		var keys []string
		for i := range 100 {
			k := testcluster.Key(c.Nodes[0], "ks", "n5", i)
			keys = append(keys, k)
			db.write(k, 1)
		}
		if _, err := caches[0].GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		db.loads.Store(0)
		c.Network.Host(testcluster.Host(5)).Crash()
		start := time.Now()
		for _, cache := range caches[:5] {
			for _, k := range keys {
				if v, err := cache.Get(t.Context(), k); v != 1 || err != nil {
					t.Fatalf("got %d, %v, want the value from a stand-in", v, err)
				}
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("500 reads of a dead owner's keys took %v, want no time-out each", took)
		}
		// A stand-in's entry lives a Bound: the reads of the five nodes take less.
		if got := db.loads.Load(); got > 150 {
			t.Errorf("got %d loads of 100 keys by 5 nodes, want one at each stand-in", got)
		}
		for i, k := range keys[:5] {
			want := db.bump(k)
			if err := caches[i].Invalidate(t.Context(), k); err != nil {
				t.Errorf("got %v, want nil: the owner can hold nothing any more", err)
			}
			for n, cache := range caches[:5] {
				if v, err := cache.Get(t.Context(), k); v != want || err != nil {
					t.Errorf("node %d after Invalidate: got %d, %v, want %d", n, v, err, want)
				}
			}
		}
	})
}

// Case lease-3.
func TestADeadLeaseHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		g := newGated()
		caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		go func() { _, _ = caches[2].Get(t.Context(), key) }()
		<-g.started
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
		time.Sleep(100 * time.Millisecond)
		killed := time.Now()
		c.Network.Host(testcluster.Host(2)).Crash()
		<-g.started // the next holder
		if took := time.Since(killed); took > 1250*time.Millisecond {
			t.Errorf("the lease passed on after %v, want 1s", took)
		}
		g.end <- func() (string, error) { return "v", nil } // one of the two gets it; the dead one's does not count
		g.end <- func() (string, error) { return "v", nil }
		wg.Wait()
		if got := g.calls.Load(); got != 2 {
			t.Errorf("got %d loads, want 2", got)
		}
	})
}

// A holder that hangs, or whose host is gone, closes no stream: its lease passes on all the same. A holder that was silent for less keeps it.
func TestASilentLeaseHolder(t *testing.T) {
	for _, tt := range []struct {
		silence time.Duration
		calls   int64
	}{{800 * time.Millisecond, 1}, {time.Minute, 2}} {
		t.Run(tt.silence.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				g := newGated()
				caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				var wg sync.WaitGroup
				wg.Go(func() { _, _ = caches[2].Get(t.Context(), key) })
				<-g.started
				silent := time.Now()
				wg.Go(func() {
					if v, err := caches[1].Get(t.Context(), key); v != "v" || err != nil {
						t.Errorf("got %q, %v, want the value", v, err)
					}
					if took := time.Since(silent); took > 4*time.Second {
						t.Errorf("waited %v for a silent member", took)
					}
				})
				synctest.Wait()
				c.Network.Isolate(testcluster.Host(2))
				rejoin := time.AfterFunc(tt.silence, func() { c.Network.Rejoin(testcluster.Host(2)) })
				time.Sleep(3 * time.Second)
				for range tt.calls {
					g.end <- func() (string, error) { return "v", nil }
				}
				wg.Wait()
				if got := g.calls.Load(); got != tt.calls {
					t.Errorf("got %d loads, want %d", got, tt.calls)
				}
				rejoin.Stop()
				c.Network.HealAll()
			})
		})
	}
}

// R1b: a load that a remote holder began before an invalidation is not shared with callers that come after it, neither when the owner
// can tell the holder nor when it cannot.
func TestCallersAfterAnInvalidationDoNotShareAnOldLoad(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprint("cut=", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				var took atomic.Int64
				took.Store(int64(8 * time.Second))
				db := newDatabase(func() time.Duration { return time.Duration(took.Load()) })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				db.write(key, 1)
				var wg sync.WaitGroup
				wg.Go(func() {
					if v, err := caches[1].Get(t.Context(), key); v != 1 || err != nil {
						t.Errorf("the first caller: got %d, %v, want what was there when it came", v, err)
					}
				})
				time.Sleep(time.Second)
				took.Store(int64(time.Second))
				if cut {
					c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
				}
				db.write(key, 2)
				if err := caches[2].Invalidate(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				time.Sleep(6900 * time.Millisecond)
				if v, err := caches[1].Get(t.Context(), key); v != 2 || err != nil {
					t.Errorf("a caller 6.9s after the invalidation: got %d, %v, want the new value", v, err)
				}
				wg.Wait()
			})
		})
	}
}

// A fill that does not get through at once gets through later: those who wait behind its lease do not wait for the lease's end.
func TestAFillThatDoesNotGetThroughIsSentAgain(t *testing.T) {
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
		get(2)
		synctest.Wait()
		start := time.Now()
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
		g.end <- func() (string, error) { return "v", nil }
		time.Sleep(500 * time.Millisecond)
		c.Network.Heal(testcluster.Host(0), testcluster.Host(1))
		wg.Wait()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("took %v, want the cut and little more", took)
		}
		if got := g.calls.Load(); got != 1 {
			t.Errorf("got %d loads, want 1", got)
		}
	})
}

// A lease whose owner is gone for good is not offered to it without pause.
func TestAFillThatNeverGetsThroughCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		g := newGated()
		caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			if v, err := caches[1].Get(t.Context(), key); v != "v" || err != nil {
				t.Errorf("got %q, %v, want the value", v, err)
			}
		})
		<-g.started
		c.Network.Isolate(testcluster.Host(0))
		g.end <- func() (string, error) { return "v", nil }
		wg.Wait()
		time.Sleep(15 * time.Second)
		for _, m := range c.Nodes[1].Stats().Members {
			if m.Errors > 50 {
				t.Errorf("got %d requests that %s did not answer, want a few", m.Errors, m.Member.ID)
			}
		}
	})
}

// Case L2-3.
// R16: a stand-in that was not told of an invalidation does not bring the old value back to the process that made it.
func TestTheCallersOwnView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		// n1 cannot reach the owner and fills the stand-in, which is n1 or n2.
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
		if v, err := caches[1].Get(t.Context(), key); v != 1 || err != nil {
			t.Fatal(v, err)
		}
		// n2 reaches the owner, and has no reason to tell a stand-in.
		db.write(key, 2)
		if err := caches[2].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		c.Network.Cut(testcluster.Host(0), testcluster.Host(2))
		for range 50 {
			if v, err := caches[2].Get(t.Context(), key); v != 2 || err != nil {
				t.Fatalf("the process that invalidated got %d, %v, want the new value", v, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		c.Network.HealAll()
	})
}

// R16 holds for stale copies too: what an Expire of another process left at a stand-in that was not told is older than the Invalidate of this one.
func TestTheCallersOwnViewOfStaleCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 200 * time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1)) // as in TestTheCallersOwnView
		if v, err := caches[1].Get(t.Context(), key); v != 1 || err != nil {
			t.Fatal(v, err)
		}
		db.write(key, 2)
		if err := caches[2].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if err := caches[1].Expire(t.Context(), key); err != nil { // stand-ins are told of this one
			t.Fatal(err)
		}
		c.Network.Cut(testcluster.Host(0), testcluster.Host(2))
		if v, info, err := caches[1].GetInfo(t.Context(), key); v != 1 || !info.Stale || err != nil {
			t.Fatalf("another process got %d, stale: %v, %v, want the stale copy", v, info.Stale, err)
		}
		if v, info, err := caches[2].GetInfo(t.Context(), key); v != 2 || err != nil {
			t.Errorf("the process that invalidated got %d, stale: %v, %v, want the new value", v, info.Stale, err)
		}
		c.Network.HealAll()
	})
}

// R16 holds for the stale copies of a member that could not be told, since it was cut off, however long ago that was (R19). To others it gives
// them: they have heard of nothing either.
func TestTheCallersOwnViewOfOldStaleCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := failingDB{took: time.Millisecond}
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: time.Second, NearTTL: -1, StaleOnError: time.Hour})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		if v, err := caches[2].Get(t.Context(), key); v != 1 || err != nil {
			t.Fatal(v, err)
		}
		c.Network.Isolate(testcluster.Host(0))
		if err := caches[1].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		db.failing.Store(true)
		for _, other := range []int{1, 2} {
			c.Network.Reset(testcluster.Host(0), testcluster.Host(other)) // with what was under way
		}
		c.Network.HealAll()
		time.Sleep(time.Minute)
		if v, info, err := caches[2].GetInfo(t.Context(), key); v != 1 || !info.Stale || err != nil {
			t.Fatalf("another process got %d, stale: %v, %v, want the stale copy", v, info.Stale, err)
		}
		v, info, err := caches[1].GetInfo(t.Context(), key)
		if _, ok := errors.AsType[*nearcache.LoadError](err); !ok {
			t.Errorf("the process that invalidated got %d, stale: %v, %v, want the load's error", v, info.Stale, err)
		}
	})
}

// R16: however long the load takes that a stand-in lets the process wait for.
func TestTheCallersOwnViewOfASlowLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 4 * time.Second })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		// n1 cannot reach the owner: n1 or n2 stands in, and waits for n1's load.
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
		var wg sync.WaitGroup
		wg.Go(func() {
			if v, err := caches[1].Get(t.Context(), key); v != 1 || err != nil {
				t.Error(v, err)
			}
		})
		time.Sleep(300 * time.Millisecond)
		db.write(key, 2)
		if err := caches[2].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		c.Network.Cut(testcluster.Host(0), testcluster.Host(2))
		if v, err := caches[2].Get(t.Context(), key); v != 2 || err != nil {
			t.Errorf("the process that invalidated got %d, %v, want the new value", v, err)
		}
		wg.Wait()
		c.Network.HealAll()
	})
}

// An invalidation concerns what is read within a Bound after it: a process that goes on invalidating other keys for long does not load
// again what has been resident all the time.
func TestOldInvalidationsOfTheCallerCostNoLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		db.write(key, 1)
		if _, err := caches[0].Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			others := make([]string, 1000)
			for j := range others {
				others[j] = fmt.Sprintf("other-%d-%d", i, j)
			}
			if err := caches[0].Invalidate(t.Context(), others...); err != nil {
				t.Fatal(err)
			}
			time.Sleep(900 * time.Millisecond)
		}
		if v, err := caches[0].Get(t.Context(), key); v != 1 || err != nil {
			t.Fatal(v, err)
		}
		if got := db.loads.Load(); got != 1 {
			t.Errorf("got %d loads of a resident key, want 1", got)
		}
	})
}

// A member that closes its keyspace answers invalidations that it is unknown, and is right: nobody holds a copy from it any more.
func TestAClosedKeyspaceLeavesNoNearCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 500 * time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		resident := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		loading := testcluster.Key(c.Nodes[0], "ks", "n0", 1)
		db.write(resident, 1)
		db.write(loading, 1)
		if v, err := caches[1].Get(t.Context(), resident); v != 1 || err != nil {
			t.Fatal(v, err)
		}
		// A load of the owner's own, and a caller elsewhere who waits for it, when the keyspace closes.
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				if v, err := caches[i].Get(t.Context(), loading); v != 1 || err != nil {
					t.Errorf("node %d: got %d, %v, want the value of the load under way", i, v, err)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		wg.Go(func() {
			if err := caches[0].Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		for _, key := range []string{resident, loading} {
			db.write(key, 2)
			if err := caches[2].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		time.Sleep(time.Second)
		for _, key := range []string{resident, loading} {
			if v, err := caches[1].Get(t.Context(), key); v != 2 || err != nil {
				t.Errorf("got %d, %v, want the new value", v, err)
			}
		}
	})
}

// R1b: a flight that asked a stand-in does not hear what the owner tells, so that it is not shared for longer than a Bound, whether the owner is
// heard again or not.
func TestAFlightThatAskedAStandInIsNotSharedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var slow atomic.Bool
		db := newDatabase(func() time.Duration {
			if slow.Load() {
				return 8 * time.Second
			}
			return 0
		})
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		other := testcluster.Key(c.Nodes[0], "ks", "n0", 1)
		db.write(key, 1)
		db.write(other, 1)
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
		if _, err := caches[1].Get(t.Context(), other); err != nil { // n1 finds out that n0 does not answer
			t.Fatal(err)
		}
		slow.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = caches[1].Get(t.Context(), key) })
		time.Sleep(100 * time.Millisecond)
		c.Network.HealAll()
		time.Sleep(2 * time.Second)
		db.write(key, 2)
		if err := caches[2].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		slow.Store(false)
		time.Sleep(3 * time.Second)
		if v, err := caches[1].Get(t.Context(), key); v != 2 || err != nil {
			t.Errorf("3 s after the invalidation: got %d, %v, want the new value", v, err)
		}
		wg.Wait()
	})
}

// R16 holds for Peek, and after an Invalidate that nobody was told of.
func TestPeekHasTheCallersOwnView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		db.write(key, 1)
		if _, err := caches[1].Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
		other := testcluster.Key(c.Nodes[0], "ks", "n1", 1)
		db.write(other, 1)
		if _, err := caches[0].Get(t.Context(), other); err != nil { // n0 finds out that n1 does not answer
			t.Fatal(err)
		}
		db.write(key, 2)
		var partial *nearcache.PartialError
		if err := caches[0].Invalidate(t.Context(), key); !errors.As(err, &partial) {
			t.Fatalf("got %v, want a *PartialError", err)
		}
		if v, ok, err := caches[1].Peek(t.Context(), key); v != 1 || !ok || err != nil {
			t.Fatalf("at the owner: got %d, %v, %v, want the old value, which it was not told about", v, ok, err)
		}
		c.Network.HealAll()
		for range 100 { // before the owner hears of it, and afterwards
			if v, ok, err := caches[0].Peek(t.Context(), key); ok || err != nil {
				t.Errorf("got %d, %v, %v, want nothing: it is the old value", v, ok, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// R16: an Invalidate that is over before the node knows its members has told nobody, but this process forgets.
func TestInvalidateBeforeTheMembersAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := startAlone(t)
		db := newDatabase(func() time.Duration { return 0 })
		cache, err := nearcache.New(node, "ks", nearcache.Config[int]{Load: db.load})
		if err != nil {
			t.Fatal(err)
		}
		for i, invalidate := range []func(context.Context) error{
			func(ctx context.Context) error { return cache.Invalidate(ctx, "k") },
			cache.InvalidateAll,
		} {
			db.write("k", i)
			if v, err := cache.Get(t.Context(), "k"); v != i || err != nil {
				t.Fatal(v, err)
			}
			db.write("k", i+1)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			var partial *nearcache.PartialError
			if err := invalidate(ctx); !errors.As(err, &partial) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want a *PartialError because of the deadline", err)
			}
			cancel()
			if v, err := cache.Get(t.Context(), "k"); v != i+1 || err != nil {
				t.Errorf("got %d, %v, want the new value", v, err)
			}
		}
	})
}

// R9: what an owner did not confirm reaches it as soon as it can be reached, and its caller never sees the old value meanwhile.
func TestAnUnconfirmedInvalidationIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Without evidence of what the owner holds (R18), it has to hear of it.
		c := testcluster.Bubble(t, 3, func(_ int, cfg *nearcache.NodeConfig) { cfg.Bound = -1 })
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1, TTL: time.Hour})
		var keys []string
		for i := range 300 {
			keys = append(keys, testcluster.Key(c.Nodes[0], "ks", "n0", i))
			db.write(keys[i], 1)
		}
		for _, cache := range caches {
			if m, err := cache.GetMany(t.Context(), keys); len(m) != len(keys) || err != nil {
				t.Fatal(len(m), err)
			}
		}
		time.Sleep(time.Second) // what is loaded in the instant of an invalidation is not older than it
		c.Network.Isolate(testcluster.Host(0))
		for _, k := range keys {
			db.write(k, 2)
		}
		var partial *nearcache.PartialError
		if err := caches[1].Invalidate(t.Context(), keys...); !errors.As(err, &partial) || len(partial.Keys) != len(keys) {
			t.Fatalf("got %v, want a *PartialError with all keys", err)
		}
		if v, err := caches[0].Get(t.Context(), keys[0]); v != 1 || err != nil {
			t.Errorf("the owner that was not told: got %d, %v, want the old value", v, err)
		}
		time.Sleep(5 * time.Second)
		c.Network.Reset(testcluster.Host(0), testcluster.Host(1)) // what was sent meanwhile is lost
		c.Network.HealAll()
		for range 20 {
			if v, err := caches[1].Get(t.Context(), keys[0]); v != 2 || err != nil {
				t.Errorf("the caller: got %d, %v, want the new value", v, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		for i, cache := range caches {
			m, err := cache.GetMany(t.Context(), keys)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range m {
				if v != 2 {
					t.Errorf("node %d: %s is still %d two seconds after the link is back", i, k, v)
				}
			}
		}
	})
}

// R11: a loader that reads a store which lags behind brings an old value back after an invalidation; it does not stay beyond the lag, on no
// member. The last one to get it is who waits for a load that begins when the lag ends and takes as long as a load may.
func TestALoaderThatLagsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lag, longest = 3 * time.Second, 10*time.Second - time.Millisecond
		c := testcluster.Bubble(t, 3)
		var delay atomic.Int64
		db, replica := newDatabase(func() time.Duration { return 0 }), newDatabase(func() time.Duration { return time.Duration(delay.Load()) })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: replica.load, TTL: time.Hour, NearTTL: time.Minute, OriginLag: lag})
		const key = "k"
		db.write(key, 0)
		replica.write(key, 0)
		wantEverywhere(t, "before", caches, key, 0)
		for v := 1; v <= 3; v++ {
			db.write(key, v)
			time.AfterFunc(lag-time.Millisecond, func() { replica.write(key, v) })
			if err := caches[v%3].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			wantEverywhere(t, "while the replica lags", caches, key, v-1)
			time.Sleep(lag + time.Millisecond)
			wantEverywhere(t, "after the lag", caches, key, v)
		}
		time.Sleep(lag)
		loads := replica.loads.Load()
		time.Sleep(30 * time.Second)
		wantEverywhere(t, "much later", caches, key, 3)
		if got := replica.loads.Load() - loads; got != 0 {
			t.Errorf("%d loads long after the last invalidation, want the value to stay", got)
		}

		for i, cache := range caches {
			v := 4 + i
			began := time.Now()
			time.AfterFunc(lag-time.Millisecond, func() { replica.write(key, v) })
			if err := cache.Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lag - 2*time.Millisecond)
			delay.Store(int64(longest))
			if got, err := cache.Get(t.Context(), key); got != v-1 || err != nil || time.Since(began) < lag+longest-2*time.Millisecond {
				t.Errorf("node %d, who waits for a long load: got %d, %v after %v, want %d", i, got, err, time.Since(began), v-1)
			}
			delay.Store(0)
			wantEverywhere(t, "after the long load", caches, key, v)
		}
	})
}
