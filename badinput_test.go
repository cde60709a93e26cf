package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// everyGet is every call that brings a value, by name.
func everyGet[V any](c *nearcache.Cache[V]) map[string]func(ctx context.Context, key string) (V, error) {
	return map[string]func(ctx context.Context, key string) (V, error){
		"Get":     c.Get,
		"Refresh": c.Refresh,
		"GetInfo": func(ctx context.Context, key string) (V, error) {
			v, _, err := c.GetInfo(ctx, key)
			return v, err
		},
		"GetMany": func(ctx context.Context, key string) (v V, err error) {
			m, err := c.GetMany(ctx, []string{key})
			if b, ok := errors.AsType[*nearcache.BatchError](err); ok {
				return v, b.Errs[key]
			}
			if v, ok := m[key]; ok {
				return v, err
			}
			return v, errors.Join(err, nearcache.ErrNotFound)
		},
	}
}

// Case API-4. Case L1-3. Keys of any content, on every method, here and at a distance: each is itself, also next to one with the same
// 32-bit hash; what is no key is refused and nothing is done.
func TestOddKeysOnEveryMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) { return "loaded " + key, nil }})
		keys := []string{
			"\xff\xfe", "a\x00b", "\x00", "{", "}", "{}", "{}x", "{t}", "{t}x", "x{t}", "{\xff}", "{{t}}", " ", "\n",
			"costarring", "liquid", "declinate", "macallums", "plumless", "buckeroo", strings.Repeat("k", 65534) + "a", strings.Repeat("k", 65534) + "b",
		}
		for i, key := range keys {
			here, there := caches[i%2], caches[1-i%2]
			for name, get := range everyGet(here) {
				if v, err := get(t.Context(), key); v != "loaded "+key || err != nil {
					t.Errorf("%s of %.40q: got %.40q, %v", name, key, v, err)
				}
			}
			if stored, err := there.Set(t.Context(), key, "set "+key); !stored || err != nil {
				t.Errorf("Set of %.40q: got %v, %v", key, stored, err)
			}
		}
		time.Sleep(2 * time.Second) // near copies are gone
		for i, key := range keys {
			if v, ok, err := caches[i%2].Peek(t.Context(), key); v != "set "+key || !ok || err != nil {
				t.Errorf("Peek of %.40q: got %.40q, %v, %v", key, v, ok, err)
			}
		}
		for i, key := range keys {
			if err := caches[i%2].Invalidate(t.Context(), key); err != nil {
				t.Errorf("Invalidate of %.40q: %v", key, err)
			}
			for j, k := range keys {
				if _, ok, err := caches[0].Peek(t.Context(), k); ok != (j > i) || err != nil {
					t.Errorf("after Invalidate of %.40q, Peek of %.40q: got %v, %v", key, k, ok, err)
				}
			}
		}

		if _, err := caches[0].Set(t.Context(), "good", "v"); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"", strings.Repeat("k", 65536)} {
			wantErr := func(name string, err error) {
				t.Helper()
				if !errors.Is(err, nearcache.ErrInvalidKey) {
					t.Errorf("%s of a key of %d bytes: got %v, want ErrInvalidKey", name, len(key), err)
				}
			}
			for _, cache := range caches {
				for name, get := range everyGet(cache) {
					_, err := get(t.Context(), key)
					wantErr(name, err)
				}
				_, err := cache.Set(t.Context(), key, "v")
				wantErr("Set", err)
				_, _, err = cache.Peek(t.Context(), key)
				wantErr("Peek", err)
				wantErr("Invalidate", cache.Invalidate(t.Context(), "good", key))
				m, err := cache.GetMany(t.Context(), []string{"good", key, "other"})
				if b, ok := errors.AsType[*nearcache.BatchError](err); !ok || len(b.Errs) != 1 || m["good"] != "v" || m["other"] != "loaded other" {
					t.Errorf("GetMany of two keys and one that is none: got %v, %v", m, err)
				}
			}
		}
		wantIdle(t, caches)
	})
}

