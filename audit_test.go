package nearcache_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// While all is well the audit asks, and finds nothing, in near copies that live a minute neither.
func TestAuditOfAHealthyCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{
			Load: db.load, NearTTL: time.Minute, Audit: nearcache.AuditConfig{Invalidations: 10, Values: 100},
		})
		for v := range 100 {
			key := fmt.Sprint("k", v%10)
			db.write(key, v)
			if err := caches[v%3].Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			wantEverywhere(t, "after the invalidation", caches, key, v)
		}
		time.Sleep(2 * time.Second)
		var all nearcache.AuditStats
		for i, cache := range caches {
			a := cache.Stats().Audit
			all.Invalidations += a.Invalidations
			all.Values += a.Values
			if a.Old+a.OldTenBounds+a.OldHundred+a.Unanswered+a.Drifted > 0 {
				t.Errorf("node %d: got %+v, want that all is well", i, a)
			}
		}
		if all.Invalidations < 60 || all.Values < 20 {
			t.Errorf("got %+v: nothing was checked", all)
		}
	})
}

// Members that serve what was invalidated are counted, owners and near copies, again and again until it is gone.
func TestAuditFindsOldCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Hour, TTL: time.Hour, Jitter: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		db.write(key, 1)
		wantEverywhere(t, "before", caches, key, 1)
		nearcache.FollowUp(caches[0], key, time.Hour)
		time.Sleep(2 * time.Second)
		if a := caches[0].Stats().Audit; a.Old != 3 {
			t.Errorf("after a Bound: got %+v, want 3 members with the old value", a)
		}
		time.Sleep(30 * time.Second) // asked at 1, 3, 7, 15 and 32 s
		a := caches[0].Stats().Audit
		if a.Old != 9 || a.OldTenBounds != 3 || a.OldHundred != 0 {
			t.Errorf("after 32 s: got %+v, want it to ask again and again", a)
		}
		if err := caches[2].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		c.Network.Isolate(testcluster.Host(2)) // what does not answer is counted, too
		time.Sleep(time.Minute)
		a.Unanswered++
		if got := caches[0].Stats().Audit; got != a {
			t.Errorf("at the end: got %+v, want %+v", got, a)
		}
		c.Network.HealAll()
	})
}

// A change at the origin that nobody announces is found by the comparison of values, by version or by bytes; one that is announced is none.
func TestAuditFindsDrift(t *testing.T) {
	for name, versionOf := range map[string]func(int) uint64{"by value": nil, "by version": func(v int) uint64 { return uint64(v) }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				db := newDatabase(func() time.Duration { return 0 })
				caches := open(t, c, "ks", nearcache.Config[int]{
					Load: db.load, VersionOf: versionOf, Audit: nearcache.AuditConfig{Values: 60},
				})
				key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
				read := func() nearcache.AuditStats {
					for range 50 { // near copies live a second
						if _, err := caches[0].Get(t.Context(), key); err != nil {
							t.Fatal(err)
						}
						time.Sleep(100 * time.Millisecond)
					}
					time.Sleep(2 * time.Second) // for the last check
					return caches[0].Stats().Audit
				}
				for v := range 3 {
					db.write(key, v+1)
					if err := caches[1].Invalidate(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					if a := read(); a.Drifted != 0 || a.Values < 3 {
						t.Errorf("announced changes: got %+v, want values compared and none that drifted", a)
					}
				}
				db.write(key, 9)
				if a := read(); a.Drifted < 2 {
					t.Errorf("a change that nobody announced: got %+v, want that it is seen", a)
				}
			})
		})
	}
}
