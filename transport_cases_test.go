package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// seen returns what node sees of the member.
func seen(t *testing.T, node *nearcache.Node, id string) nearcache.MemberStats {
	t.Helper()
	for _, m := range node.Stats().Members {
		if m.Member.ID == id {
			return m
		}
	}
	t.Fatalf("%s does not know %s", node.ID(), id)
	return nearcache.MemberStats{}
}

// Case transport-6. A silent owner costs the first readers a time-out and nobody afterwards, and is used again when it is back.
func TestASilentOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 5)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		keys := make([]string, 50)
		for i := range keys {
			keys[i] = testcluster.Key(c.Nodes[0], "ks", "n4", i)
			db.write(keys[i], 1)
		}
		c.Network.Isolate(testcluster.Host(4))
		start := time.Now()
		for i := 0; time.Since(start) < 20*time.Second; i++ {
			at := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			v, err := caches[i%4].Get(ctx, keys[i/4%len(keys)])
			cancel()
			if v != 1 || err != nil {
				t.Fatalf("%v after the cut: got %d, %v, want the value", time.Since(start), v, err)
			}
			limit := 20 * time.Millisecond
			if time.Since(start) < 2*time.Second {
				limit = 300 * time.Millisecond
			}
			if took := time.Since(at); took > limit {
				t.Fatalf("%v after the cut: a read took %v, want %v at most", time.Since(start), took, limit)
			}
			time.Sleep(5 * time.Millisecond)
		}
		c.Network.Rejoin(testcluster.Host(4))
		time.Sleep(5 * time.Second)
		for i, cache := range caches[:4] {
			_, info, err := cache.GetInfo(t.Context(), keys[i])
			if info.Member != "n4" && info.Tier != nearcache.TierOrigin || err != nil {
				t.Errorf("node %d, 5s after the heal: got an answer of %s, %v, want the owner's", i, info.Member, err)
			}
			if _, info, err := cache.GetInfo(t.Context(), keys[i]); info.Member != "n4" || err != nil {
				t.Errorf("node %d, 5s after the heal: got an answer of %s, %v, want the owner's", i, info.Member, err)
			}
		}
	})
}

// Case transport-8. A peer that comes back on its address after a minute is used again within seconds, and no read fails.
func TestARestartedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		cfg := nearcache.Config[int]{Load: db.load, NearTTL: -1}
		caches := open(t, c, "ks", cfg)
		key := testcluster.Key(c.Nodes[0], "ks", "n2", 0)
		db.write(key, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i, cache := range caches[:2] {
			wg.Go(func() {
				for ctx.Err() == nil {
					if v, err := cache.Get(ctx, key); v != 1 && ctx.Err() == nil {
						t.Errorf("node %d: got %d, %v, want the value throughout", i, v, err)
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		time.Sleep(time.Second)
		c.Network.Host(testcluster.Host(2)).Crash()
		time.Sleep(time.Minute)
		again, err := nearcache.New(c.Start(2), "ks", cfg)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		for i, n := range c.Nodes[:2] {
			before := seen(t, n, "n2")
			time.Sleep(time.Second)
			after := seen(t, n, "n2")
			if !after.Connected || after.Requests == before.Requests || after.Errors != before.Errors {
				t.Errorf("node %d, 5s after the restart: got %+v, want requests that are answered", i, after)
			}
		}
		cancel()
		wg.Wait()
		if again.Stats().ShardEntries != 1 {
			t.Error("the restarted owner does not hold its key")
		}
	})
}

// Case transport-10. Close ends in time with a loader that ignores its context and a peer that is silent, and lets what can finish finish.
func TestCloseEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, cancelled := range []bool{false, true} {
			c := testcluster.Bubble(t, 3)
			release := make(chan struct{})
			caches := open(t, c, "ks", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) {
				if key == "stuck" {
					<-release
				} else {
					time.Sleep(time.Second)
				}
				return "v", nil
			}})
			c.Network.Isolate(testcluster.Host(2))
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := caches[0].Get(t.Context(), "stuck"); !errors.Is(err, nearcache.ErrClosed) {
					t.Errorf("a caller of the stuck loader: got %v, want ErrClosed", err)
				}
			})
			wg.Go(func() {
				v, err := caches[0].Get(t.Context(), "slow")
				if !cancelled && (v != "v" || err != nil) || cancelled && err != nil && !errors.Is(err, nearcache.ErrClosed) {
					t.Errorf("a caller that could be served in time: got %q, %v", v, err)
				}
			})
			time.Sleep(100 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if cancelled {
				cancel()
			}
			start := time.Now()
			_ = c.Nodes[0].Close(ctx)
			took := time.Since(start)
			if took > 2500*time.Millisecond || cancelled && took > 50*time.Millisecond {
				t.Errorf("cancelled %v: Close took %v", cancelled, took)
			}
			wg.Wait()
			cancel()
			time.Sleep(time.Second)
			l, err := c.Network.Host(testcluster.Host(0)).Listen(":7946")
			if err != nil {
				t.Errorf("the port is not free: %v", err)
			} else {
				_ = l.Close()
			}
			close(release)
			for _, n := range c.Nodes {
				if err := n.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// Case transport-12. Lists that change leave no connection behind, and peers that stay keep theirs.
func TestChurnOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 5)
		_ = open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
		h, all := testcluster.Host, c.Members()
		count := func(f func(from, to string) int) (n int) {
			for i := range 4 {
				for j := range 4 {
					n += f(h(i), h(j))
				}
			}
			return n
		}
		dials, conns := count(c.Network.Dials), count(c.Network.Conns)
		lastConns := c.Network.Conns(h(0), h(4))
		for i := range 100 {
			list := all
			if i >= 50 && i%2 == 0 {
				list = all[:4]
			}
			c.List.Set(list...)
			time.Sleep(10 * time.Millisecond)
			if i == 49 && c.Network.Dials(h(0), h(4)) != lastConns {
				t.Error("identical lists opened connections")
			}
		}
		time.Sleep(2 * time.Second)
		if d, n := count(c.Network.Dials), count(c.Network.Conns); d != dials || n != conns {
			t.Errorf("the members that stayed have %d connections and dialled %d times, want %d and %d as before", n, d, conns, dials)
		}
		for i := range 4 {
			if got := c.Network.Conns(h(i), h(4)); got != lastConns {
				t.Errorf("n%d has %d connections to the member that came and went, want %d", i, got, lastConns)
			}
		}
	})
}