// Case L1-13. Values around every limit: what is too large is an error of Set, and of nobody else.
func TestValuesAroundTheLimit(t *testing.T) {
	for name, tt := range map[string]struct{ config, limit int }{
		"tiny": {1, 1}, "a thousand": {1000, 1000}, "the default": {0, 1 << 20}, "the wire's": {-1, 16 << 20}, "the wire's, by number": {16 << 20, 16 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				var loads atomic.Int64
				caches := open(t, c, "ks", nearcache.Config[[]byte]{MaxValueBytes: tt.config, NearTTL: -1, Load: func(_ context.Context, key string) ([]byte, error) {
					loads.Add(1)
					var size int
					_, err := fmt.Sscanf(key[strings.Index(key, "="):], "=%d", &size)
					return make([]byte, size), err
				}})
				for _, size := range []int{0, tt.limit - 1, tt.limit, tt.limit + 1} {
					for n, owner := range []string{"n0", "n1"} {
						var key string
						for i := 0; key == "" || c.Nodes[0].Owner("ks", key).ID != owner; i++ {
							key = fmt.Sprintf("%d/%d=%d", n, i, size)
						}
						stored, err := caches[0].Set(t.Context(), key, make([]byte, size))
						if tooLarge := size > tt.limit; stored == tooLarge || errors.Is(err, nearcache.ErrValueTooLarge) != tooLarge {
							t.Errorf("Set of %d bytes at %s: got %v, %v", size, owner, stored, err)
						}
						want := int64(1)
						if size > tt.limit {
							want = 2
						}
						if err := caches[0].Invalidate(t.Context(), key); err != nil {
							t.Error(err)
						}
						loads.Store(0)
						time.Sleep(20 * time.Millisecond) // a load that begins at the instant of an invalidation counts as older
						for range 2 {
							if v, err := caches[0].Get(t.Context(), key); len(v) != size || err != nil {
								t.Errorf("Get of %d bytes at %s: got %d bytes, %v", size, owner, len(v), err)
							}
						}
						if got := loads.Load(); got != want {
							t.Errorf("two Gets of %d bytes at %s: got %d loads, want %d", size, owner, got, want)
						}
					}
				}
				wantIdle(t, caches)
			})
		})
	}
}

// Case L1-8. Lifetimes of a Set, from none to centuries.
func TestLifetimesOfASet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		var ttl atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{
			Jitter: -1, NearTTL: -1,
			Load:  func(context.Context, string) (string, error) { return "", nearcache.ErrNotFound },
			TTLOf: func(string, string) time.Duration { return time.Duration(ttl.Load()) },
		})
		const century = 100 * 365 * 24 * time.Hour
		n := 0
		for _, by := range []string{"WithTTL", "TTLOf"} {
			for _, d := range []time.Duration{math.MinInt64, -century, -1, 0, 1, time.Microsecond, time.Millisecond, time.Second, century, math.MaxInt64} {
				for _, owner := range []string{"n0", "n1"} {
					n++
					key, what := testcluster.Key(c.Nodes[0], "ks", owner, n), fmt.Sprintf("%s of %v at %s", by, d, owner)
					var opts []nearcache.SetOption
					if by == "WithTTL" {
						opts = append(opts, nearcache.WithTTL(d))
						ttl.Store(0)
					} else {
						ttl.Store(int64(d))
					}
					_, err := caches[0].Set(t.Context(), key, "v", opts...)
					_, refused := errors.AsType[*nearcache.ConfigError](err)
					if want := by == "WithTTL" && d < 0; refused != want || err != nil && !want {
						t.Errorf("%s: got %v, want a *ConfigError: %v", what, err, want)
					}
					_, ok, err := caches[0].Peek(t.Context(), key)
					if sure := d == 0 || d >= time.Millisecond; err != nil || sure && !ok || d < 0 && ok {
						t.Errorf("%s, Peek at once: got %v, %v", what, ok, err)
					}
					time.Sleep(10 * time.Millisecond)
					for i, cache := range caches {
						if _, ok, err := cache.Peek(t.Context(), key); ok != (d == 0 || d >= time.Second) || err != nil {
							t.Errorf("%s, Peek after 10ms on node %d: got %v, %v", what, i, ok, err)
						}
					}
				}
			}
		}
		time.Sleep(10 * time.Minute)
		if got := caches[0].Stats().ShardEntries + caches[1].Stats().ShardEntries; got != 8 {
			t.Errorf("after ten minutes: got %d entries, want the eight that live for centuries", got)
		}
	})
}

