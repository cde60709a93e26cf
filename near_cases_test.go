package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// Case L1-4. Around its expiry a key is its whole value or loaded again, never something in between.
func TestReadsAroundExpiry(t *testing.T) {
	const full = "a value that is there as a whole"
	t.Run("loads", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var loads atomic.Int64
			cache, err := nearcache.New(nil, "ks", nearcache.Config[string]{TTL: 200 * time.Millisecond, Jitter: -1, Load: func(context.Context, string) (string, error) {
				loads.Add(1)
				return full, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Close(t.Context())
			var wg sync.WaitGroup
			start := time.Now()
			for g := range 8 {
				wg.Go(func() {
					for time.Since(start) < 4*time.Second {
						if v, err := cache.Get(t.Context(), "k"); v != full || err != nil {
							t.Errorf("got %q, %v, want the whole value", v, err)
							return
						}
						time.Sleep(time.Duration(100+g) * time.Microsecond)
					}
				})
			}
			wg.Wait()
			if got := loads.Load(); got < 19 || got > 40 {
				t.Errorf("got %d loads in 20 lifetimes, want one each", got)
			}
		})
	})
	t.Run("races", func(t *testing.T) { // with real time, at full speed
		cache, err := nearcache.New(nil, "ks", nearcache.Config[string]{TTL: 10 * time.Millisecond, Jitter: -1, Load: func(context.Context, string) (string, error) {
			return full, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close(t.Context())
		var wg sync.WaitGroup
		end := time.Now().Add(200 * time.Millisecond)
		for range 8 {
			wg.Go(func() {
				for time.Now().Before(end) {
					if v, err := cache.Get(t.Context(), "k"); v != full || err != nil {
						t.Errorf("got %q, %v, want the whole value", v, err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// Case L1-6. Gauges and the view of a key show what is alive; what nobody reads again is swept.
//
// Case L1-5.
func TestGaugesShowWhatIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{
			MaxLoads: -1, Jitter: -1, NearTTL: time.Hour,
			Load: func(_ context.Context, key string) (string, error) { return strings.Repeat("v", 200), nil },
			TTLOf: func(key string, _ string) time.Duration {
				if strings.HasPrefix(key, "long") {
					return time.Minute
				}
				return 300 * time.Millisecond
			},
		})
		entries := func() (shard, near, bytes int64) {
			for _, cache := range caches {
				s := cache.Stats()
				shard, near, bytes = shard+s.ShardEntries, near+s.NearEntries, bytes+s.ShardBytes+s.NearBytes
			}
			return shard, near, bytes
		}
		var keys []string
		for i := range 1000 {
			keys = append(keys, fmt.Sprint("short", i))
		}
		for i := range 10 {
			keys = append(keys, fmt.Sprint("long", i))
		}
		for range 3 {
			for _, cache := range caches {
				if m, err := cache.GetMany(t.Context(), keys); len(m) != len(keys) || err != nil {
					t.Fatal(len(m), err)
				}
			}
			shard, near, peak := entries()
			if shard != 1010 || near < 1010 {
				t.Errorf("got %d entries and %d near copies, want all", shard, near)
			}
			time.Sleep(time.Second) // nobody reads
			shard, near, bytes := entries()
			if shard != 10 || near > 20 {
				t.Errorf("a sweep after their end: got %d entries and %d near copies, want those of 10 keys", shard, near)
			}
			if bytes > peak/25 {
				t.Errorf("a sweep after their end: got %d bytes, %d at the peak", bytes, peak)
			}
		}
		time.Sleep(2 * time.Minute)
		if shard, near, bytes := entries(); shard != 0 || near != 0 || bytes != 0 {
			t.Errorf("at the end: got %d entries, %d near copies, %d bytes, want none", shard, near, bytes)
		}
	})
}

// Case L1-8. Lifetimes of nanoseconds do not crash and none of them means for ever: on the owner, at a distance and as a near copy.
func TestOddLifetimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for i, ttl := range []time.Duration{-time.Second, -1, 1, 50, time.Microsecond, time.Millisecond, 10 * time.Millisecond, 0} {
			for _, by := range []string{"TTLOf", "TTL"} {
				db := newDatabase(func() time.Duration { return 0 })
				cfg := nearcache.Config[int]{Load: db.load, NearTTL: time.Hour, NotFoundTTL: max(ttl, -1)}
				if by == "TTL" {
					if cfg.TTL = ttl; ttl < 0 {
						continue // a *ConfigError
					}
				} else {
					cfg.TTLOf = func(string, int) time.Duration { return ttl }
				}
				caches := open(t, c, fmt.Sprint("ks", i, by), cfg)
				key := testcluster.Key(c.Nodes[0], fmt.Sprint("ks", i, by), "n0", 0)
				db.write(key, 1)
				for range 2 {
					wantEverywhere(t, fmt.Sprint("at once, ", ttl), caches, key, 1)
				}
				db.write(key, 2)
				time.Sleep(50 * time.Millisecond)
				want := 2
				if ttl == 0 { // the default, five minutes
					want = 1
				}
				wantEverywhere(t, fmt.Sprintf("50ms later, %s %v", by, ttl), caches, key, want)
			}
		}
	})
}

// Case L1-9. Lifetimes are kept to milliseconds, wherever in a second they begin.
func TestLifetimesToTheMillisecond(t *testing.T) {
	for _, jitter := range []float64{-1, 0.2} {
		t.Run(fmt.Sprint("jitter=", jitter), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				db := newDatabase(func() time.Duration { return 0 })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: time.Second, Jitter: jitter})
				var wg sync.WaitGroup
				for i := range 10 {
					for reader, cache := range caches {
						wg.Go(func() {
							time.Sleep(time.Duration(i)*100*time.Millisecond + time.Duration(reader)*33*time.Millisecond)
							key := testcluster.Key(c.Nodes[0], "ks", "n0", 2*i+reader)
							db.write(key, 1)
							start := time.Now()
							v, err := cache.Get(t.Context(), key)
							db.write(key, 2)
							for v == 1 && err == nil {
								time.Sleep(5 * time.Millisecond)
								v, err = cache.Get(t.Context(), key)
							}
							if err != nil {
								t.Error(err)
							}
							least := time.Second - time.Duration(max(jitter, 0)*float64(time.Second)) - 50*time.Millisecond
							if life := time.Since(start); life < least || life > 1150*time.Millisecond {
								t.Errorf("offset %d00ms, node %d: lived %v, want %v to 1.15s", i, reader, life, least)
							}
						})
					}
				}
				wg.Wait()
			})
		})
	}
}