// Case transport-13. Callers that leave between question and answer never get, or leave behind, the answer of another key.
func TestCancelledReadsDoNotShiftAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		c.Network.SetLatency(300 * time.Microsecond)
		caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: -1, MaxLoads: -1, TTL: 20 * time.Millisecond, Load: func(_ context.Context, key string) (string, error) {
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			if strings.HasSuffix(key, "7") {
				return "", fmt.Errorf("of %s: %w", key, nearcache.ErrNotFound)
			}
			return "v" + key, nil
		}})
		dials := c.Network.Dials(testcluster.Host(0), testcluster.Host(1))
		check := func(key, v string, err error) {
			switch {
			case errors.Is(err, nearcache.ErrNotFound) && strings.HasSuffix(key, "7"):
			case errors.Is(err, context.DeadlineExceeded):
			case err != nil || v != "v"+key:
				t.Errorf("%s: got %q, %v", key, v, err)
			}
		}
		var wg sync.WaitGroup
		for g := range 32 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 1))
				for i := range 150 {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if i%2 == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(3000))*time.Microsecond)
					}
					deadline, limited := ctx.Deadline()
					key := fmt.Sprint("k", rng.IntN(1000))
					if i%5 == 0 {
						keys := []string{key, fmt.Sprint("k", rng.IntN(1000)), fmt.Sprint("k", rng.IntN(1000))}
						m, err := caches[0].GetMany(ctx, keys)
						var be *nearcache.BatchError
						_ = errors.As(err, &be)
						for _, k := range keys {
							v, ok := m[k]
							switch {
							case ok:
								check(k, v, nil)
							case be != nil && be.Errs[k] != nil:
								check(k, "", be.Errs[k])
							default:
								check(k, "", nearcache.ErrNotFound)
							}
						}
					} else {
						v, err := caches[0].Get(ctx, key)
						check(key, v, err)
					}
					cancel()
					if limited && time.Since(deadline) > 20*time.Millisecond {
						t.Errorf("a cancelled call came back %v after its deadline", time.Since(deadline))
					}
					time.Sleep(time.Duration(rng.IntN(500)) * time.Microsecond)
				}
			})
		}
		wg.Wait()
		if got := c.Network.Dials(testcluster.Host(0), testcluster.Host(1)); got != dials {
			t.Errorf("cancelled calls made %d new connections", got-dials)
		}
		time.Sleep(15 * time.Second) // leases that came for nobody are given back
		wantIdle(t, caches)
	})
}

