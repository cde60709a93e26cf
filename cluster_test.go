package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/peers/peerstest"
)

// Case singleflight-6.
func TestOneLoadOfAColdKey(t *testing.T) {
	nodes, callers, keys := 10, 1000, 60
	if raceEnabled {
		callers, keys = 50, 60
	}
	c := testcluster.Loopback(t, nodes, testcluster.PeerTimeout(20*time.Second))
	c.Warm() // else what is loaded lives a second, which so many callers may take
	var loads atomic.Int64
	caches := open(t, c, "k", nearcache.Config[string]{
		Load: func(_ context.Context, key string) (string, error) {
			loads.Add(1)
			return "v" + key, nil
		},
		Hot: nearcache.HotConfig{PerSecond: -1}, // a starved node is in doubt: then a hot key is loaded every second
	})
	for i := range keys {
		key := fmt.Sprint("cold-", i)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for _, cache := range caches {
			for range callers {
				wg.Go(func() {
					<-start
					if v, err := cache.Get(t.Context(), key); v != "v"+key || err != nil {
						t.Errorf("got %q, %v, want %q", v, err, "v"+key)
					}
				})
			}
		}
		close(start)
		wg.Wait()
		if got := loads.Swap(0); got != 1 {
			for _, cache := range caches {
				s := cache.Stats()
				t.Logf("%d loads, %d fills rejected, %d peer errors, %d entries expired", s.Loads, s.Rejected, s.PeerErrors, s.Expirations)
			}
			t.Fatalf("key %d: got %d loads by %d callers on %d nodes, want 1", i, got, callers*nodes, nodes)
		}
	}
}

// open opens a keyspace on all nodes.
func open[V any](t *testing.T, c *testcluster.Cluster, name string, cfg nearcache.Config[V]) []*nearcache.Cache[V] {
	t.Helper()
	caches := make([]*nearcache.Cache[V], len(c.Nodes))
	for i, n := range c.Nodes {
		var err error
		if caches[i], err = nearcache.New(n, name, cfg); err != nil {
			t.Fatal(err)
		}
	}
	return caches
}

// gated is a loader whose calls wait to be told how to end.
type gated struct {
	started chan string // by key; one for each call
	end     chan func() (string, error)
	calls   atomic.Int64
}

func newGated() *gated {
	return &gated{started: make(chan string, 1000), end: make(chan func() (string, error))}
}

func (g *gated) load(ctx context.Context, key string) (string, error) {
	g.calls.Add(1)
	g.started <- key
	select {
	case f := <-g.end:
		return f()
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

var errOwn = errors.New("own error")

// Case lease-5.
// Case singleflight-1.
// Case API-3.
func TestEveryEndOfALoadReachesAllNodes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		end   func() (string, error)
		check func(v string, err error) bool
		want  string
	}{
		{"value", func() (string, error) { return "v", nil }, func(v string, err error) bool { return v == "v" && err == nil }, "the value"},
		{"empty", func() (string, error) { return "", nil }, func(v string, err error) bool { return v == "" && err == nil }, "an empty value"},
		{
			"not found",
			func() (string, error) { return "", fmt.Errorf("row: %w", nearcache.ErrNotFound) },
			func(_ string, err error) bool { return errors.Is(err, nearcache.ErrNotFound) }, "ErrNotFound",
		},
		{
			"error",
			func() (string, error) { return "", errors.New("db \xff down") },
			func(_ string, err error) bool {
				var e *nearcache.LoadError
				return errors.As(err, &e) && e.Err.Error() == "db \xff down" && e.Key == "k" && e.Member != ""
			}, "a *LoadError with the text",
		},
		{
			"own error",
			func() (string, error) { return "", fmt.Errorf("query: %w", errOwn) },
			func(_ string, err error) bool { return errors.Is(err, errOwn) }, "the loader's own error",
		},
		{
			"panic",
			func() (string, error) { panic("boom") },
			func(_ string, err error) bool {
				var e *nearcache.PanicError
				return errors.As(err, &e) && e.Value == "boom"
			}, "a *PanicError",
		},
		{
			"goexit",
			func() (string, error) { runtime.Goexit(); return "", nil },
			func(_ string, err error) bool { var e *nearcache.PanicError; return errors.As(err, &e) }, "a *PanicError",
		},
		{
			"context error of its own",
			func() (string, error) { return "", context.DeadlineExceeded },
			func(_ string, err error) bool { var e *nearcache.LoadError; return errors.As(err, &e) }, "a *LoadError",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				g := newGated()
				caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load, Errors: map[string]error{"own": errOwn}})
				var wg sync.WaitGroup
				for i, cache := range caches {
					for range 5 {
						wg.Go(func() {
							if v, err := cache.Get(t.Context(), "k"); !tt.check(v, err) {
								t.Errorf("node %d: got %q, %v, want %s", i, v, err, tt.want)
							}
						})
					}
				}
				<-g.started
				synctest.Wait()
				g.end <- tt.end
				wg.Wait()
				if got := g.calls.Load(); got != 1 {
					t.Errorf("got %d loads, want 1: a failure is shared once", got)
				}
				// The key works afterwards: at once after a failure, after the negative entry's lifetime after an absence.
				time.Sleep(10 * time.Second)
				go func() { g.end <- func() (string, error) { return "later", nil } }()
				if v, err := caches[0].Get(t.Context(), "k"); err != nil {
					t.Errorf("afterwards: got %q, %v, want a value", v, err)
				}
				if s := c.Nodes[0].Stats().Keyspaces["ks"]; s.Leases != 0 || s.Flights != 0 || s.LoadsRunning != 0 {
					t.Errorf("left over: %d leases, %d flights, %d loads", s.Leases, s.Flights, s.LoadsRunning)
				}
				select {
				case g.end <- nil:
				default:
					if tt.name == "value" || tt.name == "empty" {
						<-g.end // nobody asked for it
					}
				}
			})
		})
	}
}

