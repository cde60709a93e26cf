package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// Two processes with one ID in their configuration: the second one is refused by the others, says so, and holds nothing for longer than
// a Bound, so that it returns right values although it hears of no invalidation. When the first is gone it becomes the member.
func TestTwoNodesWithOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		cfg := nearcache.Config[int]{Load: db.load, TTL: time.Hour, NearTTL: time.Hour}
		caches := open(t, c, "ks", cfg)

		host := c.Network.Host("127.0.0.9")
		l, err := host.Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		list := peers.NewList()
		all := c.Members()
		list.Set(all[0], peers.Member{ID: "n1", Addr: "127.0.0.9:7946"}, all[2])
		second, err := nearcache.Start(t.Context(), nearcache.NodeConfig{ID: "n1", Listener: l, Dial: host.Dial, Discovery: list})
		if err != nil {
			t.Fatal(err)
		}
		cache, err := nearcache.New(second, "ks", cfg)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if !second.Stats().Doubt || c.Nodes[1].Stats().Doubt {
			t.Errorf("doubt: %v, and the first: %v; want only the second", second.Stats().Doubt, c.Nodes[1].Stats().Doubt)
		}
		everybody := append(caches, cache)
		for round := range 3 {
			for i := range 50 {
				key := fmt.Sprint("k", i)
				for j, cc := range everybody {
					if _, err := cc.Get(t.Context(), key); err != nil && round > 0 {
						t.Fatalf("cache %d: %v", j, err)
					}
				}
				db.bump(key)
				if err := caches[round].Invalidate(t.Context(), key); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
			time.Sleep(1100 * time.Millisecond) // a Bound, and what the coarse clock lags
			for i := range 50 {
				key := fmt.Sprint("k", i)
				for j, cc := range everybody {
					if v, err := cc.Get(t.Context(), key); v != round+1 || err != nil {
						t.Errorf("round %d, cache %d, %s: got %d, %v; want %d", round, j, key, v, err, round+1)
					}
				}
			}
		}
		// What it believes to own, it cannot confirm.
		confirmed := 0
		for i := range 50 {
			key := fmt.Sprint("k", i)
			err := cache.Invalidate(t.Context(), key)
			var p *nearcache.PartialError
			switch {
			case err == nil:
				confirmed++
			case !errors.As(err, &p):
				t.Errorf("%s: got %v, want a PartialError", key, err)
			}
		}
		if confirmed > 0 {
			t.Errorf("%d invalidations were confirmed by a node that nobody talks to", confirmed)
		}
		if err := c.Nodes[1].Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.Nodes[1] = nil
		moved := []peers.Member{all[0], {ID: "n1", Addr: "127.0.0.9:7946"}, all[2]}
		c.List.Set(moved...)
		time.Sleep(6 * time.Second)
		if second.Stats().Doubt {
			t.Error("the second is in doubt, and alone")
		}
		if err := cache.Invalidate(t.Context(), "k1"); err != nil {
			t.Error(err)
		}
		if err := second.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