// Case L1-15. Keys over buffers that are used again: the cache has its own.
func TestKeysOverRecycledBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		var loads atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: time.Minute, Load: func(_ context.Context, key string) (string, error) {
			loads.Add(1)
			time.Sleep(time.Millisecond)
			return "v" + key, nil
		}})
		for _, owner := range []string{"n0", "n1"} {
			key := testcluster.Key(c.Nodes[0], "ks", owner, 0)
			buf := []byte(key)
			borrowed := unsafe.String(&buf[0], len(buf))
			if v, err := caches[0].Get(t.Context(), borrowed); v != "v"+key || err != nil {
				t.Fatal(v, err)
			}
			if err := caches[1].Invalidate(t.Context(), borrowed); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, err := caches[0].GetMany(t.Context(), []string{borrowed}); err != nil {
				t.Fatal(err)
			}
			if _, err := caches[1].Set(t.Context(), borrowed, "v"+key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // beyond the clock's coarseness after the invalidation (R16)
			copy(buf, strings.Repeat("x", len(buf)))
			loads.Store(0)
			wantEverywhere(t, "owner "+owner, caches, key, "v"+key)
			if got := loads.Load(); got != 0 {
				t.Errorf("owner %s: got %d loads of a key that is there", owner, got)
			}
			if err := caches[0].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for i, cache := range caches {
				if v, ok, err := cache.Peek(t.Context(), key); ok || err != nil {
					t.Errorf("owner %s, node %d: %q is there after Invalidate, %v", owner, i, v, err)
				}
			}
		}
		if got := total(caches, func(s nearcache.KeyspaceStats) int64 { return s.ShardEntries + s.NearEntries }); got != 0 {
			t.Errorf("%d entries are left that nobody can remove", got)
		}
	})
}

