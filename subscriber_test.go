package nearcache_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// A member that does not read what an owner announces costs neither the owner nor anybody else time or memory: the owner forgets what it has kept
// for it, and the member, when it reads again, is told to drop all near copies that it has from there.
func TestASlowSubscriberCostsItselfAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, rounds = 1000, 80 // more than an owner's log keeps
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TTL: time.Hour})
		all := make([]string, keys)
		for i := range all {
			all[i] = testcluster.Key(c.Nodes[0], "ks", "n0", i)
			db.write(all[i], 1)
		}
		for range 2 { // an answer that was waited for may not have been kept
			for _, cache := range caches {
				if _, err := cache.GetMany(t.Context(), all); err != nil {
					t.Fatal(err)
				}
			}
		}
		resets := func(i int) uint64 {
			for _, m := range c.Nodes[i].Stats().Members {
				if m.Member.ID == "n0" {
					return m.Resets
				}
			}
			return 0
		}
		heap, before := testcluster.Heap(), [2]uint64{resets(1), resets(2)}
		c.Network.CutOneWay(testcluster.Host(0), testcluster.Host(1))
		start := time.Now()
		for range rounds {
			if err := caches[0].Invalidate(t.Context(), all...); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, info, err := caches[2].GetInfo(t.Context(), all[0]); info.Tier == nearcache.TierNear || err != nil {
				t.Errorf("the other member: got tier %v, %v, want that its near copy is gone", info.Tier, err)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("%d invalidations took %v, want that nobody waits", rounds*keys, took)
		}
		if grown := int64(testcluster.Heap()) - int64(heap); grown > 20<<20 {
			t.Errorf("the heap has grown by %d bytes, want little more than the log's 8 MiB", grown)
		}
		if _, info, err := caches[1].GetInfo(t.Context(), all[1]); info.Tier != nearcache.TierNear || err != nil {
			t.Errorf("the slow one: got tier %v, %v, want the near copy that it does not know to be old", info.Tier, err)
		}
		c.Network.HealAll()
		synctest.Wait()
		if _, info, err := caches[1].GetInfo(t.Context(), all[1]); info.Tier == nearcache.TierNear || err != nil {
			t.Errorf("the slow one: got tier %v, %v, want that its near copy is gone", info.Tier, err)
		}
		if got := [2]uint64{resets(1) - before[0], resets(2) - before[1]}; got != [2]uint64{1, 0} {
			t.Errorf("the slow member and the other one were reset %v times, want once and never", got)
		}
	})
}
