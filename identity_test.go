package nearcache_test

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/peers/peerstest"
)

// Case invalidation-8. A member that restarts after its clock was set back by an hour is followed by its peers as any other that restarts:
// near copies that need its near lease are kept within a second, those of its former life are gone, and a lease of its former life fills nothing.
func TestRestartWithTheClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		held, finish := make(chan struct{}), make(chan struct{})
		key, late := testcluster.Key(c.Nodes[0], "ks", "n2", 0), testcluster.Key(c.Nodes[0], "ks", "n2", 1)
		db.write(key, 1)
		db.write(late, 1)
		load := func(ctx context.Context, k string) (int, error) {
			v, err := db.load(ctx, k)
			if k == late && v == 1 {
				held <- struct{}{}
				<-finish
			}
			return v, err
		}
		cfg := nearcache.Config[int]{Load: load, TTL: time.Hour, NearTTL: 10 * time.Minute}
		caches := open(t, c, "ks", cfg)
		for range 2 {
			if v, err := caches[0].Get(t.Context(), key); v != 1 || err != nil {
				t.Fatalf("got %d, %v, want 1", v, err)
			}
		}
		loaded := make(chan error, 1)
		go func() {
			_, err := caches[0].Get(context.Background(), late)
			loaded <- err
		}()
		<-held

		name := testcluster.Host(2)
		c.Network.Host(name).Crash()
		if err := c.Nodes[2].Close(t.Context()); err != nil {
			t.Error(err)
		}
		host := c.Network.Host(name)
		l, err := host.Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		again, err := nearcache.StartAt(t.Context(),
			nearcache.NodeConfig{ID: "n2", Listener: l, Dial: host.Dial, Discovery: c.List}, time.Now().Add(-time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		restarted, err := nearcache.New(again, "ks", cfg)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)

		db.write(key, 2)
		db.write(late, 2)
		if err := restarted.Invalidate(t.Context(), key, late); err != nil {
			t.Error(err)
		}
		if _, info, err := caches[0].GetInfo(t.Context(), key); info.Tier == nearcache.TierNear || err != nil {
			t.Errorf("the first read: got %+v, %v, want no near copy of the former life", info, err)
		}
		if v, info, err := caches[0].GetInfo(t.Context(), key); v != 2 || info.Tier != nearcache.TierNear || err != nil {
			t.Errorf("the second read: got %d, %+v, %v, want 2, a near copy", v, info, err)
		}
		db.write(key, 3)
		if err := restarted.Invalidate(t.Context(), key); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		if v, err := caches[0].Get(t.Context(), key); v != 3 || err != nil {
			t.Errorf("after an invalidation: got %d, %v, want 3", v, err)
		}
		close(finish)
		if err := <-loaded; err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		for i, cache := range []*nearcache.Cache[int]{caches[0], caches[1], restarted} {
			if v, err := cache.Get(t.Context(), late); v != 2 || err != nil {
				t.Errorf("cache %d after a fill by the former life's lease: got %d, %v, want 2", i, v, err)
			}
		}
		if err := again.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// Two nodes with one ID and no third one: whichever way discovery has them, one of them is in doubt and the other one goes on.
func TestTwoNodesWithOneIDAlone(t *testing.T) {
	addrs := [2]string{"127.0.0.1:7946", "127.0.0.2:7946"}
	byID := func(addr string) func() peers.Discovery {
		return func() peers.Discovery { return peers.NewList(peers.Member{ID: "x", Addr: addr}) }
	}
	for _, tt := range []struct {
		name string
		list func() peers.Discovery
		want [2]bool // who is in doubt; the second one starts later
	}{
		{"by addresses", func() peers.Discovery { return peers.Static(addrs[0], addrs[1]) }, [2]bool{false, true}},
		{"by ID, the first", byID(addrs[0]), [2]bool{false, true}},
		{"by ID, the second", byID(addrs[1]), [2]bool{true, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := peerstest.NewNetwork()
				var nodes [2]*nearcache.Node
				for i, name := range []string{"127.0.0.1", "127.0.0.2"} {
					host := network.Host(name)
					l, err := host.Listen(":7946")
					if err != nil {
						t.Fatal(err)
					}
					cfg := nearcache.NodeConfig{ID: "x", Listener: l, Dial: host.Dial, Discovery: tt.list()}
					if nodes[i], err = nearcache.Start(t.Context(), cfg); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				time.Sleep(6 * time.Second) // whoever starts is in doubt for five Bounds
				for range 50 {
					time.Sleep(100 * time.Millisecond)
					if got := [2]bool{nodes[0].Stats().Doubt, nodes[1].Stats().Doubt}; got != tt.want {
						t.Fatalf("in doubt: %v, want %v", got, tt.want)
					}
				}
				for _, n := range nodes {
					if err := n.Close(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// A node whose ID discovery does not know goes by its address, and says so wherever it names itself.
func TestOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		failure := errors.New("no")
		caches := open(t, c, "ks", nearcache.Config[int]{Load: func(_ context.Context, k string) (int, error) {
			if k == key {
				return 1, nil
			}
			return 0, failure
		}})
		c.List.Set(peers.Member{Addr: c.Nodes[0].Addr()}, peers.Member{Addr: c.Nodes[1].Addr()})
		time.Sleep(time.Second)
		for i, n := range c.Nodes {
			name := n.Addr()
			if got := n.ID(); got != name {
				t.Errorf("ID: got %q, want %q", got, name)
			}
			if got := n.Stats().Node; got != name {
				t.Errorf("Stats.Node: got %q, want %q", got, name)
			}
			known := false
			for _, m := range n.Members() {
				known = known || m.ID == name
			}
			if !known {
				t.Errorf("%q is not one of its members %v", name, n.Members())
			}
			key := testcluster.Key(n, "ks", name, 1)
			_, _, err := caches[i].GetInfo(t.Context(), key)
			var failed *nearcache.LoadError
			if !errors.As(err, &failed) || failed.Member != name {
				t.Errorf("LoadError: got %v, want one of %q", err, name)
			}
		}
		owner := c.Nodes[0].Owner("ks", key).ID
		for i, cache := range caches {
			for range 3 { // a load, a near copy or a hit in the shard
				_, info, err := cache.GetInfo(t.Context(), key)
				want := c.Nodes[i].Addr()
				if info.Tier == nearcache.TierOwner {
					want = owner
				}
				if err != nil || info.Member != want {
					t.Errorf("cache %d: got %+v, %v, want the member %q", i, info, err, want)
				}
			}
		}
	})
}

// VerifyMember without TLS would verify nothing.
func TestVerifyMemberNeedsTLS(t *testing.T) {
	verify := func(string, string, tls.ConnectionState) error { return nil }
	_, err := nearcache.Start(t.Context(), nearcache.NodeConfig{VerifyMember: verify})
	var wrong *nearcache.ConfigError
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "VerifyMember") {
		t.Errorf("got %v, want a ConfigError about VerifyMember", err)
	}
}
