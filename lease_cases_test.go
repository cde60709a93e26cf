package nearcache_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// stalling is an origin of versions whose loads can be made to stall after they have read their row. A stalled load ignores its
// context: it comes back when it is told to, as a paused process does.
type stalling struct {
	mu    sync.Mutex
	rows  map[string]int           // 0: absent
	gates map[string]chan struct{} // the next load of the key waits here
	loads atomic.Int64
}

func newStalling() *stalling {
	return &stalling{rows: make(map[string]int), gates: make(map[string]chan struct{})}
}

func (s *stalling) load(_ context.Context, key string) (int, error) {
	s.loads.Add(1)
	s.mu.Lock()
	v, gate := s.rows[key], s.gates[key]
	delete(s.gates, key)
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if v == 0 {
		return 0, nearcache.ErrNotFound
	}
	return v, nil
}

func (s *stalling) write(key string, v int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[key] = v
}

// stall makes the next load of key wait until the returned function is called.
func (s *stalling) stall(key string) (release func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates[key] = gate
	return func() { close(gate) }
}

// total sums the counters of a keyspace over all nodes.
func total[V any](caches []*nearcache.Cache[V], of func(nearcache.KeyspaceStats) int64) (sum int64) {
	for _, c := range caches {
		sum += of(c.Stats())
	}
	return sum
}

// wantIdle reports leases, flights and load slots that are left over.
func wantIdle[V any](t *testing.T, caches []*nearcache.Cache[V]) {
	t.Helper()
	for i, c := range caches {
		if s := c.Stats(); s.Leases != 0 || s.Flights != 0 || s.LoadsRunning != 0 {
			t.Errorf("node %d: %d leases, %d flights and %d loads are left, want none", i, s.Leases, s.Flights, s.LoadsRunning)
		}
	}
}

// wantEverywhere reads the key on all nodes.
func wantEverywhere[V comparable](t *testing.T, when string, caches []*nearcache.Cache[V], key string, want V) {
	t.Helper()
	for i, c := range caches {
		if v, err := c.Get(t.Context(), key); v != want || err != nil {
			t.Errorf("%s: node %d got %v, %v, want %v", when, i, v, err, want)
		}
	}
}

// Case lease-1. A load that read the old row stalls while its key is invalidated: in all placements of holder and invalidator.
func TestAnOldLoadIsNotStored(t *testing.T) {
	for name, tt := range map[string]struct{ holder, writer int }{
		"owner loads, owner invalidates":          {0, 0},
		"another loads, owner invalidates":        {1, 0},
		"owner loads, another invalidates":        {0, 1},
		"another loads, the holder invalidates":   {1, 1},
		"another loads, a third node invalidates": {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				db := newStalling()
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				db.write(key, 1)
				release := db.stall(key)
				var wg sync.WaitGroup
				wg.Go(func() {
					if v, err := caches[tt.holder].Get(t.Context(), key); v == 0 || err != nil {
						t.Errorf("the blocked caller: got %d, %v, want a value", v, err)
					}
				})
				synctest.Wait()
				db.write(key, 2)
				if err := caches[tt.writer].Invalidate(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				if v, err := caches[tt.writer].Get(t.Context(), key); v != 2 || err != nil {
					t.Errorf("the calling node while the old load stalls: got %d, %v, want 2", v, err)
				}
				synctest.Wait()
				wantEverywhere(t, "while the old load stalls", caches, key, 2)
				release()
				wg.Wait()
				synctest.Wait()
				wantEverywhere(t, "after the old load", caches, key, 2)
				time.Sleep(2 * time.Minute) // no near copy is left: what does the owner have?
				wantEverywhere(t, "later", caches, key, 2)
				if got := total(caches, func(s nearcache.KeyspaceStats) int64 { return int64(s.Rejected) }); got != 1 {
					t.Errorf("got %d rejected fills, want 1", got)
				}
				// The calling node may take what was loaded in the very instant of its invalidation for old (R16), and load once more.
				if got := db.loads.Load(); got < 2 || got > 3 {
					t.Errorf("got %d loads, want the old one and one more", got)
				}
				wantIdle(t, caches)
			})
		})
	}
}

