package nearcache_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// Case stats-1. A remote read is a get of the caller's node and none of the owner's, each in the class that says where it was answered.
func TestARemoteReadCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) {
			time.Sleep(10 * time.Millisecond)
			return "v", nil
		}})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		asked := seen(t, c.Nodes[0], "n1").Requests
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { _, _ = caches[0].Get(t.Context(), key) })
		}
		wg.Wait()
		_, _ = caches[0].Get(t.Context(), key) // near
		time.Sleep(2 * time.Second)
		_, _ = caches[0].Get(t.Context(), key) // the owner's
		s, o := caches[0].Stats(), caches[1].Stats()
		if s.Gets != 7 || s.OriginGets != 5 || s.NearHits != 1 || s.OwnerHits != 1 || s.Shared != 4 || s.Loads != 1 {
			t.Errorf("the caller's node counts %+v", s)
		}
		if o.Gets != 0 || o.Loads != 0 {
			t.Errorf("the owner counts %d gets and %d loads, want none", o.Gets, o.Loads)
		}
		if got := seen(t, c.Nodes[0], "n1").Requests - asked; got != 3 {
			t.Errorf("got %d requests, want the get, the fill and the get", got)
		}
	})
}

// Case stats-2. Snapshots are the caller's own; taking them and serving pages disturbs nothing.
func TestSnapshotsAreTheCallersOwn(t *testing.T) {
	c := testcluster.Loopback(t, 2)
	caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: 2 * time.Millisecond, TTL: 5 * time.Millisecond, Load: func(_ context.Context, key string) (string, error) {
		return "v" + key, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i, cache := range caches {
		for g := range 2 {
			wg.Go(func() {
				for n := g; ctx.Err() == nil; n++ {
					key := fmt.Sprint("k", n%50)
					if v, err := cache.Get(ctx, key); v != "v"+key && ctx.Err() == nil {
						t.Errorf("node %d: got %q, %v", i, v, err)
						return
					}
					if n%20 == 0 {
						_ = cache.Invalidate(ctx, key)
					}
				}
			})
		}
	}
	page := c.Nodes[0].Handler()
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, target := range []string{"/", "/stats.json", "/key?keyspace=ks&key=k1"} {
				r := httptest.NewRequest("GET", target, nil)
				w := httptest.NewRecorder()
				if page.ServeHTTP(w, r); w.Code != 200 {
					t.Errorf("%s: got %d", target, w.Code)
				}
			}
			testcluster.Wait()
		}
	})
	var takers sync.WaitGroup
	for range 16 {
		takers.Go(func() {
			for range 50 {
				s := c.Nodes[0].Stats()
				if len(s.Members) != 2 || s.Members[0].Member.ID != "n0" || len(s.Keyspaces) != 1 {
					t.Errorf("got %+v: somebody else's change shows", s)
					return
				}
				s.Members[0].Member.ID = "spoiled"
				s.Keyspaces["other"] = nearcache.KeyspaceStats{}
				delete(s.Keyspaces, "ks")
				m := c.Nodes[0].Members()
				m[0], m[1] = m[1], peers.Member{ID: "spoiled"}
				testcluster.Wait()
			}
		})
	}
	takers.Wait()
	cancel()
	wg.Wait()
	if m := c.Nodes[0].Members(); m[0].ID != "n0" || m[1].ID != "n1" {
		t.Errorf("got the members %v, want n0 and n1", m)
	}
}

