package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// Case transport-9. Members at IPv6 and IPv4 addresses form one cluster, however the list spells them; what is ambiguous is refused.
func TestIPv6Members(t *testing.T) {
	var listeners []net.Listener
	for _, addr := range []string{"[::1]:0", "[::1]:0", "127.0.0.1:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Skip("this machine has no such loopback:", err)
		}
		listeners = append(listeners, l)
	}
	list := peers.NewList()
	dialled := make([]sync.Map, len(listeners)) // addresses
	nodes, caches := make([]*nearcache.Node, len(listeners)), make([]*nearcache.Cache[string], len(listeners))
	o := newOrigin(func() time.Duration { return 0 })
	var members []peers.Member
	for i, l := range listeners {
		var err error
		nodes[i], err = nearcache.Start(t.Context(), nearcache.NodeConfig{
			Listener: l, Discovery: list, PeerTimeout: 2 * time.Second,
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				dialled[i].Store(addr, true)
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer nodes[i].Close(context.Background())
		if caches[i], err = nearcache.New(nodes[i], "ks", nearcache.Config[string]{Load: o.loader(i)}); err != nil {
			t.Fatal(err)
		}
		long := strings.Replace(nodes[i].Addr(), "[::1]", "[0:0:0:0:0:0:0:1]", 1)
		members = append(members, peers.Member{Addr: nodes[i].Addr()}, peers.Member{Addr: long})
	}
	list.Set(members...)
	for i, n := range nodes {
		for len(n.Members()) != len(nodes) {
			testcluster.Wait()
		}
		if err := n.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(n.Stats().Members); got != len(nodes) {
			t.Errorf("node %d counts %d members, want %d", i, got, len(nodes))
		}
		if _, self := dialled[i].Load(n.Addr()); self {
			t.Errorf("node %d dials itself", i)
		}
	}
	const keys = 100
	for k := range keys {
		key := fmt.Sprint("k", k)
		for i, cache := range caches {
			v, err := cache.Get(t.Context(), key)
			if err == nil {
				_, err = testcluster.Version(key, v)
			}
			if err != nil {
				t.Errorf("node %d: %v", i, err)
			}
			if got, want := nodes[i].Owner("ks", key), nodes[0].Owner("ks", key); got.Addr != want.Addr {
				t.Errorf("node %d: %s owns %s, node 0 says %s", i, got.Addr, key, want.Addr)
			}
		}
	}
	if got := o.total(); got != keys {
		t.Errorf("got %d loads of %d keys by three nodes", got, keys)
	}
	if _, err := nearcache.Start(t.Context(), nearcache.NodeConfig{Listen: "[::1]:0", Advertise: "::1:7946"}); err == nil {
		t.Error("::1:7946 was taken for an address")
	}
}

// Case transport-5. Batches of any size are split to fit; each key has its own outcome, and other reads are served meanwhile.
func TestBatchesOfAnySize(t *testing.T) {
	c := testcluster.Loopback(t, 2, testcluster.PeerTimeout(10*time.Second))
	caches := open(t, c, "ks", nearcache.Config[string]{MaxLoads: -1, NearTTL: -1, Load: func(_ context.Context, key string) (string, error) {
		switch {
		case strings.HasPrefix(key, "absent"):
			return "", nearcache.ErrNotFound
		case strings.HasPrefix(key, "bad"):
			return "", errOwn
		case strings.HasPrefix(key, "large"):
			return key + strings.Repeat("l", 200<<10), nil
		}
		return key, nil
	}})
	owned := func(prefix string, n int) (keys []string) {
		for i := 0; len(keys) < n; i++ {
			if key := fmt.Sprint(prefix, i); c.Nodes[1].Owner("ks", key).ID == "n0" {
				keys = append(keys, key)
			}
		}
		return keys
	}
	large, small := owned("large-", 100), owned("small-", 10_000)
	odd := slices.Concat(owned("absent-", 1), owned("bad-", 1))
	for round := range 3 {
		for _, keys := range [][]string{large, small} {
			m, err := caches[1].GetMany(t.Context(), slices.Concat(keys, odd))
			be, ok := errors.AsType[*nearcache.BatchError](err)
			if len(m) != len(keys) || !ok || len(be.Errs) != 1 || !errors.Is(be.Errs[odd[1]], errOwn) {
				t.Errorf("round %d: got %d of %d values, %v, want all and the failing key's error", round, len(m), len(keys), err)
			}
			for key, v := range m {
				if !strings.HasPrefix(v, key) {
					t.Fatalf("%s: got the value of another key", key)
				}
			}
		}
	}
	if got := caches[1].Stats().PeerErrors; got != 0 {
		t.Errorf("got %d peer errors", got)
	}
	many := make([]string, 0, 100_000)
	for i := range 100_000 {
		many = append(many, fmt.Sprint("small-", i))
	}
	if err := caches[1].Invalidate(t.Context(), many...); err != nil {
		t.Fatal(err)
	}
	for _, key := range small[:100] {
		if v, ok, err := caches[1].Peek(t.Context(), key); ok || err != nil {
			t.Errorf("%s is there after its invalidation: %q, %v", key, v, err)
		}
	}
}

// Case L1-19. Case transport-11. A member that comes and goes under load, and a node that four close at once: each call has an outcome in time.
func TestEveryCallWhileANodeCloses(t *testing.T) {
	rounds := 20
	if raceEnabled {
		rounds = 5
	}
	synctest.Test(t, func(t *testing.T) {
		for round := range rounds {
			c := testcluster.Bubble(t, 3)
			caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: time.Millisecond, Load: func(_ context.Context, key string) (string, error) {
				time.Sleep(time.Millisecond)
				return key, nil
			}})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i, cache := range caches {
				for name, do := range map[string]func(key string) error{
					"Get":        func(key string) error { _, err := cache.Get(ctx, key); return err },
					"GetMany":    func(key string) error { _, err := cache.GetMany(ctx, []string{key, "k1", "k2", "k3"}); return err },
					"Set":        func(key string) error { _, err := cache.Set(ctx, key, key); return err },
					"Invalidate": func(key string) error { return cache.Invalidate(ctx, key) },
					"Stats":      func(string) error { _ = c.Nodes[i].Stats(); return nil },
				} {
					for g := range 4 {
						wg.Go(func() { during(ctx, t, fmt.Sprint("node ", i, ", ", name), i == 0, g, do) })
					}
				}
			}
			wg.Go(func() {
				all := c.Members()
				for n := 0; ctx.Err() == nil; n++ {
					c.List.Set(all[:2+n%2]...)
					time.Sleep(5 * time.Millisecond)
				}
			})
			time.Sleep(time.Duration(20+round) * time.Millisecond)
			var closing sync.WaitGroup
			for range 4 {
				closing.Go(func() {
					if err := c.Nodes[0].Close(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			closing.Wait()
			time.Sleep(20 * time.Millisecond)
			cancel()
			wg.Wait()
			for _, n := range c.Nodes {
				if err := n.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// during calls until ctx ends, and fails the test for an outcome that no caller is promised.
func during(ctx context.Context, t *testing.T, who string, closes bool, g int, do func(key string) error) {
	for n := g; ctx.Err() == nil; n++ {
		at := time.Now()
		err := do(fmt.Sprint("k", n%50))
		took := time.Since(at)
		_, partial := errors.AsType[*nearcache.PartialError](err)
		switch {
		case err == nil, ctx.Err() != nil, partial, closes && errors.Is(err, nearcache.ErrClosed):
		default:
			if be, ok := errors.AsType[*nearcache.BatchError](err); !ok || !closes || !errors.Is(be, nearcache.ErrClosed) {
				t.Errorf("%s: %v", who, err)
			}
		}
		if took > 4*peerTimeout {
			t.Errorf("%s: took %v", who, took)
		}
		time.Sleep(time.Millisecond)
	}
}

// Case L1-7. A hundred nodes one after the other leave no goroutine, no socket and no memory.
func TestAHundredNodes(t *testing.T) {
	settle := func(base testcluster.Resources) string {
		var over string
		for range 2000 {
			if over = testcluster.Held().Over(base, 3); over == "" {
				return ""
			}
			testcluster.Wait()
		}
		return over
	}
	var base testcluster.Resources
	var heap uint64
	for round := range 102 {
		if round == 2 { // what is made once is there
			base, heap = testcluster.Held(), testcluster.Heap()
		}
		t.Run("", func(t *testing.T) {
			c := testcluster.Loopback(t, 3)
			caches := open(t, c, "ks", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) { return key, nil }})
			for i := range 10 {
				if _, err := caches[0].Get(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if over := settle(base); over != "" {
		t.Errorf("left: %s", over)
	}
	if got := testcluster.Heap(); got > heap+2<<20 {
		t.Errorf("the heap has %d bytes, %d at the start", got, heap)
	}
}