// Case L1-16. What goes in is copied: a loader or a writer may use its bytes again. What comes out cannot grow into what others read.
func TestBytesAreTheCachesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		buf := make([]byte, 64, 256)
		caches := open(t, c, "ks", nearcache.Config[[]byte]{NearTTL: time.Minute, Load: func(context.Context, string) ([]byte, error) {
			for i := range buf {
				buf[i] = 'v'
			}
			return buf, nil
		}})
		spoil := func() {
			for i := range buf {
				buf[i] = 'x'
			}
		}
		const want = "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv"
		check := func(when string, v []byte, err error) {
			t.Helper()
			if string(v) != want || err != nil {
				t.Errorf("%s: got %q, %v", when, v, err)
			}
			if cap(v) != len(v) {
				t.Errorf("%s: got capacity %d for %d bytes: an append would write into what others read", when, cap(v), len(v))
			}
			_ = append(v, strings.Repeat("y", 100)...)
			spoil()
		}
		for n, owner := range []string{"n0", "n1"} {
			key := testcluster.Key(c.Nodes[0], "ks", owner, n)
			for round := range 3 {
				for i, cache := range caches {
					when := fmt.Sprintf("owner %s, node %d, read %d", owner, i, round)
					v, err := cache.Get(t.Context(), key)
					check(when, v, err)
					m, err := cache.GetMany(t.Context(), []string{key})
					check(when+" of many", m[key], err)
					v, _, err = cache.Peek(t.Context(), key)
					check(when+", Peek", v, err)
				}
			}
			for i, cache := range caches {
				_, _ = cache.Refresh(t.Context(), key)
				if _, err := cache.Set(t.Context(), key, append(buf[:0], want...)); err != nil {
					t.Fatal(err)
				}
				spoil()
				synctest.Wait()
				for j, reader := range caches {
					v, err := reader.Get(t.Context(), key)
					check(fmt.Sprintf("owner %s, set on %d, read on %d", owner, i, j), v, err)
				}
			}
		}
	})
}

// Case L1-17. Empty, nil and absent are three things, everywhere and however often they are read.
func TestEmptyIsAValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		var loads atomic.Int64
		kind := func(key string) string { return key[:strings.Index(key, "|")] }
		bytes := open(t, c, "bytes", nearcache.Config[[]byte]{Load: func(_ context.Context, key string) ([]byte, error) {
			loads.Add(1)
			switch kind(key) {
			case "empty":
				return []byte{}, nil
			case "nil":
				return nil, nil
			}
			return nil, nearcache.ErrNotFound
		}, NotFoundTTL: time.Minute})
		structs := open(t, c, "structs", nearcache.Config[*struct{ N int }]{Load: func(_ context.Context, key string) (*struct{ N int }, error) {
			loads.Add(1)
			switch kind(key) {
			case "empty":
				return &struct{ N int }{}, nil
			case "nil":
				return nil, nil
			}
			return nil, nearcache.ErrNotFound
		}, NotFoundTTL: time.Minute})
		for _, owner := range []string{"n0", "n1"} {
			for _, k := range []string{"empty", "nil", "absent"} {
				var key string
				for n := 0; key == "" || c.Nodes[0].Owner("bytes", key) != c.Nodes[0].Owner("structs", key) || c.Nodes[0].Owner("bytes", key).ID != owner; n++ {
					key = fmt.Sprintf("%s|%d", k, n)
				}
				loads.Store(0)
				for round := range 10 {
					for i := range c.Nodes {
						when := fmt.Sprintf("%s of %s, node %d, read %d", k, owner, i, round)
						v, err := bytes[i].Get(t.Context(), key)
						if len(v) != 0 || errors.Is(err, nearcache.ErrNotFound) != (k == "absent") || err != nil && k != "absent" {
							t.Errorf("%s: got %q, %v", when, v, err)
						}
						m, err := bytes[i].GetMany(t.Context(), []string{key})
						if v, ok := m[key]; ok == (k == "absent") || len(v) != 0 || err != nil {
							t.Errorf("%s, GetMany: got %q, %v, %v", when, v, ok, err)
						}
						if v, ok, err := bytes[i].Peek(t.Context(), key); ok == (k == "absent") || len(v) != 0 || err != nil {
							t.Errorf("%s, Peek: got %q, %v, %v", when, v, ok, err)
						}
						p, err := structs[i].Get(t.Context(), key)
						if (p != nil) != (k == "empty") || errors.Is(err, nearcache.ErrNotFound) != (k == "absent") {
							t.Errorf("%s, pointer: got %v, %v", when, p, err)
						}
					}
					time.Sleep(500 * time.Millisecond)
				}
				if got := loads.Load(); got != 2 {
					t.Errorf("%s of %s: got %d loads in two keyspaces, want one each", k, owner, got)
				}
			}
		}
	})
}