// Case stats-4. What the page shows does not grow with the keys, nor with the keyspaces that are asked for.
func TestThePageDoesNotGrowWithTheKeys(t *testing.T) {
	n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{MaxBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(t.Context())
	cache, err := nearcache.New(n, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
	if err != nil {
		t.Fatal(err)
	}
	h := n.Handler()
	size := func(target string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		return w.Body.Len()
	}
	small, page := size("/stats.json"), size("/")
	for i := range 20_000 {
		if _, err := cache.Get(t.Context(), fmt.Sprint("key number ", i)); err != nil {
			t.Fatal(err)
		}
	}
	for n.Stats().Keyspaces["ks"].Top == nil {
		testcluster.Wait()
	}
	for i := range 1000 {
		_ = size(fmt.Sprintf("/key?keyspace=k%d&key=k", i))
	}
	start := time.Now()
	large, pageNow := size("/stats.json"), size("/")
	if took := time.Since(start); took > 400*time.Millisecond {
		t.Errorf("two pages took %v", took)
	}
	const top = 64 * 700 // bytes of the most used keys
	if large > small+top || pageNow > page+top {
		t.Errorf("20,000 keys made stats.json grow from %d to %d bytes and the page from %d to %d", small, large, page, pageNow)
	}
	if got := len(n.Stats().Keyspaces); got != 1 {
		t.Errorf("got %d keyspaces, want the one that was opened", got)
	}
}

// Case API-1. Two clusters with equal names side by side know nothing of each other, nor let each other in.
func TestTwoClustersSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := testcluster.Bubble(t, 3)
		two := testcluster.Bubble(t, 3)
		load := func(_ context.Context, key string) (string, error) { return "v" + key, nil }
		a := open(t, one, "ks", nearcache.Config[string]{Load: load})
		b := open(t, two, "ks", nearcache.Config[string]{Load: load})
		for i := range 30 {
			if _, err := a[i%3].Get(t.Context(), fmt.Sprint("k", i)); err != nil {
				t.Fatal(err)
			}
			if v, ok, err := b[i%3].Peek(t.Context(), fmt.Sprint("k", i)); ok || err != nil {
				t.Errorf("the other cluster has %q, %v", v, err)
			}
		}
		if got := total(b, func(s nearcache.KeyspaceStats) int64 { return int64(s.Gets + s.Loads) }); got != 0 {
			t.Errorf("the other cluster counts %d gets and loads", got)
		}

		// A member of another cluster on the list is refused: its share is served all the same.
		host := one.Network.Host("127.0.0.50")
		l, err := host.Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		stranger, err := nearcache.Start(t.Context(), nearcache.NodeConfig{ID: "n9", Cluster: "other", Listener: l, Dial: host.Dial, Discovery: one.List})
		if err != nil {
			t.Fatal(err)
		}
		defer stranger.Close(t.Context())
		theirs, err := nearcache.New(stranger, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "of another cluster", nil }})
		if err != nil {
			t.Fatal(err)
		}
		one.List.Set(append(one.Members(), peers.Member{ID: "n9", Addr: stranger.Addr()})...)
		time.Sleep(2 * time.Second)
		for i := range 100 {
			key := fmt.Sprint("k", i)
			for n, cache := range a {
				if v, err := cache.Get(t.Context(), key); v != "v"+key || err != nil {
					t.Fatalf("node %d: got %q, %v", n, v, err)
				}
			}
			if v, err := theirs.Get(t.Context(), key); v != "of another cluster" || err != nil {
				t.Fatalf("the stranger: got %q, %v", v, err)
			}
		}
		if m := seen(t, one.Nodes[0], "n9"); m.Connected {
			t.Error("a member of another cluster is connected")
		}
	})
}

// Case API-2. A batch with a silent owner: each key has its own outcome, in time.
func TestGetManyWithASilentOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var down atomic.Bool
		var loads atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) {
			switch {
			case strings.HasPrefix(key, "absent"):
				return "", nearcache.ErrNotFound
			case strings.HasPrefix(key, "bad"), down.Load() && strings.HasPrefix(key, "key-9"):
				return "", errOwn
			}
			loads.Add(1)
			return "v" + key, nil
		}})
		keys := []string{"absent", "bad"}
		for i := range 6 {
			keys = append(keys, testcluster.Key(c.Nodes[0], "ks", fmt.Sprint("n", i%2), i))
		}
		silent := []string{testcluster.Key(c.Nodes[0], "ks", "n2", 91), testcluster.Key(c.Nodes[0], "ks", "n2", 92)}
		keys = append(keys, silent...)
		c.Network.Isolate(testcluster.Host(2))
		down.Store(true)
		get := func() (map[string]string, *nearcache.BatchError) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			m, err := caches[0].GetMany(ctx, keys)
			if took := time.Since(start); took > 1050*time.Millisecond {
				t.Errorf("took %v, want the context's second", took)
			}
			be := new(nearcache.BatchError)
			if err != nil && !errors.As(err, &be) {
				t.Fatalf("got %v, want a *BatchError", err)
			}
			return m, be
		}
		m, be := get()
		if len(m) != 6 || len(be.Errs) != 3 {
			t.Errorf("got %d values and %v, want 6 and the failing three", len(m), be)
		}
		for _, k := range append(silent, "bad") {
			if !errors.Is(be.Errs[k], errOwn) {
				t.Errorf("%s: got %v, want the loader's error", k, be.Errs[k])
			}
		}
		down.Store(false)
		loads.Store(0)
		if m, be := get(); len(m) != 8 || len(be.Errs) != 1 || loads.Load() != 2 {
			t.Errorf("with the origin back: got %d values, %v and %d loads, want 8, one failure and 2", len(m), be, loads.Load())
		}
	})
}