// Case API-4. A lifetime in a configuration is a default, off, itself, or refused with its name; none of them overflows.
func TestLifetimesInAConfig(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	load := func(context.Context, string) (string, error) { return "v", nil }
	type config = nearcache.Config[string]
	for name, set := range map[string]func(*config, time.Duration){
		"TTL":              func(c *config, d time.Duration) { c.TTL = d },
		"NearTTL":          func(c *config, d time.Duration) { c.NearTTL = d },
		"NotFoundTTL":      func(c *config, d time.Duration) { c.NotFoundTTL = d },
		"LoadTimeout":      func(c *config, d time.Duration) { c.LoadTimeout = d },
		"LoadQueueTimeout": func(c *config, d time.Duration) { c.LoadQueueTimeout = d },
	} {
		for _, d := range []time.Duration{math.MinInt64, -century, -1, 1, time.Microsecond, 10 * 365 * 24 * time.Hour, century, math.MaxInt64} {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				cfg := config{Load: load}
				set(&cfg, d)
				cache, err := nearcache.New(c.Nodes[0], "ks", cfg)
				if d > 10*365*24*time.Hour || d < 0 && name == "TTL" {
					if e, ok := errors.AsType[*nearcache.ConfigError](err); !ok || len(e.Problems) != 1 || !strings.HasPrefix(e.Problems[0], name+" ") {
						t.Errorf("%s %v: got %v, want a *ConfigError that names it", name, d, err)
					}
					return
				}
				if err != nil {
					t.Fatalf("%s %v: %v", name, d, err)
				}
				for _, owner := range []string{"n0", "n1"} {
					v, err := cache.Get(t.Context(), testcluster.Key(c.Nodes[0], "ks", owner, 0))
					if timeout := name == "LoadTimeout" && d > 0 && d < time.Millisecond; timeout && errors.Is(err, nearcache.ErrLoadTimeout) {
						continue // a loader without a pause may be in time or not
					}
					if v != "v" || err != nil {
						t.Errorf("%s %v, key of %s: got %q, %v", name, d, owner, v, err)
					}
				}
			})
		}
	}
}

var errCodec = errors.New("codec error")

// badCodec fails with values that begin with "bad".
type badCodec struct{ append, decode func() error }

func (c badCodec) Append(dst []byte, v string) ([]byte, error) {
	if c.append != nil && strings.HasPrefix(v, "bad") {
		return append(dst, "half"...), c.append()
	}
	return append(dst, v...), nil
}

func (c badCodec) Decode(b []byte) (string, error) {
	if c.decode != nil && strings.HasPrefix(string(b), "bad") {
		return "half", c.decode()
	}
	return string(b), nil
}