// Case transport-14. What a caller or the origin does is no failure of the peer.
func TestTheBreakerIsForPeersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		caches := open(t, c, "ks", nearcache.Config[string]{
			NearTTL: -1, NotFoundTTL: -1, MaxValueBytes: 100, MaxLoads: 1, LoadQueueTimeout: -1,
			Load: func(ctx context.Context, key string) (string, error) {
				switch key[:strings.Index(key, "|")] {
				case "slow":
					<-ctx.Done()
					return "", ctx.Err()
				case "absent":
					return "", nearcache.ErrNotFound
				case "large":
					return strings.Repeat("l", 1000), nil
				case "panic":
					panic("p")
				case "shed":
					time.Sleep(20 * time.Millisecond)
					return "v", nil
				}
				return "", errors.New("down")
			},
		})
		for _, kind := range []string{"slow", "absent", "large", "error", "panic", "shed"} {
			before := caches[0].Stats().PeerErrors
			var wg sync.WaitGroup
			var failed atomic.Int64
			for i := range 200 {
				key := ""
				for n := 0; key == "" || c.Nodes[0].Owner("ks", key).ID != "n1"; n++ {
					key = fmt.Sprintf("%s|%d-%d", kind, i%50, n)
				}
				for reader := 0; reader < 3; reader += 2 {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						if kind == "slow" {
							ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
						}
						defer cancel()
						if _, err := caches[reader].Get(ctx, key); err != nil {
							failed.Add(1)
						}
					})
				}
				time.Sleep(time.Millisecond)
			}
			wg.Wait()
			if failed.Load() == 0 && kind != "large" {
				t.Errorf("%s: nothing failed", kind)
			}
			if got := caches[0].Stats().PeerErrors - before; got != 0 {
				t.Errorf("%s: got %d peer errors, want none", kind, got)
			}
			if m := seen(t, c.Nodes[0], "n1"); m.Breaker != "closed" || m.Errors != 0 {
				t.Errorf("%s: the breaker is %s after %d errors", kind, m.Breaker, m.Errors)
			}
		}
		time.Sleep(time.Minute)
		wantIdle(t, caches)
	})
}

// Case transport-15. A member that does not have the keyspace yet is no absence and no sick peer: others stand in for it.
func TestAMemberWithoutTheKeyspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		load := func(_ context.Context, key string) (string, error) { return "v" + key, nil }
		g1 := open(t, c, "g1", nearcache.Config[string]{Load: load, NearTTL: -1})
		var g2 []*nearcache.Cache[string]
		for _, n := range c.Nodes[:2] {
			cache, err := nearcache.New(n, "g2", nearcache.Config[string]{Load: load, NearTTL: -1})
			if err != nil {
				t.Fatal(err)
			}
			g2 = append(g2, cache)
		}
		read := func() {
			t.Helper()
			for i := range 300 {
				key := fmt.Sprint("k", i)
				if v, err := g2[0].Get(t.Context(), key); v != "v"+key || err != nil {
					t.Fatalf("got %q, %v, want the value", v, err)
				}
				if m, err := g2[1].GetMany(t.Context(), []string{key}); m[key] != "v"+key || err != nil {
					t.Fatalf("GetMany: got %q, %v, want the value", m, err)
				}
			}
		}
		for range 5 {
			read()
			time.Sleep(time.Second)
		}
		if err := g2[0].Invalidate(t.Context(), "k0", "k1", "k2", "k3", "k4", "k5"); err != nil {
			t.Errorf("Invalidate: %v", err)
		}
		for i, cache := range g2 {
			if s := cache.Stats(); s.Misrouted == 0 || s.NotFound != 0 || s.NegativeEntries != 0 || s.PeerErrors != 0 {
				t.Errorf("node %d: got %+v, want misrouted answers and nothing absent or broken", i, s)
			}
			if m := seen(t, c.Nodes[i], "n2"); m.Breaker != "closed" {
				t.Errorf("node %d: the breaker of n2 is %s", i, m.Breaker)
			}
		}
		key := testcluster.Key(c.Nodes[0], "g1", "n2", 0)
		if _, info, err := g1[0].GetInfo(t.Context(), key); info.Member == "" || err != nil {
			t.Errorf("g1 of the same member: got %+v, %v", info, err)
		}
		last, err := nearcache.New(c.Nodes[2], "g2", nearcache.Config[string]{Load: load, NearTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		read()
		if got := last.Stats().ShardEntries; got == 0 {
			t.Error("two seconds after it opened the keyspace the member holds none of its keys")
		}
	})
}