// Case API-3. Every kind of failure is the same for the node that loaded and for the one that waited, alone and in a batch.
func TestErrorKindsSurviveTheWire(t *testing.T) {
	isLoad := func(err error) bool { _, ok := errors.AsType[*nearcache.LoadError](err); return ok }
	for name, tt := range map[string]struct {
		load func(ctx context.Context) (string, error)
		is   func(error) bool
	}{
		"not found": {
			func(context.Context) (string, error) { return "", fmt.Errorf("a: %w", nearcache.ErrNotFound) },
			func(err error) bool { return errors.Is(err, nearcache.ErrNotFound) },
		},
		"own, wrapped twice": {
			func(context.Context) (string, error) { return "", fmt.Errorf("a: %w", fmt.Errorf("b: %w", errOwn)) },
			func(err error) bool {
				return errors.Is(err, errOwn) && isLoad(err) && strings.Contains(err.Error(), "a: b: own error")
			},
		},
		"any other": {
			func(context.Context) (string, error) { return "", errors.New("table users is locked") },
			func(err error) bool { return isLoad(err) && strings.Contains(err.Error(), "table users is locked") },
		},
		"time-out": {
			func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() },
			func(err error) bool {
				return errors.Is(err, nearcache.ErrLoadTimeout) && !errors.Is(err, context.DeadlineExceeded)
			},
		},
		"panic": {
			func(context.Context) (string, error) { time.Sleep(100 * time.Millisecond); panic(errOwn) },
			func(err error) bool {
				p, ok := errors.AsType[*nearcache.PanicError](err)
				return ok && strings.Contains(fmt.Sprint(p.Value), "own error")
			},
		},
		"context error of the loader": {
			func(context.Context) (string, error) { return "", context.Canceled },
			isLoad,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				caches := open(t, c, "ks", nearcache.Config[string]{
					LoadTimeout: time.Second, NotFoundTTL: -1, Errors: map[string]error{"own": errOwn},
					Load: func(ctx context.Context, _ string) (string, error) {
						time.Sleep(50 * time.Millisecond)
						return tt.load(ctx)
					},
				})
				var wg sync.WaitGroup
				for n, owner := range []string{"n0", "n1", "n2"} {
					key := testcluster.Key(c.Nodes[0], "ks", owner, n)
					many := testcluster.Key(c.Nodes[0], "ks", owner, n+10)
					for i, cache := range caches {
						wg.Go(func() {
							_, err := cache.Get(t.Context(), key)
							if !tt.is(err) {
								t.Errorf("owner %s, node %d: got %v (%T)", owner, i, err, err)
							}
						})
						wg.Go(func() {
							m, err := cache.GetMany(t.Context(), []string{many})
							if name == "not found" {
								if len(m) != 0 || err != nil {
									t.Errorf("owner %s, node %d, GetMany: got %v, %v", owner, i, m, err)
								}
								return
							}
							be, ok := errors.AsType[*nearcache.BatchError](err)
							if !ok || !tt.is(be.Errs[many]) {
								t.Errorf("owner %s, node %d, GetMany: got %v", owner, i, err)
							}
						})
					}
				}
				wg.Wait()
			})
		})
	}
}

// Case API-3. Overload has its kind and a hint on every member, also where another member's load was shed.
func TestOverloadIsAKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{MaxLoads: 1, LoadQueueTimeout: 50 * time.Millisecond, Load: func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "v", nil
		}})
		var wg sync.WaitGroup
		for i, cache := range caches { // both are busy
			wg.Go(func() { _, _ = cache.Get(t.Context(), fmt.Sprint("busy", i)) })
		}
		synctest.Wait()
		for _, cache := range caches {
			for range 3 {
				wg.Go(func() {
					start := time.Now()
					_, err := cache.Get(t.Context(), "k")
					oe, ok := errors.AsType[*nearcache.OverloadError](err)
					if !ok || !errors.Is(err, nearcache.ErrOverloaded) || oe.RetryAfter <= 0 || oe.Keyspace != "ks" {
						t.Errorf("got %v, want an *OverloadError", err)
					}
					if took := time.Since(start); took > 150*time.Millisecond {
						t.Errorf("was told so after %v, want the queues' times", took)
					}
				})
			}
		}
		wg.Wait()
		time.Sleep(2 * time.Second)
		if v, err := caches[0].Get(t.Context(), "k"); v != "v" || err != nil {
			t.Errorf("afterwards: got %q, %v", v, err)
		}
	})
}