// A codec that fails or panics fails what it was called for and nothing else: not the other keys of a batch, not the peer, not the next
// call.
func TestCodecsThatFail(t *testing.T) {
	fails := func() error { return errCodec }
	panics := func() error { panic(errCodec) }
	isPanic := func(err error) bool {
		p, ok := errors.AsType[*nearcache.PanicError](err)
		return ok && strings.Contains(fmt.Sprint(p.Value), errCodec.Error())
	}
	isError := func(err error) bool { return errors.Is(err, errCodec) && !isPanic(err) }
	for name, tt := range map[string]struct {
		codec badCodec
		is    func(error) bool // of what cannot be encoded
	}{
		"Append fails":  {badCodec{append: fails}, isError},
		"Append panics": {badCodec{append: panics}, isPanic},
		"Decode fails":  {badCodec{decode: fails}, nil},
		"Decode panics": {badCodec{decode: panics}, nil},
	} {
		for _, many := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,LoadMany=%v", name, many), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 2)
					load := func(_ context.Context, key string) (string, error) { return key[:4] + " value", nil }
					cfg := nearcache.Config[string]{Codec: tt.codec, Load: load, NearTTL: 100 * time.Millisecond}
					if many {
						cfg.LoadMany = func(ctx context.Context, keys []string) (map[string]string, error) {
							m := make(map[string]string)
							for _, k := range keys {
								m[k], _ = load(ctx, k)
							}
							return m, nil
						}
					}
					caches := open(t, c, "ks", cfg)
					for _, owner := range []string{"n0", "n1"} {
						good, bad := keyWith(c, "good", owner), keyWith(c, "bad-", owner)
						for round := range 2 {
							for i, cache := range caches {
								where := fmt.Sprintf("node %d, key of %s, round %d", i, owner, round)
								for name, get := range everyGet(cache) {
									v, err := get(t.Context(), bad)
									if tt.is != nil && !tt.is(err) || tt.is == nil && (v != "bad- value" || err != nil) {
										t.Errorf("%s: %s: got %q, %v", where, name, v, err)
									}
								}
								m, err := cache.GetMany(t.Context(), []string{good, bad})
								b, _ := errors.AsType[*nearcache.BatchError](err)
								if m[good] != "good value" || (tt.is == nil) != (err == nil) || tt.is != nil && (len(b.Errs) != 1 || !tt.is(b.Errs[bad])) {
									t.Errorf("%s: GetMany: got %v, %v", where, m, err)
								}
								time.Sleep(200 * time.Millisecond)
								if v, ok, err := cache.Peek(t.Context(), bad); v != "" || ok || err != nil {
									t.Errorf("%s: Peek: got %q, %v, %v, want a miss", where, v, ok, err)
								}
								stored, err := cache.Set(t.Context(), bad, "bad set")
								if stored != (tt.is == nil) || tt.is != nil && !tt.is(err) || tt.is == nil && err != nil {
									t.Errorf("%s: Set: got %v, %v", where, stored, err)
								}
								if v, ok, err := cache.Peek(t.Context(), good); v != "good value" || !ok || err != nil {
									t.Errorf("%s: Peek of the good one: got %q, %v, %v", where, v, ok, err)
								}
							}
						}
					}
					wantIdle(t, caches)
					for i, n := range c.Nodes {
						for _, m := range n.Stats().Members {
							if m.Errors != 0 {
								t.Errorf("node %d: %d errors of peer %s, want none", i, m.Errors, m.Member.ID)
							}
						}
					}
				})
			})
		}
	}
}

