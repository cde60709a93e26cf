package nearcache_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// An owner that was cut off while keys were invalidated is told when it is back: it does not serve its old values until they expire.
func TestInvalidationsReachAnOwnerThatWasAway(t *testing.T) {
	for name, whole := range map[string]bool{"keys": false, "keyspace": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3, func(_ int, cfg *nearcache.NodeConfig) { cfg.Bound = -1 }) // R18: it has to hear of it
				db := newDatabase(func() time.Duration { return time.Millisecond })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TTL: time.Hour})
				keys := make([]string, 30)
				for i := range keys {
					keys[i] = testcluster.Key(c.Nodes[0], "ks", "n1", i)
					db.write(keys[i], 0)
					wantEverywhere(t, "before", caches, keys[i], 0)
				}
				c.Network.Isolate(testcluster.Host(1))
				time.Sleep(3 * time.Second)
				for i, k := range keys {
					db.bump(k)
					if whole && i < len(keys)-1 {
						continue
					}
					err := caches[0].Invalidate(t.Context(), k)
					if whole {
						err = caches[0].InvalidateAll(t.Context())
					}
					if p, ok := errors.AsType[*nearcache.PartialError](err); !ok {
						t.Fatalf("got %v, want a PartialError", err)
					} else if fmt.Sprint(p.Members) != "[n1]" {
						t.Errorf("got %v, want n1 alone to have missed it", p.Members)
					}
				}
				time.Sleep(3 * time.Second)
				c.Network.HealAll()
				time.Sleep(2 * time.Second)
				for _, k := range keys {
					wantEverywhere(t, "when it is back", caches, k, 1)
				}
				// What was owed is paid: it drops nothing any more.
				before := db.loads.Load()
				time.Sleep(10 * time.Second)
				for _, k := range keys {
					wantEverywhere(t, "later", caches, k, 1)
				}
				if got := db.loads.Load() - before; got != 0 {
					t.Errorf("%d more loads", got)
				}
			})
		})
	}
}
