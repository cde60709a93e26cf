package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
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
		moved("a member joins", 0, keys/100) // it gets the values from their former owners

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
		moved("another is closed", 0, keys/100) // it has given away what it had
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

// scripted starts node x beside a cluster, following a discovery that reports what the returned function is given.
func scripted(t *testing.T, c *testcluster.Cluster, logger *slog.Logger) (n *nearcache.Node, report func(list []peers.Member, err error)) {
	t.Helper()
	host := c.Network.Host(testcluster.Host(9))
	l, err := host.Listen(":7946")
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		list []peers.Member
		err  error
	}
	answers := make(chan answer)
	n, err = nearcache.Start(t.Context(), nearcache.NodeConfig{
		ID: "x", Listener: l, Dial: host.Dial, Logger: logger,
		Discovery: peers.Func(func(ctx context.Context, update func([]peers.Member)) error {
			for {
				select {
				case a := <-answers:
					if a.err != nil {
						return a.err
					}
					update(a.list)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n, func(list []peers.Member, err error) { answers <- answer{list, err} }
}

// membersAfter checks how many members n has after a while.
func membersAfter(t *testing.T, n *nearcache.Node, after time.Duration, want int) {
	t.Helper()
	time.Sleep(after)
	if got := len(n.Members()); got != want {
		t.Errorf("got %d members after %v, want %d", got, after, want)
	}
}

// settled is longer than a change of the list takes to come into use.
const settled = 1200 * time.Millisecond

// Case discovery-1.
func TestAnEmptyAnswerDoesNotEmptyTheRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		n, report := scripted(t, c, nil)
		report(c.Members(), nil)
		membersAfter(t, n, time.Millisecond, 3) // the first one: at once
		report(nil, nil)
		membersAfter(t, n, 5*time.Second, 3) // it may be a failed answer
		report(c.Members(), nil)
		membersAfter(t, n, time.Minute, 3)
		report(nil, nil)
		membersAfter(t, n, 9900*time.Millisecond, 3)
		membersAfter(t, n, 200*time.Millisecond, 1) // it has stood
		report([]peers.Member{{Addr: "0.0.0.0:1"}}, nil)
		membersAfter(t, n, time.Second, 1) // nonsense changes nothing
		report(append(c.Members(), c.Members()...), nil)
		membersAfter(t, n, 150*time.Millisecond, 1)
		membersAfter(t, n, 150*time.Millisecond, 3)
	})
}

// Case discovery-1. A list that loses more than half at once is believed after a while, or at once where those who are missing said that
// they leave.
func TestMembersThatVanishAtOnce(t *testing.T) {
	for name, announced := range map[string]bool{"cut off": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 5)
				n, report := scripted(t, c, nil)
				all := append(c.Members(), peers.Member{ID: "x", Addr: n.Addr()})
				c.List.Set(all...)
				report(all, nil)
				if err := n.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(settled)
				for _, other := range c.Nodes[1:] {
					if announced {
						if err := other.Close(t.Context()); err != nil {
							t.Fatal(err)
						}
					} else {
						c.Network.Cut(testcluster.Host(9), other.Addr()[:len("127.0.0.1")])
					}
				}
				time.Sleep(5 * time.Second) // discovery is late
				report([]peers.Member{all[0], all[5]}, nil)
				if announced {
					membersAfter(t, n, 310*time.Millisecond, 2)
					return
				}
				membersAfter(t, n, 9900*time.Millisecond, 6)
				membersAfter(t, n, 300*time.Millisecond, 2)
			})
		})
	}
}

// A member that comes back after it left has not left.
func TestAMemberThatComesBackIsNotLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 1)
		n, report := scripted(t, c, nil)
		all := append(c.Members(), peers.Member{ID: "x", Addr: n.Addr()})
		c.List.Set(all...)
		report(all, nil)
		if err := n.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Nodes[0].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Nodes[0] = c.Start(0)
		if err := c.Nodes[0].Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		report(all[1:], nil)
		membersAfter(t, n, 5*time.Second, 2)
	})
}

// Changes that discovery reports one after the other are one change of the ring, and the next one keeps its distance.
func TestChangesOfTheListSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		n, report := scripted(t, c, nil)
		report(c.Members(), nil)
		time.Sleep(10 * time.Second)
		views := []uint64{n.Stats().RingView}
		list := c.Members()
		for i := range 100 { // three seconds long
			list = append(list, peers.Member{ID: fmt.Sprint("m", i), Addr: fmt.Sprintf("127.0.1.%d:1", i)})
			report(list, nil)
			time.Sleep(30 * time.Millisecond)
			if v := n.Stats().RingView; v != views[len(views)-1] {
				views = append(views, v)
			}
		}
		membersAfter(t, n, settled, 103)
		if got := len(views) - 1; got < 2 || got > 4 {
			t.Errorf("got %d changes of the ring in 3s, want about one a second", got)
		}
	})
}