// A codec, SizeOf or TagsOf that leaves its goroutine takes the callers on that goroutine with it, and nobody else: the key and the rest of the batch
// go on.
func TestFunctionsThatGoexit(t *testing.T) {
	for name, many := range map[string]bool{"Load": false, "LoadMany": true} {
		for _, where := range []string{"Decode", "SizeOf", "TagsOf"} {
			t.Run(where+","+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 2)
					var leave atomic.Bool
					exit := func() {
						if leave.Load() {
							runtime.Goexit()
						}
					}
					cfg := nearcache.Config[string]{NearTTL: 100 * time.Millisecond, Load: func(_ context.Context, key string) (string, error) { return "bad " + key, nil }}
					if many {
						cfg.LoadMany = func(_ context.Context, keys []string) (map[string]string, error) {
							m := make(map[string]string)
							for _, k := range keys {
								m[k] = "bad " + k
							}
							return m, nil
						}
					}
					switch where {
					case "Decode":
						cfg.Codec = badCodec{decode: func() error { exit(); return nil }}
					case "SizeOf":
						cfg.SizeOf = func(string) int { exit(); return 1 }
					case "TagsOf":
						cfg.TagsOf = func(string, string) []string { exit(); return nil }
					}
					caches := open(t, c, "ks", cfg)
					var keys []string
					for i := range 8 {
						keys = append(keys, keyWith(c, fmt.Sprint("warm", i, "-"), fmt.Sprint("n", i%2)))
					}
					for _, cache := range caches {
						if _, err := cache.GetMany(t.Context(), keys); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(200 * time.Millisecond) // near copies are gone
					for i := range 8 {
						keys = append(keys, keyWith(c, fmt.Sprint("cold", i, "-"), fmt.Sprint("n", i%2)))
					}
					leave.Store(true)
					var wg sync.WaitGroup
					for _, cache := range caches {
						wg.Go(func() { _, _ = cache.GetMany(t.Context(), keys) })
						for _, key := range keys {
							for _, get := range everyGet(cache) {
								wg.Go(func() { _, _ = get(t.Context(), key) })
							}
						}
					}
					wg.Wait()
					time.Sleep(time.Second)
					wantIdle(t, caches)
					leave.Store(false)
					for _, cache := range caches {
						var m map[string]string
						err := errors.New("not asked")
						for i := 0; i < 40 && err != nil; i++ { // so many failed loads may have opened the breaker, which tries every 50 ms
							m, err = cache.GetMany(t.Context(), keys)
							time.Sleep(50 * time.Millisecond)
						}
						if len(m) != len(keys) || err != nil {
							t.Errorf("afterwards: got %d values, %v", len(m), err)
						}
					}
				})
			})
		}
	}
}

// keyWith returns a key with a beginning that the member owns.
func keyWith(c *testcluster.Cluster, prefix, owner string) string {
	for i := 0; ; i++ {
		if k := fmt.Sprint(prefix, i); c.Nodes[0].Owner("ks", k).ID == owner {
			return k
		}
	}
}

