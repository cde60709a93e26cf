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
)

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