// hook calls the cache back, as application code may, one level deep.
type hook struct {
	cache atomic.Pointer[nearcache.Cache[string]]
	node  atomic.Pointer[nearcache.Node]
	calls sync.Map // name to bool
	depth atomic.Int64
}

func (h *hook) run(t *testing.T, name string) {
	cache, node := h.cache.Load(), h.node.Load()
	if cache == nil || node == nil {
		return
	}
	if h.depth.Add(1) > 1 {
		h.depth.Add(-1)
		return
	}
	defer h.depth.Add(-1)
	h.calls.Store(name, true)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	start := time.Now()
	key := fmt.Sprint("inner-", name, rand.Uint64())
	if _, err := cache.Get(ctx, key); err != nil && !errors.Is(err, nearcache.ErrClosed) {
		t.Errorf("%s: Get: %v", name, err)
	}
	if _, err := cache.GetMany(ctx, []string{key, key + "2"}); err != nil && !errors.Is(err, nearcache.ErrClosed) {
		t.Errorf("%s: GetMany: %v", name, err)
	}
	_ = cache.Invalidate(ctx, key)
	_, _, _ = cache.Peek(ctx, key)
	_ = node.Stats()
	_ = node.Members()
	if other, err := nearcache.New(node, key, nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "", nil }}); err == nil {
		_ = other.Close(ctx)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("%s: calls from it took %v", name, took)
	}
}

type hookCodec struct {
	h *hook
	t *testing.T
}

func (c hookCodec) Append(dst []byte, v string) ([]byte, error) {
	c.h.run(c.t, "Append")
	return append(dst, v...), nil
}

func (c hookCodec) Decode(b []byte) (string, error) {
	c.h.run(c.t, "Decode")
	return string(b), nil
}

type hookLog struct {
	h *hook
	t *testing.T
}

func (l hookLog) Enabled(context.Context, slog.Level) bool { return true }

func (l hookLog) Handle(_ context.Context, r slog.Record) error {
	l.h.run(l.t, "Logger "+r.Message)
	return nil
}

func (l hookLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l hookLog) WithGroup(string) slog.Handler      { return l }