// Functions of the configuration that panic fail their own key; a SizeOf that makes no sense costs a near copy at most.
func TestHooksThatPanic(t *testing.T) {
	boom := func(v string) {
		if strings.HasPrefix(v, "bad") {
			panic(errCodec)
		}
	}
	for name, tt := range map[string]struct {
		cfg   nearcache.Config[string]
		fails bool
	}{
		"VersionOf":           {nearcache.Config[string]{VersionOf: func(v string) uint64 { boom(v); return 1 }}, true},
		"TTLOf":               {nearcache.Config[string]{TTLOf: func(_, v string) time.Duration { boom(v); return 0 }}, true},
		"TagsOf":              {nearcache.Config[string]{TagsOf: func(_, v string) []string { boom(v); return nil }}, true},
		"SizeOf":              {nearcache.Config[string]{SizeOf: func(v string) int { boom(v); return 1 }}, false},
		"SizeOf, enormous":    {nearcache.Config[string]{SizeOf: func(string) int { return math.MaxInt }}, false},
		"SizeOf, negative":    {nearcache.Config[string]{SizeOf: func(string) int { return math.MinInt }}, false},
		"VersionOf, enormous": {nearcache.Config[string]{VersionOf: func(string) uint64 { return math.MaxUint64 }}, false},
	} {
		for _, many := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,LoadMany=%v", name, many), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 2)
					cfg := tt.cfg
					cfg.Load = func(_ context.Context, key string) (string, error) { return key[:4] + " value", nil }
					if many {
						cfg.LoadMany = func(_ context.Context, keys []string) (map[string]string, error) {
							m := make(map[string]string)
							for _, k := range keys {
								m[k] = k[:4] + " value"
							}
							return m, nil
						}
					}
					caches := open(t, c, "ks", cfg)
					for _, owner := range []string{"n0", "n1"} {
						good, bad := keyWith(c, "good", owner), keyWith(c, "bad-", owner)
						cache := caches[0]
						check := func(what, v string, err error) {
							t.Helper()
							_, isPanic := errors.AsType[*nearcache.PanicError](err)
							if isPanic != tt.fails || !tt.fails && (v != "bad- value" || err != nil) {
								t.Errorf("key of %s: %s: got %q, %v", owner, what, v, err)
							}
						}
						m, err := cache.GetMany(t.Context(), []string{good, bad})
						if b, ok := errors.AsType[*nearcache.BatchError](err); ok {
							err = b.Errs[bad]
						}
						check("GetMany", m[bad], err)
						if m[good] != "good value" {
							t.Errorf("key of %s: GetMany: the good key failed too: %v", owner, err)
						}
						for name, get := range everyGet(cache) {
							v, err := get(t.Context(), bad)
							check(name, v, err)
						}
						stored, err := cache.Set(t.Context(), bad, "bad- value")
						if stored == tt.fails {
							t.Errorf("key of %s: Set: got %v, %v", owner, stored, err)
						}
						check("Set", "bad- value", err)
						if v, err := cache.Get(t.Context(), good); v != "good value" || err != nil {
							t.Errorf("key of %s: the good key: got %q, %v", owner, v, err)
						}
					}
					wantIdle(t, caches)
					for i, n := range c.Nodes {
						if s := n.Stats().Keyspaces["ks"]; s.NearBytes < 0 || s.NearBytes > 64<<20 || s.ShardBytes < 0 || s.ShardBytes > 256<<20 {
							t.Errorf("node %d: %d bytes near, %d in the shard, want them within the budgets", i, s.NearBytes, s.ShardBytes)
						}
					}
				})
			})
		}
	}
}

