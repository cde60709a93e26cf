package nearcache_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// The writer takes n1 for the owner of a key, by an old ring, and n1 knows that it is n2. It passes the invalidation on (R8), whether or
// not it has opened the keyspace itself.
func TestAnInvalidateIsForwardedWithoutTheKeyspace(t *testing.T) {
	for name, opened := range map[string]bool{"open": true, "not open": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []peers.Member
				for i := range 3 {
					all = append(all, peers.Member{ID: []string{"n0", "n1", "n2"}[i], Addr: testcluster.Host(i) + ":7946"})
				}
				old := peers.NewList()
				old.Set(all...)
				c := testcluster.Bubble(t, 3, func(i int, cfg *nearcache.NodeConfig) {
					if i == 0 {
						cfg.Discovery = old
					}
				})
				o := newOrigin(func() time.Duration { return 0 })
				writer, owner := o.openAt(t, c, 0, nearcache.Config[string]{}), o.openAt(t, c, 2, nearcache.Config[string]{})
				if opened {
					o.openAt(t, c, 1, nearcache.Config[string]{})
				}
				old.Set(all[:2]...)
				synctest.Wait()
				key := ""
				for i := 0; c.Nodes[0].Owner("ks", key).ID != "n1"; i++ {
					key = testcluster.Key(c.Nodes[2], "ks", "n2", i)
				}
				o.bump(key)
				if _, err := owner.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				want := o.bump(key)
				if err := writer.Invalidate(t.Context(), key); err != nil {
					t.Fatalf("Invalidate: %v", err)
				}
				v, err := owner.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := testcluster.Version(key, v); got != want || err != nil {
					t.Errorf("after an Invalidate that returned nil the owner serves version %d, %v, want %d", got, err, want)
				}
			})
		})
	}
}
