package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// Case ring-7. However fast lists come, the last one counts, and no read fails meanwhile.
func TestTheLastMemberListWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 6)
		caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: -1, Load: func(_ context.Context, key string) (string, error) {
			time.Sleep(time.Millisecond)
			return "v" + key, nil
		}})
		all := c.Members()
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for i, cache := range caches {
			readers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					key := fmt.Sprint("k", n%300)
					if v, err := cache.Get(ctx, key); v != "v"+key && ctx.Err() == nil {
						t.Errorf("node %d: got %q, %v, want the value", i, v, err)
						return
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		var setters sync.WaitGroup
		for g := range 4 {
			setters.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 1))
				for i := range 100 {
					list := slices.Clone(all)
					rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
					c.List.Set(list[:1+rng.IntN(6)]...)
					if i%5 == g {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		setters.Wait()
		final := all[:4]
		c.List.Set(final...)
		time.Sleep(250 * time.Millisecond)
		for i := range 10_000 {
			key := fmt.Sprint("user:", i)
			want := c.Nodes[0].Owner("ks", key)
			for _, n := range c.Nodes[1:4] {
				if got := n.Owner("ks", key); got != want {
					t.Fatalf("%s: %s takes %s for the owner, n0 takes %s", key, n.ID(), got.ID, want.ID)
				}
			}
			if !slices.ContainsFunc(final, func(m peers.Member) bool { return m.ID == want.ID }) {
				t.Fatalf("%s is owned by %s, which is no member any more", key, want.ID)
			}
		}
		time.Sleep(6 * time.Second) // so long others may take it for an owner
		for i := range 4 {
			for gone := 4; gone < 6; gone++ {
				if got := c.Network.Conns(testcluster.Host(i), testcluster.Host(gone)); got != 0 {
					t.Errorf("n%d has %d connections to the removed n%d", i, got, gone)
				}
			}
		}
		before := c.Nodes[0].Stats().Members
		time.Sleep(time.Second)
		for i, m := range c.Nodes[0].Stats().Members {
			if m.Member.ID != "n0" && m.Requests == before[i].Requests {
				t.Errorf("%s gets no requests", m.Member.ID)
			}
		}
		cancel()
		readers.Wait()
		c.List.Set(all...)
		c.Ready()
	})
}

// A member that joins takes its share from all others, no key moves between them, and none is loaded more than once for it.
//
// Case ring-5.
func TestAJoinMovesOnlyItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var loads atomic.Int64
		cfg := nearcache.Config[string]{MaxLoads: -1, TTL: time.Hour, Load: func(_ context.Context, key string) (string, error) {
			loads.Add(1)
			return "v" + key, nil
		}}
		caches := open(t, c, "ks", cfg)
		keys := make([]string, 2000)
		owners := make([]string, len(keys))
		for i := range keys {
			keys[i] = fmt.Sprint("user:", i)
			owners[i] = c.Nodes[0].Owner("ks", keys[i]).ID
		}
		for _, cache := range caches {
			if _, err := cache.GetMany(t.Context(), keys); err != nil {
				t.Fatal(err)
			}
		}
		loads.Store(0)
		c.Nodes = append(c.Nodes, c.Start(3))
		newcomer, err := nearcache.New(c.Nodes[3], "ks", cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.List.Set(c.Members()...)
		c.Ready()
		moved := 0
		for i, k := range keys {
			if now := c.Nodes[0].Owner("ks", k).ID; now != owners[i] {
				moved++
				if now != "n3" {
					t.Errorf("%s moved from %s to %s, want to the newcomer only", k, owners[i], now)
				}
			}
		}
		if moved < len(keys)*15/100 || moved > len(keys)*35/100 {
			t.Errorf("%d of %d keys moved, want a quarter", moved, len(keys))
		}
		for i, cache := range append(caches, newcomer) {
			m, err := cache.GetMany(t.Context(), keys)
			if len(m) != len(keys) || err != nil {
				t.Errorf("node %d: got %d values, %v", i, len(m), err)
			}
		}
		if got := loads.Load(); got > int64(moved) {
			t.Errorf("the join made %d loads, want the %d moved keys at most", got, moved)
		}
	})
}

// follow starts n nodes of a bubble that follow a discovery each.
func follow(t *testing.T, n int, discovery func(i int, all *[]peers.Member) peers.Discovery) (*testcluster.Cluster, *[]peers.Member) {
	t.Helper()
	all := new([]peers.Member)
	c := testcluster.Bubble(t, 0, func(i int, cfg *nearcache.NodeConfig) { cfg.Discovery = discovery(i, all) })
	for i := range n {
		*all = append(*all, peers.Member{ID: fmt.Sprint("n", i), Addr: testcluster.Host(i) + ":7946"})
	}
	for i := range n {
		c.Nodes = append(c.Nodes, c.Start(i))
	}
	return c, all
}