// Case singleflight-3.
// Case singleflight-4.
func TestTheLeaseHoldersCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		g := newGated()
		caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := caches[0].Get(ctx, "k"); err != context.DeadlineExceeded { //nolint:errorlint // its own error, unwrapped
				t.Errorf("the first caller: got %v, want its own deadline", err)
			}
		})
		<-g.started
		for _, cache := range caches[1:] {
			for range 20 {
				wg.Go(func() {
					if v, err := cache.Get(t.Context(), "k"); v != "v" || err != nil {
						t.Errorf("a waiting caller: got %q, %v, want the value", v, err)
					}
				})
			}
		}
		// The only caller of the holder's flight leaves: its load is cancelled, and the lease passes to another node.
		time.Sleep(100 * time.Millisecond)
		<-g.started
		g.end <- func() (string, error) { return "v", nil }
		wg.Wait()
		if got := g.calls.Load(); got != 2 {
			t.Errorf("got %d loads, want 2: the cancelled one and the next holder's", got)
		}
	})
}

// Case singleflight-3.
func TestALeaderThatLeavesFailsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for _, owner := range []string{"n0", "n1"} {
			g := newGated()
			cache, err := nearcache.New(c.Nodes[0], "ks-"+owner, nearcache.Config[string]{Load: g.load})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := nearcache.New(c.Nodes[1], "ks-"+owner, nearcache.Config[string]{Load: g.load}); err != nil {
				t.Fatal(err)
			}
			key := testcluster.Key(c.Nodes[0], "ks-"+owner, owner, 0)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			var wg sync.WaitGroup
			start := time.Now()
			wg.Go(func() {
				_, err := cache.Get(ctx, key)
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 50*time.Millisecond {
					t.Errorf("the leader: got %v after %v, want its own deadline after 50ms", err, time.Since(start))
				}
			})
			<-g.started
			for range 20 {
				wg.Go(func() {
					if v, err := cache.Get(t.Context(), key); v != "v" || err != nil {
						t.Errorf("a follower: got %q, %v, want the value", v, err)
					}
				})
			}
			time.Sleep(300 * time.Millisecond)
			g.end <- func() (string, error) { return "v", nil }
			wg.Wait()
			if got := g.calls.Load(); got != 1 {
				t.Errorf("owner %s: got %d loads, want 1", owner, got)
			}
		}
	})
}

// Case transport-1.
func TestMembersThatDisagreeStillAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		// Every node follows a list of its own from now on.
		lists := []*peers.List{peers.NewList(), peers.NewList()}
		var nodes []*nearcache.Node
		for i := range 2 {
			host := c.Network.Host(testcluster.Host(10 + i))
			l, err := host.Listen(":7946")
			if err != nil {
				t.Fatal(err)
			}
			n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{ID: fmt.Sprint("x", i), Listener: l, Dial: host.Dial, Discovery: lists[i]})
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close(t.Context())
			nodes = append(nodes, n)
		}
		x0 := peers.Member{ID: "x0", Addr: nodes[0].Addr()}
		x1 := peers.Member{ID: "x1", Addr: nodes[1].Addr()}
		other := peers.Member{ID: "n0", Addr: c.Nodes[0].Addr()} // has no such keyspace, and another list still
		lists[0].Set(x0, x1, other)
		lists[1].Set(x0, x1)
		time.Sleep(time.Second)
		var loads sync.Map
		load := func(_ context.Context, key string) (string, error) {
			n, _ := loads.LoadOrStore(key, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			time.Sleep(5 * time.Millisecond)
			return "v" + key, nil
		}
		var caches []*nearcache.Cache[string]
		for _, n := range nodes {
			cache, err := nearcache.New(n, "ks", nearcache.Config[string]{Load: load, NearTTL: -1})
			if err != nil {
				t.Fatal(err)
			}
			caches = append(caches, cache)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 100 {
			key := fmt.Sprint("k", i)
			for _, cache := range caches {
				wg.Go(func() {
					if v, err := cache.Get(t.Context(), key); v != "v"+key || err != nil {
						t.Errorf("got %q, %v, want the value", v, err)
					}
				})
			}
		}
		wg.Wait()
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v, want no time-outs", took)
		}
		loads.Range(func(key, n any) bool {
			if got := n.(*atomic.Int64).Load(); got > 2 {
				t.Errorf("%v: got %d loads, want at most 2", key, got)
			}
			return true
		})
		if s := caches[0].Stats(); s.Misrouted == 0 {
			t.Error("got no misrouted answers, want some: the rings differ")
		}
	})
}