// Loaders that do what they should not: their keys end with the right error in time, and the keys and the node work afterwards.
func TestLoadersThatMisbehave(t *testing.T) {
	isPanic := func(err error) bool { _, ok := errors.AsType[*nearcache.PanicError](err); return ok }
	isNotFound := func(err error) bool { return errors.Is(err, nearcache.ErrNotFound) }
	isTimeout := func(err error) bool { return errors.Is(err, nearcache.ErrLoadTimeout) }
	isLoadError := func(err error) bool {
		e, ok := errors.AsType[*nearcache.LoadError](err)
		return ok && e.Key != "" && e.Keyspace == "ks" && e.Member != ""
	}
	for name, tt := range map[string]struct {
		load func(context.Context, []string) (map[string]string, error) // as LoadMany; nil: of a map of nothing
		is   func(error) bool
	}{
		"panics":          {func(context.Context, []string) (map[string]string, error) { panic("boom") }, isPanic},
		"panics with nil": {func(context.Context, []string) (map[string]string, error) { panic(nil) }, isPanic},
		"calls Goexit":    {func(context.Context, []string) (map[string]string, error) { runtime.Goexit(); return nil, nil }, isPanic},
		"returns nil":     {func(context.Context, []string) (map[string]string, error) { return nil, nil }, isNotFound},
		"returns the wrong keys": {func(context.Context, []string) (map[string]string, error) {
			return map[string]string{"wrong": "x", "": "y"}, nil
		}, isNotFound},
		"returns an empty error": {func(context.Context, []string) (map[string]string, error) { return nil, errors.New("") }, isLoadError},
		"returns a long error": {func(context.Context, []string) (map[string]string, error) {
			return nil, errors.New(strings.Repeat("\xffx", 1<<20))
		}, isLoadError},
		"returns its own timeout": {func(context.Context, []string) (map[string]string, error) { return nil, context.DeadlineExceeded }, isLoadError},
		"writes to its keys": {func(_ context.Context, keys []string) (map[string]string, error) {
			for i := range keys {
				keys[i] = "wrong"
			}
			return nil, errors.New("no")
		}, isLoadError},
		"ignores its context": {func(context.Context, []string) (map[string]string, error) {
			time.Sleep(5 * time.Second)
			return nil, nil
		}, isTimeout},
		"returns too late": {func(ctx context.Context, keys []string) (map[string]string, error) {
			<-ctx.Done()
			time.Sleep(50 * time.Millisecond)
			return map[string]string{keys[0]: "late"}, nil
		}, isTimeout},
	} {
		for _, by := range []string{"Load", "LoadMany"} {
			t.Run(name+","+by, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := testcluster.Bubble(t, 2)
					var healthy atomic.Bool
					cfg := nearcache.Config[string]{LoadTimeout: time.Second, NotFoundTTL: -1}
					many := func(ctx context.Context, keys []string) (map[string]string, error) {
						if !healthy.Load() {
							return tt.load(ctx, keys)
						}
						m := make(map[string]string)
						for _, k := range keys {
							m[k] = "v"
						}
						return m, nil
					}
					if by == "LoadMany" {
						cfg.LoadMany = many
					} else {
						cfg.Load = func(ctx context.Context, key string) (string, error) {
							m, err := many(ctx, []string{key})
							if v, ok := m[key]; ok || err != nil {
								return v, err
							}
							return "", nearcache.ErrNotFound
						}
					}
					caches := open(t, c, "ks", cfg)
					keys := []string{keyWith(c, "a", "n0"), keyWith(c, "b", "n0"), keyWith(c, "a", "n1"), keyWith(c, "b", "n1")}
					start := time.Now()
					var wg sync.WaitGroup
					for i, cache := range caches { // at once, so that some wait for others
						for name, get := range everyGet(cache) {
							for _, key := range keys {
								wg.Go(func() {
									if v, err := get(t.Context(), key); v != "" || !tt.is(err) {
										t.Errorf("node %d, %s(%s): got %q, %.100v (%T)", i, name, key, v, err, err)
									}
								})
							}
						}
					}
					wg.Wait()
					// A Refresh may wait for a load before its own.
					if took := time.Since(start); took > 2200*time.Millisecond {
						t.Errorf("the calls took %v, want LoadTimeout and not much more", took)
					}
					for i, cache := range caches {
						for _, key := range []string{"wrong", keys[0]} {
							if v, ok, err := cache.Peek(t.Context(), key); ok || err != nil {
								t.Errorf("node %d: Peek(%s): got %q, %v, %v, want nothing", i, key, v, ok, err)
							}
						}
					}
					healthy.Store(true)
					time.Sleep(10 * time.Second)
					wantIdle(t, caches)
					for i, cache := range caches {
						for _, key := range keys {
							if v, err := cache.Get(t.Context(), key); v != "v" || err != nil {
								t.Errorf("afterwards, node %d, %s: got %q, %v", i, key, v, err)
							}
						}
					}
				})
			})
		}
	}
}