// Case lease-4. A holder that was away so long that its lease passed on cannot store what it read before.
func TestASupersededHolderCannotStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newStalling()
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		release := db.stall(key)
		var wg sync.WaitGroup
		wg.Go(func() {
			if v, err := caches[1].Get(t.Context(), key); v == 0 || err != nil {
				t.Errorf("the first holder's caller: got %d, %v, want a value", v, err)
			}
		})
		synctest.Wait()
		db.write(key, 2) // nobody is told
		h0, h1 := testcluster.Host(0), testcluster.Host(1)
		c.Network.Cut(h0, h1)
		c.Network.Reset(h0, h1)
		start := time.Now()
		if v, err := caches[2].Get(t.Context(), key); v != 2 || err != nil {
			t.Errorf("the next holder: got %d, %v, want 2", v, err)
		}
		if took := time.Since(start); took > 1250*time.Millisecond {
			t.Errorf("the lease passed on after %v, want 1s", took)
		}
		c.Network.Heal(h0, h1)
		time.Sleep(2 * time.Second)
		release()
		wg.Wait()
		synctest.Wait()
		wantEverywhere(t, "after the old load", caches, key, 2)
		time.Sleep(10 * time.Second)
		wantEverywhere(t, "later", caches, key, 2)
		if s := caches[1].Stats(); s.Rejected != 1 {
			t.Errorf("got %d rejected fills, want 1", s.Rejected)
		}
		wantIdle(t, caches)
	})
}

// Case lease-4. The same where LoadTimeout ends the lease of a loader that hangs.
func TestALoaderThatHungCannotStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		for i, owner := range []string{"n0", "n1"} {
			db := newStalling()
			caches := open(t, c, "of-"+owner, nearcache.Config[int]{Load: db.load, LoadTimeout: 500 * time.Millisecond})
			key := testcluster.Key(c.Nodes[0], "of-"+owner, owner, i)
			db.write(key, 1)
			release := db.stall(key)
			start := time.Now()
			_, err := caches[1].Get(t.Context(), key)
			if took := time.Since(start); !errors.Is(err, nearcache.ErrLoadTimeout) || took > 510*time.Millisecond {
				t.Errorf("owner %s: the caller of the loader that hangs got %v after %v, want ErrLoadTimeout after 500ms", owner, err, took)
			}
			db.write(key, 2)
			wantEverywhere(t, "owner "+owner+", while it hangs", caches, key, 2)
			time.Sleep(time.Second)
			release()
			synctest.Wait()
			wantEverywhere(t, "owner "+owner+", when it is back", caches, key, 2)
			time.Sleep(10 * time.Second)
			wantEverywhere(t, "owner "+owner+", later", caches, key, 2)
			wantIdle(t, caches)
		}
	})
}