// Case transport-16. Calls without a deadline do not wait for a silent owner, nor for a loader that never returns.
func TestCallsWithoutADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		release := make(chan struct{})
		caches := open(t, c, "ks", nearcache.Config[string]{LoadTimeout: time.Second, MaxLoads: -1, Load: func(_ context.Context, key string) (string, error) {
			if strings.HasPrefix(key, "key-1") {
				<-release
			}
			return "v", nil
		}})
		burst := func(n int, owner string, want error, within time.Duration) {
			t.Helper()
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 100 {
				key := testcluster.Key(c.Nodes[0], "ks", owner, n*1000+i)
				wg.Go(func() {
					v, err := caches[0].Get(context.Background(), key)
					if !errors.Is(err, want) || want == nil && v != "v" {
						t.Errorf("%s: got %q, %v, want %v", key, v, err, want)
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took > within {
				t.Errorf("100 calls took %v, want %v", took, within)
			}
		}
		for _, owner := range []string{"n1", "n0"} {
			burst(1, owner, nearcache.ErrLoadTimeout, 1100*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			if _, err := caches[0].Get(t.Context(), "good for "+owner); err != nil { // it closes the breaker on the loader
				t.Error(err)
			}
		}
		c.Network.Isolate(testcluster.Host(1))
		burst(2, "n1", nil, time.Second)
		time.Sleep(time.Second)
		if got := caches[0].Stats().Flights; got != 0 {
			t.Errorf("%d flights are left", got)
		}
		close(release)
		c.Network.HealAll()
		time.Sleep(100 * time.Millisecond) // leases that came late are given back
		wantIdle(t, caches)
	})
}

// Case transport-17. 1,500 cold keys of one owner at once: nothing queues where nobody sees it, and a limit sheds what is above it.
func TestManyReadsOfOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []int{2000, 100} {
			c := testcluster.Bubble(t, 3)
			load := func(_ context.Context, key string) (string, error) {
				time.Sleep(300 * time.Millisecond)
				return "v" + key, nil
			}
			caches := open(t, c, "ks", nearcache.Config[string]{Load: load, MaxLoads: limit})
			var wg sync.WaitGroup
			var shed, served atomic.Int64
			start := time.Now()
			for i := range 1500 {
				key := testcluster.Key(c.Nodes[0], "ks", "n0", i)
				for _, cache := range caches[1:] { // one of them loads, the other waits at the owner
					wg.Go(func() {
						v, err := cache.Get(t.Context(), key)
						switch {
						case errors.Is(err, nearcache.ErrOverloaded):
							shed.Add(1)
						case v != "v"+key || err != nil:
							t.Errorf("got %q, %v, want the value", v, err)
						default:
							served.Add(1)
						}
					})
				}
			}
			wg.Wait()
			if took := time.Since(start); took > 900*time.Millisecond {
				t.Errorf("limit %d: took %v, want three loads' time at most", limit, took)
			}
			if limit == 2000 && shed.Load() != 0 {
				t.Errorf("%d calls were shed, want none", shed.Load())
			}
			if limit == 100 && (shed.Load() == 0 || served.Load() < 200) {
				t.Errorf("limit 100: %d calls were shed, %d served, want some of both", shed.Load(), served.Load())
			}
			wantIdle(t, caches)
			for _, n := range c.Nodes {
				if err := n.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// Case discovery-5, as far as this version goes: members that restart one after the other cost nobody on the others an error.
func TestARollingRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 4)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		cfg := nearcache.Config[int]{Load: db.load, MaxLoads: -1}
		caches := open(t, c, "ks", cfg)
		for i := range 100 {
			db.write(fmt.Sprint("k", i), 1)
		}
		var current [4]atomic.Pointer[nearcache.Cache[int]]
		for i := range current {
			current[i].Store(caches[i])
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var closing atomic.Int64
		closing.Store(-1)
		var acked atomic.Int64 // the version of "changing" that an Invalidate returned nil for
		wg.Go(func() {
			for version := 1; ctx.Err() == nil; version++ {
				db.write("changing", version)
				if err := current[version%4].Load().Invalidate(ctx, "changing"); err == nil {
					acked.Store(int64(version))
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		for i := range current {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					was := closing.Load()
					v, err := current[i].Load().Get(ctx, fmt.Sprint("k", n%100))
					if ctx.Err() == nil && v != 1 && !(errors.Is(err, nearcache.ErrClosed) && (was == int64(i) || closing.Load() == int64(i))) {
						t.Errorf("node %d: got %d, %v", i, v, err)
						return
					}
					time.Sleep(2 * time.Millisecond)
				}
			})
			wg.Go(func() {
				for ctx.Err() == nil {
					least := acked.Load()
					time.Sleep(1050 * time.Millisecond) // a Bound
					if v, err := current[i].Load().Get(ctx, "changing"); err == nil && int64(v) < least {
						t.Errorf("node %d: got version %d a Bound after version %d was invalidated", i, v, least)
					}
				}
			})
		}
		for i := range current {
			closing.Store(int64(i))
			if err := c.Nodes[i].Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.Nodes[i] = c.Start(i)
			cache, err := nearcache.New(c.Nodes[i], "ks", cfg)
			if err != nil {
				t.Fatal(err)
			}
			current[i].Store(cache)
			time.Sleep(10 * time.Millisecond)
			closing.Store(-1)
			time.Sleep(5 * time.Second)
			var stats []peers.Member
			for _, m := range c.Nodes[(i+1)%4].Stats().Members {
				if m.Connected {
					stats = append(stats, m.Member)
				}
			}
			if len(stats) != 4 {
				t.Errorf("5s after node %d was restarted its peers are connected to %v", i, stats)
			}
		}
		cancel()
		wg.Wait()
	})
}
