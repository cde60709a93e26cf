package nearcache_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

// R8b: a member that goes by a former ring does not go on serving near copies that it got from the owner by that ring, though the new owner
// does not hear it and cannot know its view.
func TestNearCopiesOfAFormerRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := peers.NewList() // n0 will not hear what the others hear
		var all []peers.Member
		for i, id := range []string{"n0", "n1", "n2"} {
			all = append(all, peers.Member{ID: id, Addr: testcluster.Host(i) + ":7946"})
		}
		own.Set(all...)
		c := testcluster.Bubble(t, 3, func(i int, cfg *nearcache.NodeConfig) {
			if i == 0 {
				cfg.Discovery = own
			}
		})
		o := newOrigin(func() time.Duration { return 0 })
		caches := o.openOn(t, c, nearcache.Config[string]{NearTTL: time.Minute, TTL: time.Hour, Jitter: -1})
		own.Set(all[:2]...)
		c.List.Set(all[:2]...)
		time.Sleep(10 * time.Second)
		key := keyOwned(t, c, "n1", "n0", "n1")

		old := o.bump(key)
		for range 2 { // the first answer may not be kept
			if _, err := caches[0].Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
		}
		c.Network.Cut(testcluster.Host(0), testcluster.Host(2))
		c.List.Set(all...)
		time.Sleep(10 * time.Second)
		want := o.bump(key)
		if err := caches[2].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)
		v, err := caches[0].Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := testcluster.Version(key, v); got != want || err != nil {
			t.Errorf("got version %d, %v, more than a Bound after its invalidation, want %d in place of %d", got, err, want, old)
		}
		c.Network.HealAll()
	})
}

// keyOwned returns a key of which n2 is the owner by the ring of all members, and owner by the ring of ids.
func keyOwned(t *testing.T, c *testcluster.Cluster, owner string, ids ...string) string {
	t.Helper()
	var members []ring.Member
	for _, id := range ids {
		members = append(members, ring.Member{ID: id})
	}
	r, err := ring.New(members)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		key := testcluster.Key(c.Nodes[2], "ks", "n2", n)
		if r.Members()[r.Owner(ring.Hash("ks", key))].ID == owner {
			return key
		}
	}
}