// What is wrong with discovery is logged when it begins, not as often as it is asked.
func TestTroubleOfDiscoveryIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var log strings.Builder // written by one goroutine, that of discovery, and read while it is idle
		n, report := scripted(t, c, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
		lines := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if got := strings.Count(log.String(), "msg="); got != want {
				t.Errorf("%s: got %d lines, want %d:\n%s", what, got, want, log.String())
			}
			log.Reset()
		}
		repeat := func(list []peers.Member, err error) {
			for range 4 {
				report(list, err)
				time.Sleep(1500 * time.Millisecond)
			}
		}
		repeat(c.Members(), nil)
		lines("good lists", 0)
		bad := []peers.Member{{ID: "n0", Addr: "a:1"}, {ID: "n0", Addr: "b:1"}}
		repeat(bad, nil)
		lines("a list that makes no sense", 1)
		repeat(nil, nil)
		lines("empty lists", 1)
		repeat(c.Members(), nil)
		repeat(bad, nil)
		lines("the same nonsense again, after a good list", 1)
		repeat(nil, errors.New("no such host"))
		lines("failures", 1)
		if age := n.Stats().DiscoveryAge; age < 6*time.Second {
			t.Errorf("DiscoveryAge after failures: got %v, want at least 6s", age)
		}
		report(c.Members(), nil)
		repeat(nil, errors.New("no such host"))
		lines("the same failure after an answer", 1)
		membersAfter(t, n, 0, 4)
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

// Case discovery-3. Whatever its discovery calls it, a node does not dial itself, all agree on the owners, and every key is loaded once.
func TestANodeKnowsItself(t *testing.T) {
	const hosts = 3
	addr := func(i int) string { return testcluster.Host(i) + ":7946" }
	plain := func(int) (list []peers.Member) {
		for i := range hosts {
			list = append(list, peers.Member{Addr: addr(i)})
		}
		return list
	}
	others := func(self int) []peers.Member { return slices.Delete(plain(self), self, self+1) }
	named := func(int) (list []peers.Member) {
		for i := range hosts {
			list = append(list, peers.Member{ID: fmt.Sprint("n", i), Addr: addr(i)})
		}
		return list
	}
	for name, tt := range map[string]struct {
		id        func(i int) string // configured
		advertise func(i int) string
		list      func(self int) []peers.Member // as node self gets it
	}{
		"by address": {list: plain},
		"spelled differently": {list: func(int) []peers.Member {
			return []peers.Member{{Addr: "LOCALHOST:7946"}, {Addr: " 127.0.0.2:07946"}, {Addr: "[::ffff:127.0.0.3]:7946"}}
		}},
		"advertised differently": {list: plain, advertise: func(i int) string { return []string{"localhost:07946", "[::ffff:127.0.0.2]:7946", addr(2)}[i] }},
		"missing":                {list: others},
		"twice": {list: func(int) []peers.Member {
			return append(plain(0), peers.Member{Addr: "localhost:7946"}, peers.Member{Addr: addr(1)})
		}},
		"ID, known by address": {list: plain, id: func(i int) string { return fmt.Sprint("n", i) }},
		"ID, known by ID":      {list: named, id: func(i int) string { return fmt.Sprint("n", i) }},
		"no ID, known by one":  {list: named},
		"ID, moved": {id: func(i int) string { return fmt.Sprint("n", i) }, list: func(self int) []peers.Member {
			list := named(self)
			list[self].Addr = "127.0.0.99:7946" // where it was before it was restarted: it looks there for another process with its ID
			return list
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := peerstest.NewNetwork()
				nodes, caches := make([]*nearcache.Node, hosts), make([]*nearcache.Cache[string], hosts)
				var loads sync.Map // key to *atomic.Int64
				for i := range hosts {
					host := network.Host(testcluster.Host(i))
					l, err := host.Listen(":7946")
					if err != nil {
						t.Fatal(err)
					}
					cfg := nearcache.NodeConfig{Listener: l, Discovery: peers.NewList(tt.list(i)...)}
					if tt.id != nil {
						cfg.ID = tt.id(i)
					}
					if tt.advertise != nil {
						cfg.Advertise = tt.advertise(i)
					}
					cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
						if to == addr(i) {
							t.Errorf("node %d dials itself, at %s", i, to)
						}
						return host.Dial(ctx, to)
					}
					if nodes[i], err = nearcache.Start(t.Context(), cfg); err != nil {
						t.Fatal(err)
					}
					defer nodes[i].Close(context.Background())
					caches[i], err = nearcache.New(nodes[i], "ks", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) {
						n, _ := loads.LoadOrStore(key, new(atomic.Int64))
						n.(*atomic.Int64).Add(1)
						return "v", nil
					}})
					if err != nil {
						t.Fatal(err)
					}
				}
				for _, n := range nodes {
					if err := n.Ready(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				for k := range 300 {
					key := fmt.Sprint("k", k)
					for i, cache := range caches {
						if v, err := cache.Get(t.Context(), key); v != "v" || err != nil {
							t.Fatalf("node %d: got %q, %v", i, v, err)
						}
						if got, want := nodes[i].Owner("ks", key).ID, nodes[0].Owner("ks", key).ID; got != want {
							t.Fatalf("%s: node %d says that %q owns it, node 0 %q", key, i, got, want)
						}
					}
				}
				loads.Range(func(key, n any) bool {
					if got := n.(*atomic.Int64).Load(); got != 1 {
						t.Errorf("%s: got %d loads, want 1", key, got)
					}
					return true
				})
				for i, n := range nodes {
					if got := len(n.Members()); got != hosts {
						t.Errorf("node %d: got %d members, want %d", i, got, hosts)
					}
				}
			})
		})
	}
}