// Case API-4. Misuse is an error that says what is wrong, and the zero configuration works.
func TestMisuse(t *testing.T) {
	load := func(_ context.Context, key string) (string, error) { return "v" + key, nil }
	n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if n.ID() == "" || n.Addr() != "" || len(n.Members()) != 1 || n.Owner("ks", "k").ID != n.ID() {
		t.Errorf("the zero configuration: got ID %q, address %q, members %v", n.ID(), n.Addr(), n.Members())
	}
	for _, ready := range []func(context.Context) error{n.Ready, n.ReadyWarm} {
		if err := ready(t.Context()); err != nil {
			t.Error(err)
		}
	}
	c, err := nearcache.New(n, "ks", nearcache.Config[string]{Load: load})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := c.Get(t.Context(), "k"); v != "vk" || err != nil {
		t.Errorf("got %q, %v", v, err)
	}
	if m, err := c.GetMany(t.Context(), nil); len(m) != 0 || err != nil {
		t.Errorf("GetMany of nothing: got %v, %v", m, err)
	}
	if err := c.Invalidate(t.Context()); err != nil {
		t.Errorf("Invalidate of nothing: got %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Get(ended, "cold"); !errors.Is(err, context.Canceled) {
		t.Errorf("Get with a context that has ended: got %v", err)
	}
	if _, err := nearcache.Start(ended, nearcache.NodeConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a context that has ended: got %v", err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"Get":           func() error { _, err := c.Get(t.Context(), "cold"); return err },
		"Get of a copy": func() error { _, err := c.Get(t.Context(), "k"); return err },
		"GetInfo":       func() error { _, _, err := c.GetInfo(t.Context(), "k"); return err },
		"GetMany": func() error {
			_, err := c.GetMany(t.Context(), []string{"k"})
			if be, ok := errors.AsType[*nearcache.BatchError](err); ok {
				return be.Errs["k"]
			}
			return err
		},
		"Set":           func() error { _, err := c.Set(t.Context(), "k", "v"); return err },
		"Peek":          func() error { _, _, err := c.Peek(t.Context(), "k"); return err },
		"Refresh":       func() error { _, err := c.Refresh(t.Context(), "k"); return err },
		"Invalidate":    func() error { return c.Invalidate(t.Context(), "k") },
		"InvalidateAll": func() error { return c.InvalidateAll(t.Context()) },
		"Ready":         func() error { return n.Ready(t.Context()) },
		"New":           func() error { _, err := nearcache.New(n, "other", nearcache.Config[string]{Load: load}); return err },
	} {
		if err := call(); !errors.Is(err, nearcache.ErrClosed) {
			t.Errorf("%s on a closed node: got %v, want ErrClosed", name, err)
		}
	}
	_, _, _ = n.Stats(), n.Members(), c.Stats()
	if err := errors.Join(n.Close(t.Context()), c.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal(n.Stats()); err != nil {
		t.Error(err)
	}
}

// Case API-5. A listener that dies under its node leaves a node that serves its own callers and can be closed.
func TestAListenerThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		host := c.Network.Host("127.0.0.60")
		l, err := host.Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{ID: "n9", Listener: l, Dial: host.Dial, Discovery: c.List})
		if err != nil {
			t.Fatal(err)
		}
		cache, err := nearcache.New(n, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		for i := range 50 {
			if v, err := cache.Get(t.Context(), fmt.Sprint("k", i)); v != "v" || err != nil {
				t.Fatalf("got %q, %v", v, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err := n.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Case invalidation-7, for Set. Whoever sets a value reads it at once, whatever near copy was there before.
func TestTheWriterReadsItsOwnSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		c.Network.SetLatency(time.Millisecond)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		for i, owner := range []string{"n0", "n1", "n2"} {
			key := testcluster.Key(c.Nodes[0], "ks", owner, i)
			db.write(key, 1)
			wantEverywhere(t, "before", caches, key, 1)
			for n := range 20 {
				writer := n % len(caches)
				if stored, err := caches[writer].Set(t.Context(), key, 2+n); !stored || err != nil {
					t.Fatalf("Set: %v, %v", stored, err)
				}
				if v, err := caches[writer].Get(t.Context(), key); v != 2+n || err != nil {
					t.Fatalf("owner %s: node %d got %d, %v right after it had set %d", owner, writer, v, err, 2+n)
				}
				time.Sleep(10 * time.Millisecond)
				wantEverywhere(t, "10ms later", caches, key, 2+n)
			}
		}
	})
}