// Case lease-5. Loads whose values are not stored: the next caller is served or loads at once.
func TestLoadsWithoutAStoreGiveTheLeaseBack(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg   nearcache.Config[string]
		cut   time.Duration // the first caller's own deadline
		ok    bool          // the first caller gets the value
		loads int64         // at least, for two callers
	}{
		"too large for the keyspace": {cfg: nearcache.Config[string]{MaxValueBytes: 10}, ok: true, loads: 2},
		"too large for the shard":    {cfg: nearcache.Config[string]{MaxBytes: 1}, ok: true, loads: 2},
		"lifetime 0":                 {cfg: nearcache.Config[string]{TTLOf: func(string, string) time.Duration { return -1 }}, ok: true, loads: 2},
		"cancelled":                  {cut: 20 * time.Millisecond, loads: 2},
		"load timeout":               {cfg: nearcache.Config[string]{LoadTimeout: 30 * time.Millisecond}, loads: 2},
	} {
		for _, owner := range []string{"n0", "n1"} {
			t.Run(name+" owner "+owner, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 2)
					var loads atomic.Int64
					tt.cfg.Load = func(ctx context.Context, _ string) (string, error) {
						if loads.Add(1) == 1 {
							select {
							case <-time.After(40 * time.Millisecond):
							case <-ctx.Done():
								return "", ctx.Err()
							}
						}
						return strings.Repeat("v", 2000), nil
					}
					caches := open(t, c, "ks", tt.cfg)
					key := testcluster.Key(c.Nodes[0], "ks", owner, 0)
					var wg sync.WaitGroup
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.cut, time.Second))
						defer cancel()
						if v, err := caches[0].Get(ctx, key); (err == nil) != tt.ok || tt.ok && len(v) != 2000 {
							t.Errorf("the first caller: got %d bytes, %v", len(v), err)
						}
					})
					time.Sleep(50 * time.Millisecond)
					for i, cache := range caches {
						start := time.Now()
						if v, err := cache.Get(t.Context(), key); len(v) != 2000 || err != nil {
							t.Errorf("node %d, the second caller: got %d bytes, %v", i, len(v), err)
						}
						if took := time.Since(start); took > 50*time.Millisecond {
							t.Errorf("node %d, the second caller waited %v, want nothing to wait for", i, took)
						}
					}
					wg.Wait()
					if got := loads.Load(); got < tt.loads {
						t.Errorf("got %d loads, want %d at least", got, tt.loads)
					}
					time.Sleep(100 * time.Millisecond)
					wantIdle(t, caches)
				})
			})
		}
	}
}

// Case lease-6. Readers of a value that is too large to store share one load a node at most, and none waits for a lease.
func TestReadersOfALargeValueMakeNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var loads atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) {
			loads.Add(1)
			time.Sleep(300 * time.Millisecond)
			return strings.Repeat("v", 2<<20), nil
		}})
		for burst := range 2 {
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					if v, err := caches[i%3].Get(t.Context(), "k"); len(v) != 2<<20 || err != nil {
						t.Errorf("got %d bytes, %v, want 2 MiB", len(v), err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took > 1100*time.Millisecond {
				t.Errorf("burst %d took %v, want two loads and half a second at most", burst, took)
			}
			if got := loads.Swap(0); got < 1 || got > 3 {
				t.Errorf("burst %d: got %d loads, want one a node at most", burst, got)
			}
		}
		wantIdle(t, caches)
	})
}

// Case lease-3. While a dead holder's lease runs out, callers with less patience leave on time.
func TestImpatientCallersBehindADeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newStalling()
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		release := db.stall(key)
		defer release()
		go func() { _, _ = caches[2].Get(t.Context(), key) }()
		synctest.Wait()
		var wg sync.WaitGroup
		start := time.Now()
		for i := range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				_, err := caches[i%2].Get(ctx, key)
				if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 350*time.Millisecond {
					t.Errorf("an impatient caller: got %v after %v, want its deadline after 300ms", err, took)
				}
			})
			wg.Go(func() {
				if v, err := caches[i%2].Get(t.Context(), key); v != 1 || err != nil {
					t.Errorf("a patient caller: got %d, %v, want the value", v, err)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		c.Network.Host(testcluster.Host(2)).Crash()
		wg.Wait()
		if took := time.Since(start); took > 1600*time.Millisecond {
			t.Errorf("took %v, want the dead holder's second and little more", took)
		}
		if got := db.loads.Load(); got != 2 {
			t.Errorf("got %d loads, want the dead holder's and one more", got)
		}
	})
}

