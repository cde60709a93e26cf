package nearcache_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// copiedRows is rows with two members that keep each key. It returns the replica of the key.
func copiedRows(t *testing.T) (r *rows, replica int) {
	t.Helper()
	r = newRows(t, 5, "n0", replicas(2))
	replica = standInFor(t, r.c, r.key)
	time.Sleep(5 * time.Second) // who has opened a keyspace lately takes no copies
	r.invalidate(0, 100*time.Millisecond)
	time.Sleep(100 * time.Millisecond)
	wantEverywhere(t, "before", r.caches, r.key, r.value)
	time.Sleep(time.Second)
	if got := r.caches[replica].Stats().Copies; got == 0 {
		t.Fatal("the replica has no copy")
	}
	return r, replica
}

// writer returns a node that is none of these.
func writer(not ...int) int {
	for i := 0; ; i++ {
		if !slices.Contains(not, i) {
			return i
		}
	}
}

// R10: where a key has a replica, both are told. One that is dead, or cut off with its copy, costs what a lost owner costs; and a copy that takes
// the place of a dead owner's entry is not one that was invalidated.
func TestAckWithReplicas(t *testing.T) {
	for name, lose := range map[string]func(r *rows, replica int){
		"the owner is dead":      func(r *rows, _ int) { r.c.Crash(0) },
		"the owner is cut off":   func(r *rows, _ int) { r.c.Network.Isolate(testcluster.Host(0)) },
		"the replica is dead":    func(r *rows, replica int) { r.c.Crash(replica) },
		"the replica is cut off": func(r *rows, replica int) { r.c.Network.Isolate(testcluster.Host(replica)) },
	} {
		in(t, name, func(t *testing.T) {
			r, replica := copiedRows(t)
			by := writer(0, replica)
			lose(r, replica)
			switch name {
			case "the owner is dead":
				r.caches[0] = r.caches[by]
			case "the replica is dead":
				r.caches[replica] = r.caches[by]
			}
			r.invalidate(by, silence+100*time.Millisecond)
			r.fresh(0)
			for range 3 {
				r.invalidate(by, time.Millisecond)
				r.fresh(time.Second + slack)
			}
			r.c.Network.HealAll()
		})
	}
}

// R4, R5: near copies of a minute are served by a member that hears nobody for a near lease at most. The call does not wait for it.
func TestAckWhileAReaderIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows(t, 5, "n0")
		r.c.Network.Isolate(testcluster.Host(1))
		r.invalidate(4, time.Millisecond)
		r.fresh(time.Second + slack)
		r.c.Network.HealAll()
	})
}

// A load that read the old row is under way when its key gets another owner: its value is kept by neither, nor when the former owner gets the key
// back.
func TestAckWhileTheOwnerChanges(t *testing.T) {
	for holder := range 2 { // the former owner itself, another member
		in(t, fmt.Sprint("loaded by n", holder), func(t *testing.T) {
			r := newRows(t, 3, "n0")
			all := r.c.Members()
			r.c.List.Set(all[:2]...)
			time.Sleep(10 * time.Second)
			r.key = keyOwned(t, r.c, "n0", "n0", "n1") // and n2's, when that is a member
			r.write()
			var took atomic.Int64
			took.Store(int64(900 * time.Millisecond)) // within a Bound: what is older is capped besides
			r.db.delay = func() time.Duration { return time.Duration(took.Load()) }
			done := make(chan error, 1)
			go func() {
				_, err := r.caches[holder].Get(t.Context(), r.key)
				done <- err
			}()
			time.Sleep(10 * time.Millisecond)
			took.Store(0)
			r.c.List.Set(all...)
			time.Sleep(500 * time.Millisecond) // all agree again
			r.invalidate(1, 50*time.Millisecond)
			wantEverywhere(t, "after the invalidation", r.caches, r.key, r.value)
			r.c.List.Set(all[:2]...)
			if err := <-done; err != nil {
				t.Error(err)
			}
			r.fresh(0)
		})
	}
}

// R18: with a negative Bound an owner that is cut off serves what it has for its lifetime, near copies of it end as ever, and the call says so.
func TestAckWithoutDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 20 * time.Second
		r := newRows(t, 3, "n0", func(_ int, cfg *nearcache.NodeConfig) { cfg.Bound = -1 })
		r.caches = open(t, r.c, "short", nearcache.Config[int]{Load: r.db.load, NearTTL: time.Minute, TTL: ttl, Jitter: -1})
		r.key = testcluster.Key(r.c.Nodes[0], "short", "n0", 0)
		r.write()
		wantEverywhere(t, "before", r.caches, r.key, r.value)
		loaded := time.Now()
		time.Sleep(time.Second)
		r.c.Network.Isolate(testcluster.Host(0))
		old := r.value
		if e := r.fails(1, time.Second, "n0"); e.StaleFor < ttl {
			t.Errorf("got StaleFor %v, want the lifetime of %v", e.StaleFor, ttl)
		}
		time.Sleep(time.Second + slack)
		for i, want := range []int{old, r.value, r.value} {
			if v, err := r.caches[i].Get(t.Context(), r.key); v != want || err != nil {
				t.Errorf("node %d a Bound later: got %d, %v, want %d", i, v, err, want)
			}
		}
		time.Sleep(ttl - time.Since(loaded) + slack)
		wantEverywhere(t, "after the lifetime", r.caches, r.key, r.value)
		r.c.Network.HealAll()
		time.Sleep(time.Second)
		if err := r.caches[1].Invalidate(t.Context(), r.key); err != nil {
			t.Errorf("when it is back: got %v, want nil", err)
		}
	})
}