// Case discovery-1. Errors and empty answers of a resolver leave the last list in use.
func TestABadAnswerKeepsTheRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		phase := new(atomic.Int64)
		const good, failing, empty, half = 0, 1, 2, 3
		c, _ := follow(t, 4, func(_ int, all *[]peers.Member) peers.Discovery {
			return peers.Func(func(ctx context.Context, update func([]peers.Member)) error {
				for ctx.Err() == nil {
					switch phase.Load() {
					case good:
						update(*all)
					case failing:
						return errors.New("no such host")
					case empty:
						update(nil)
					case half:
						update((*all)[:2])
					}
					select {
					case <-ctx.Done():
					case <-time.After(time.Second):
					}
				}
				return ctx.Err()
			})
		})
		c.Ready()
		c.Warm()
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, MaxLoads: -1})
		keys := make([]string, 500)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
			db.write(keys[i], 1)
		}
		if _, err := caches[0].GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		read := func(d time.Duration) (loads int64) {
			db.loads.Store(0)
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				for i := range 100 {
					n := int(time.Now().UnixMilli()) + i
					if v, err := caches[i%4].Get(t.Context(), keys[n%len(keys)]); v != 1 || err != nil {
						t.Fatalf("got %d, %v, want the value", v, err)
					}
				}
			}
			return db.loads.Load()
		}
		for name, p := range map[string]int64{"errors": failing, "empty answers": empty} {
			phase.Store(p)
			if got := read(5 * time.Second); got > 50 {
				t.Errorf("%s: got %d loads in 5000 reads, want none", name, got)
			}
			for i, n := range c.Nodes {
				if got := len(n.Members()); got != 4 {
					t.Errorf("%s: node %d has %d members, want the last list", name, i, got)
				}
				if age := n.Stats().DiscoveryAge; p == failing && age < 3*time.Second {
					t.Errorf("%s: node %d says that discovery answered %v ago", name, i, age)
				}
			}
			phase.Store(good)
			read(2 * time.Second)
		}
		phase.Store(half)
		read(5 * time.Second)
		if got := len(c.Nodes[0].Members()); got != 2 {
			t.Errorf("half the list: got %d members, want 2", got)
		}
		phase.Store(good)
		read(3 * time.Second)
		if got := len(c.Nodes[0].Members()); got != 4 {
			t.Errorf("the whole list: got %d members, want 4", got)
		}
	})
}

// Case discovery-1. What the program itself sets is meant: an empty list counts at once.
func TestAnEmptyListOfTheProgramCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		c.List.Set()
		time.Sleep(100 * time.Millisecond)
		for i, n := range c.Nodes {
			if got := n.Members(); len(got) != 1 || got[0].ID != n.ID() {
				t.Errorf("node %d: got %v, want itself alone", i, got)
			}
		}
	})
}

// Case discovery-2. A resolver that is late at the start is asked again; reads work meanwhile, and nothing has to be restarted.
func TestALateDiscovery(t *testing.T) {
	for _, how := range []string{"fails", "hangs"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				c, _ := follow(t, 3, func(i int, all *[]peers.Member) peers.Discovery {
					return peers.Func(func(ctx context.Context, update func([]peers.Member)) error {
						if i == 2 && time.Since(begin) < 5*time.Second {
							if how == "fails" {
								return errors.New("no such host")
							}
							time.Sleep(5*time.Second - time.Since(begin))
						}
						update(*all)
						<-ctx.Done()
						return ctx.Err()
					})
				})
				late := c.Nodes[2]
				db := newDatabase(func() time.Duration { return time.Millisecond })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load})
				for i := range 100 {
					db.write(fmt.Sprint("k", i), 1)
				}
				var joined time.Duration
				for i := 0; time.Since(begin) < 15*time.Second; i++ {
					at := time.Now()
					if v, err := caches[2].Get(t.Context(), fmt.Sprint("k", i%100)); v != 1 || err != nil {
						t.Fatalf("%v after the start: got %d, %v, want the value", time.Since(begin), v, err)
					}
					if took := time.Since(at); took > 200*time.Millisecond {
						t.Errorf("%v after the start: a read took %v", time.Since(begin), took)
					}
					if joined == 0 && len(late.Members()) == 3 {
						joined = time.Since(begin)
					}
					time.Sleep(20 * time.Millisecond)
				}
				if joined == 0 || joined > 7*time.Second {
					t.Errorf("joined after %v, want the resolver's 5s and 2s more at most", joined)
				}
				if err := late.Ready(t.Context()); err != nil {
					t.Error(err)
				}
				if err := caches[2].Invalidate(t.Context(), "k1"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Case API-5. A list with an entry that nobody can dial does not take the node down: it serves alone and says what is wrong.
//
// Case discovery-3.
func TestAListWithABadEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bad := range []string{"::1:7946", "127.0.0.9", "127.0.0.9:0", ""} {
			c := testcluster.Bubble(t, 0, func(_ int, cfg *nearcache.NodeConfig) { cfg.Discovery = peers.Static("127.0.0.2:7946", bad) })
			n := c.Start(0)
			cache, err := nearcache.New(n, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if v, err := cache.Get(t.Context(), "k"); v != "v" || err != nil {
				t.Errorf("entry %q: got %q, %v, want the value", bad, v, err)
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("entry %q: a read took %v", bad, took)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if err := n.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("entry %q: Ready: got %v, want that it does not know its members", bad, err)
			}
			cancel()
			if err := n.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