// A fill and an invalidation race many times, with real goroutines: the invalidating process never reads the old value again.
//
// Case invalidation-7.
func TestReadersBesideAnInvalidation(t *testing.T) {
	c := testcluster.Loopback(t, 2)
	db := newDatabase(func() time.Duration { return 0 })
	caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
	for _, owner := range []string{"n0", "n1"} {
		key := testcluster.Key(c.Nodes[0], "ks", owner, 0)
		db.write(key, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				last := 0
				for n := 0; ctx.Err() == nil; n++ {
					v, err := caches[0].Get(ctx, key)
					if err != nil && ctx.Err() == nil {
						t.Errorf("owner %s: a reader got %v", owner, err)
						return
					}
					if err == nil && v < last {
						t.Errorf("owner %s: a reader beside the invalidations got %d after %d", owner, v, last)
						return
					}
					last = max(last, v)
					if n%16 == i {
						testcluster.Wait()
					}
				}
			})
		}
		rounds := 2000
		if raceEnabled {
			rounds = 300
		}
		for range rounds {
			if _, err := caches[0].Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			want := db.bump(key)
			if err := caches[0].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if v, err := caches[0].Get(t.Context(), key); v != want || err != nil {
				t.Errorf("owner %s: got %d, %v right after Invalidate, want %d", owner, v, err, want)
				break
			}
		}
		cancel()
		wg.Wait()
	}
}

// Case invalidation-9. An absence that is still being loaded when the key is created and invalidated is not stored.
func TestAnAbsenceInFlightIsNotStored(t *testing.T) {
	for holder := range 2 {
		t.Run(fmt.Sprint("holder=", holder), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				db := newStalling()
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NotFoundTTL: 30 * time.Second, NearTTL: 30 * time.Second})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				release := db.stall(key)
				var wg sync.WaitGroup
				wg.Go(func() { _, _ = caches[holder].Get(t.Context(), key) })
				synctest.Wait()
				db.write(key, 1)
				if err := caches[2].Invalidate(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				release()
				wg.Wait()
				synctest.Wait()
				wantEverywhere(t, "after the absence came", caches, key, 1)
				if got := total(caches, func(s nearcache.KeyspaceStats) int64 { return s.NegativeEntries }); got != 0 {
					t.Errorf("got %d negative entries, want none", got)
				}
			})
		})
	}
}

// slowCodec decodes in its own time.
type slowCodec struct{ took *atomic.Int64 }

func (slowCodec) Append(dst []byte, v int) ([]byte, error) { return fmt.Append(dst, v), nil }

func (c slowCodec) Decode(b []byte) (v int, err error) {
	time.Sleep(time.Duration(c.took.Load()))
	_, err = fmt.Sscan(string(b), &v)
	return v, err
}

// Case lease-2. An answer is overtaken by an invalidation while it is decoded: read from the node's own shard or a peer's, it goes to its
// caller and is not kept.
func TestAnAnswerOvertakenWhileItIsDecoded(t *testing.T) {
	for reader := range 2 {
		for writer := range 2 {
			t.Run(fmt.Sprintf("reader %d, writer %d", reader, writer), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 3)
					db := newStalling()
					var took atomic.Int64
					caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, Codec: slowCodec{&took}, NearTTL: time.Minute})
					key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
					db.write(key, 1)
					if _, err := caches[2].Get(t.Context(), key); err != nil { // resident at n0, which has no near copy
						t.Fatal(err)
					}
					took.Store(int64(time.Second))
					var wg sync.WaitGroup
					wg.Go(func() {
						if v, err := caches[reader].Get(t.Context(), key); v == 0 || err != nil {
							t.Errorf("the overtaken caller: got %d, %v, want a value", v, err)
						}
					})
					time.Sleep(500 * time.Millisecond)
					took.Store(0)
					db.write(key, 2)
					if err := caches[writer].Invalidate(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					if v, err := caches[writer].Get(t.Context(), key); v != 2 || err != nil {
						t.Errorf("the writer at once: got %d, %v, want 2", v, err)
					}
					wg.Wait()
					synctest.Wait()
					wantEverywhere(t, "afterwards", caches, key, 2)
				})
			})
		}
	}
}
