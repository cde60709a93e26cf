package nearcache_test

import (
	"context"
	"fmt"
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

// Case L2-13.
// Case discovery-5.
// A member that joins or leaves under load: right values, no error, and no load but for what moved.
func TestMembersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 4)
		const keys = 1000
		var loads [keys]atomic.Int64
		load := func(_ context.Context, key string) (string, error) {
			var i int
			_, _ = fmt.Sscanf(key, "k%d", &i)
			loads[i].Add(1)
			time.Sleep(time.Millisecond)
			return "v" + key, nil
		}
		caches := open(t, c, "ks", nearcache.Config[string]{Load: load, TTL: time.Hour, Jitter: -1})
		read := func(caches []*nearcache.Cache[string]) {
			t.Helper()
			var wg sync.WaitGroup
			for _, cache := range caches {
				for part := range 10 {
					wg.Go(func() {
						for i := part; i < keys; i += 10 {
							key := fmt.Sprint("k", i)
							if v, err := cache.Get(t.Context(), key); v != "v"+key || err != nil {
								t.Errorf("%s: got %q, %v", key, v, err)
							}
						}
					})
				}
			}
			wg.Wait()
		}
		moved := func(what string, least, most int) {
			t.Helper()
			n := 0
			for i := range loads {
				got := loads[i].Swap(0)
				if got > 0 {
					n++
				}
				if got > 1 {
					t.Errorf("%s: k%d was loaded %d times, want once", what, i, got)
				}
			}
			if n < least || n > most {
				t.Errorf("%s: %d of %d keys were loaded, want %d to %d", what, n, keys, least, most)
			}
		}
		all := c.Members()
		c.List.Set(all[:3]...) // n3 is not yet one of them
		time.Sleep(100 * time.Millisecond)
		read(caches[:3])
		moved("cold", keys, keys)
		read(caches[:3])
		moved("warm", 0, 0)

		c.List.Set(all...)
		time.Sleep(100 * time.Millisecond)
		read(caches)
		moved("a member joins", keys*15/100, keys*35/100)

		c.List.Set(all[:3]...)
		time.Sleep(100 * time.Millisecond)
		read(caches[:3])
		moved("it leaves", keys*15/100, keys*35/100)

		if err := c.Nodes[2].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.List.Set(all[:2]...)
		time.Sleep(100 * time.Millisecond)
		read(caches[:2])
		moved("another is closed", keys*20/100, keys*45/100)
	})
}

// Case discovery-4.
// A member that lost a key and gets it back does not serve what it held before.
func TestAMemberThatBlinksServesNothingOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: time.Hour, NearTTL: time.Minute})
		key := testcluster.Key(c.Nodes[0], "ks", "n2", 0)
		db.write(key, 1)
		for _, cache := range caches {
			if v, err := cache.Get(t.Context(), key); v != 1 || err != nil {
				t.Fatal(v, err)
			}
		}
		all := c.Members()
		c.List.Set(all[:2]...)
		time.Sleep(100 * time.Millisecond)
		db.write(key, 2)
		if err := caches[0].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		c.List.Set(all...)
		time.Sleep(100 * time.Millisecond)
		for i, cache := range caches {
			if v, err := cache.Get(t.Context(), key); v != 2 || err != nil {
				t.Errorf("node %d: got %d, %v, want the new value", i, v, err)
			}
		}
	})
}

// Case discovery-1.
func TestAnEmptyAnswerDoesNotEmptyTheRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		host := c.Network.Host(testcluster.Host(9))
		l, err := host.Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		lists := make(chan []peers.Member)
		n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{
			ID: "x", Listener: l, Dial: host.Dial,
			Discovery: peers.Func(func(ctx context.Context, update func([]peers.Member)) error {
				for {
					select {
					case list := <-lists:
						update(list)
					case <-ctx.Done():
						return ctx.Err()
					}
				}
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close(t.Context())
		members := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			if got := len(n.Members()); got != want {
				t.Errorf("got %d members after %v, want %d", got, after, want)
			}
		}
		lists <- c.Members()
		members(time.Millisecond, 3)
		lists <- nil
		members(5*time.Second, 3) // it may be a failed answer
		lists <- c.Members()
		members(time.Minute, 3)
		lists <- nil
		members(11*time.Second, 1) // it has stood
		lists <- []peers.Member{{Addr: "0.0.0.0:1"}}
		members(time.Second, 1) // nonsense changes nothing
		lists <- append(c.Members(), c.Members()...)
		members(time.Millisecond, 3)
	})
}

// A node that does not know its members yet keeps what it loads for a while, however it is asked for.
func TestBeforeTheMembersAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := startAlone(t)
		db := newDatabase(func() time.Duration { return 0 })
		cache, err := nearcache.New(node, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		db.write("a", 1)
		db.write("b", 1)
		for range 2 {
			if v, err := cache.Get(t.Context(), "a"); v != 1 || err != nil {
				t.Error(v, err)
			}
			if m, err := cache.GetMany(t.Context(), []string{"b"}); m["b"] != 1 || err != nil {
				t.Error(m, err)
			}
		}
		if s := cache.Stats(); s.Loads != 2 || s.Misrouted != 0 {
			t.Errorf("got %d loads and %d wrong ways, want 2 and 0", s.Loads, s.Misrouted)
		}
	})
}

// startAlone starts a node whose discovery has not answered yet.
func startAlone(t *testing.T) *nearcache.Node {
	t.Helper()
	silent := peers.Func(func(ctx context.Context, _ func([]peers.Member)) error { <-ctx.Done(); return ctx.Err() })
	l, err := peerstest.NewNetwork().Host("127.0.0.1").Listen(":7946")
	if err != nil {
		t.Fatal(err)
	}
	node, err := nearcache.Start(t.Context(), nearcache.NodeConfig{ID: "n", Listener: l, Discovery: silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close(context.Background()) })
	return node
}