// Case transport-2.
// Case transport-3.
// Case L1-3.
func TestKeysAreBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var loaded sync.Map
		caches := open(t, c, "ks", nearcache.Config[[]byte]{Load: func(_ context.Context, key string) ([]byte, error) {
			if _, twice := loaded.LoadOrStore(key, true); twice {
				t.Errorf("%q was loaded twice", key)
			}
			return []byte("value of " + key), nil
		}})
		keys := []string{
			"\xff\xfe", "a\x00b", "\xed\xa0\x80", strings.Repeat("\x80long", 200), "a/b", "/", "//x", "a%20b", "a+b", "a b", "?q=1&x", "#f",
			"..", "\n", "\t", "%2F", "%", "http://h/p?q=%20", "{tag}a", "{tag}b", "{}", "{", "costarring", "liquid", "declinate", "macallums",
			"plumless", "buckeroo", strings.Repeat("k", 65535),
		}
		for _, key := range keys {
			for i, cache := range caches {
				v, err := cache.Get(t.Context(), key)
				if err != nil || string(v) != "value of "+key {
					t.Errorf("node %d, key %.40q: got %.60q, %v", i, key, v, err)
				}
			}
		}
		if c.Nodes[0].Owner("ks", "{tag}a") != c.Nodes[0].Owner("ks", "{tag}b") {
			t.Error("keys with one tag have two owners")
		}
		for _, key := range []string{"", strings.Repeat("k", 65536)} {
			_, err := caches[0].Get(t.Context(), key)
			if !errors.Is(err, nearcache.ErrInvalidKey) {
				t.Errorf("a key of %d bytes: got %v, want ErrInvalidKey", len(key), err)
			}
			if err := caches[0].Invalidate(t.Context(), key); !errors.Is(err, nearcache.ErrInvalidKey) {
				t.Errorf("invalidating a key of %d bytes: got %v, want ErrInvalidKey", len(key), err)
			}
		}
	})
}

// Members may have IDs of their own although discovery knows their addresses only.
func TestConfiguredIDsWithADiscoveryOfAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := peers.Static(testcluster.Host(0)+":7946", testcluster.Host(1)+":7946")
		c := testcluster.Bubble(t, 2, func(_ int, cfg *nearcache.NodeConfig) { cfg.Discovery = addresses })
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute})
		const keys = 20
		for i := range keys {
			key := fmt.Sprint("k", i)
			db.write(key, 1)
			for _, cache := range caches {
				if v, err := cache.Get(t.Context(), key); v != 1 || err != nil {
					t.Fatal(v, err)
				}
			}
		}
		if got := db.loads.Load(); got != keys {
			t.Errorf("got %d loads on two nodes, want one for each of %d keys", got, keys)
		}
		for i := range keys {
			key := fmt.Sprint("k", i)
			db.write(key, 2)
			if err := caches[0].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for i := range keys {
			if v, err := caches[1].Get(t.Context(), fmt.Sprint("k", i)); v != 2 || err != nil {
				t.Errorf("got %d, %v, want the new value", v, err)
			}
		}
	})
}

// The members may change while a node closes: its statistics can be read all the same.
func TestMembersChangeWhileANodeCloses(t *testing.T) {
	for range 200 {
		list := peers.NewList()
		node, err := nearcache.Start(t.Context(), nearcache.NodeConfig{Listen: "127.0.0.1:0", Discovery: list})
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		var wg sync.WaitGroup
		wg.Go(func() { _ = node.Close(ended) })
		wg.Go(func() {
			for i := range 20 {
				list.Set(peers.Member{ID: fmt.Sprint("m", i), Addr: fmt.Sprintf("127.0.0.1:%d", i+1)})
				runtime.Gosched()
			}
		})
		wg.Wait()
		if err := node.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_ = node.Stats()
	}
}

// An IPv6 address may have a zone.
func TestAMemberAtAnAddressWithAZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := peerstest.NewNetwork()
		list := peers.NewList(peers.Member{ID: "b", Addr: "[fe80::1%eth0]:7946"})
		l, err := network.Host("127.0.0.1").Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		var dialled atomic.Pointer[string]
		node, err := nearcache.Start(t.Context(), nearcache.NodeConfig{
			ID: "a", Listener: l, Discovery: list,
			Dial: func(_ context.Context, addr string) (net.Conn, error) {
				dialled.Store(&addr)
				return nil, errors.New("nobody there")
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := dialled.Load(); got == nil || *got != "[fe80::1%eth0]:7946" {
			t.Errorf("got %v dialled, want the address", got)
		}
		if got := len(node.Stats().Members); got != 2 {
			t.Errorf("got %d members, want 2", got)
		}
		if err := node.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