// A context that has ended before the call: nothing is loaded or stored for it, and every method says so with the context's error, unless
// it needs nobody.
func TestContextsThatHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
		defer cancel()
		c := testcluster.Bubble(t, 2)
		var loads atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) {
			loads.Add(1)
			return "v", nil
		}})
		for _, ctx := range []context.Context{cancelled, late} {
			wantDone := func(name string, err error) {
				t.Helper()
				if err != nil && !errors.Is(err, ctx.Err()) {
					t.Errorf("%s: got %v", name, err)
				}
			}
			for _, owner := range []string{"n0", "n1"} {
				cold, warm := testcluster.Key(c.Nodes[0], "ks", owner, 0), testcluster.Key(c.Nodes[0], "ks", owner, 1)
				wantErr := func(name string, err error) {
					t.Helper()
					if !errors.Is(err, ctx.Err()) {
						t.Errorf("%s of a key of %s: got %v, want %v", name, owner, err, ctx.Err())
					}
				}
				for range 20 { // whatever a select chooses
					for name, get := range everyGet(caches[0]) {
						v, err := get(ctx, cold)
						if v != "" {
							t.Errorf("%s: got %q", name, v)
						}
						wantErr(name, err)
					}
					_, ok, err := caches[0].Peek(ctx, cold)
					wantErr("Peek", err)
					stored, err := caches[0].Set(ctx, cold, "set")
					wantErr("Set", err)
					if ok || stored {
						t.Errorf("key of %s: resident %v, stored %v, want neither", owner, ok, stored)
					}
				}
				if _, ok, err := caches[0].Peek(t.Context(), cold); ok || err != nil {
					t.Errorf("key of %s: got %v, %v, want nothing resident", owner, ok, err)
				}
				if got := loads.Load(); got != 0 {
					t.Errorf("got %d loads, want none", got)
				}
				for range 20 {
					time.Sleep(20 * time.Millisecond) // a load that begins at the instant of an invalidation counts as older
					if _, err := caches[0].Get(t.Context(), warm); err != nil {
						t.Fatal(err)
					}
					if v, err := caches[0].Get(ctx, warm); v != "v" || err != nil {
						t.Errorf("Get of a near copy: got %q, %v", v, err)
					}
					// What this node owns it drops, whoever waits for that; others may confirm before anybody looks at the context.
					err := caches[0].Invalidate(ctx, warm)
					p, ok := errors.AsType[*nearcache.PartialError](err)
					if err != nil && (owner == "n0" || !ok || len(p.Keys) != 1 || p.StaleFor <= 0 || !errors.Is(err, ctx.Err())) {
						t.Errorf("Invalidate of a key of %s: got %v", owner, err)
					}
					if err == nil {
						if _, ok, err := caches[0].Peek(t.Context(), warm); ok || err != nil {
							t.Errorf("after Invalidate of a key of %s: got %v, %v, want nothing resident", owner, ok, err)
						}
					}
					wantDone("InvalidateAll", caches[0].InvalidateAll(ctx))
					loads.Store(0)
				}
			}
			wantDone("Ready", c.Nodes[0].Ready(ctx))
			wantDone("ReadyWarm", c.Nodes[0].ReadyWarm(ctx))
			other, err := nearcache.New(c.Nodes[0], "other", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "", nil }})
			if err != nil {
				t.Fatal(err)
			}
			wantDone("Cache.Close", other.Close(ctx))
		}
		time.Sleep(time.Second)
		wantIdle(t, caches)
		n := c.Start(5)
		if err := n.Close(cancelled); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Node.Close: got %v", err)
		}
	})
}

// Names of any content, and errors of any length, between members.
func TestOddNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2, func(i int, cfg *nearcache.NodeConfig) {
			cfg.ID = []string{"\xff\x00 <b>", strings.Repeat("\n", 255)}[i]
			cfg.Cluster = "\xfe {}"
			cfg.Zone = "\x00"
		})
		for _, name := range []string{"\xff", "\x00", "a/b?c", strings.Repeat("n", 255)} {
			caches := open(t, c, name, nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
			for n, node := range c.Nodes {
				key := testcluster.Key(c.Nodes[0], name, node.ID(), n)
				wantEverywhere(t, name, caches, key, "v")
				if err := caches[n].Invalidate(t.Context(), key); err != nil {
					t.Errorf("keyspace %q: %v", name, err)
				}
			}
		}
		for _, name := range []string{"", strings.Repeat("n", 256)} {
			_, err := nearcache.New(c.Nodes[0], name, nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
			if _, ok := errors.AsType[*nearcache.ConfigError](err); !ok {
				t.Errorf("a keyspace name of %d bytes: got %v, want a *ConfigError", len(name), err)
			}
		}
	})
}