// Case L1-18. The application's functions may call the cache they are called by.
func TestHooksMayCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hook
		c := testcluster.Bubble(t, 2, func(i int, cfg *nearcache.NodeConfig) {
			if i == 0 {
				cfg.Logger = slog.New(hookLog{&h, t})
			}
		})
		caches := open(t, c, "ks", nearcache.Config[string]{
			MaxLoads: -1, TTL: 200 * time.Millisecond,
			Codec:     hookCodec{&h, t},
			Load:      func(_ context.Context, key string) (string, error) { h.run(t, "Load"); return "v" + key, nil },
			TTLOf:     func(string, string) time.Duration { h.run(t, "TTLOf"); return 0 },
			VersionOf: func(string) uint64 { h.run(t, "VersionOf"); return 1 },
			SizeOf:    func(string) int { h.run(t, "SizeOf"); return 10 },
		})
		h.node.Store(c.Nodes[0])
		h.cache.Store(caches[0])
		for round := range 3 {
			for i := range 20 {
				key := fmt.Sprint("k", i)
				for n, cache := range caches {
					start := time.Now()
					if v, err := cache.Get(t.Context(), key); v != "v"+key || err != nil {
						t.Errorf("node %d: got %q, %v", n, v, err)
					}
					if _, err := cache.Set(t.Context(), key+"set", "w"); err != nil {
						t.Errorf("node %d: Set: %v", n, err)
					}
					if v, err := caches[1-n].Get(t.Context(), key+"set"); v != "w" || err != nil {
						t.Errorf("node %d: got %q, %v, want what was set", 1-n, v, err)
					}
					if err := cache.Invalidate(t.Context(), key); err != nil {
						t.Errorf("node %d: Invalidate: %v", n, err)
					}
					if took := time.Since(start); took > time.Second {
						t.Errorf("node %d: took %v", n, took)
					}
				}
			}
			time.Sleep(time.Second)
			// Events that are logged: a list that makes no sense, a member that goes, one that is back, a connection that breaks.
			members := c.Members()
			if round == 0 {
				bad := append(members[:1:1], members[1])
				bad[1].Addr = "::1:1"
				c.List.Set(bad...)
				time.Sleep(100 * time.Millisecond)
				c.List.Set(members[:1]...)
				time.Sleep(6 * time.Second) // until it is forgotten
				c.List.Set(members...)
			} else {
				c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
				if round == 1 {
					c.Network.Reset(testcluster.Host(0), testcluster.Host(1))
				}
				for i := range 50 {
					_, _ = caches[0].Get(t.Context(), fmt.Sprint("cut", round, i))
					time.Sleep(100 * time.Millisecond)
				}
				c.Network.HealAll()
			}
			time.Sleep(2 * time.Second)
		}
		for _, name := range []string{
			"Append", "Decode", "Load", "TTLOf", "VersionOf", "SizeOf",
			"Logger discovery reports a list that makes no sense; the last one stays", "Logger near copies of a member are dropped",
			"Logger nearcache: stream to peer ended",
		} {
			if _, called := h.calls.Load(name); !called {
				t.Errorf("%s was not called", name)
			}
		}
	})
}

// Case L1-18. A function of the application that hangs holds up its own callers only.
func TestAHookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		hang := func(s string) {
			if strings.Contains(s, "hang") {
				time.Sleep(2 * time.Second)
			}
		}
		caches := open(t, c, "ks", nearcache.Config[string]{
			Load:   func(_ context.Context, key string) (string, error) { hang(key); return "v" + key, nil },
			TTLOf:  func(key, _ string) time.Duration { hang(key); return 0 },
			SizeOf: func(v string) int { hang(v); return 1 },
		})
		var wg sync.WaitGroup
		for _, cache := range caches {
			wg.Go(func() {
				if v, err := cache.Get(t.Context(), "hang"); v != "vhang" || err != nil {
					t.Errorf("got %q, %v", v, err)
				}
			})
			for range 8 {
				wg.Go(func() {
					for i := range 200 {
						start := time.Now()
						key := fmt.Sprint("k", i)
						if v, err := cache.Get(t.Context(), key); v != "v"+key || err != nil {
							t.Errorf("got %q, %v", v, err)
						}
						_ = cache.Invalidate(t.Context(), key)
						_ = cache.Stats()
						if took := time.Since(start); took > 50*time.Millisecond {
							t.Errorf("an unrelated key took %v", took)
						}
						time.Sleep(40 * time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
	})
}
