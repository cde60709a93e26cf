package nearcache_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// replicas gives every member the same number of them.
func replicas(n int) testcluster.Option {
	return func(_ int, cfg *nearcache.NodeConfig) { cfg.Replicas = n }
}

// zoned puts members into zones, in turn.
func zoned(all []peers.Member, zones int) []peers.Member {
	for i := range all {
		all[i].Zone = fmt.Sprint("z", i%zones)
	}
	return all
}

// Where owners have replicas a crash costs no load: not while the member that died is on the list, not when it is off it, not when it comes back.
func TestACrashCostsNoLoadsWithReplicas(t *testing.T) {
	for name, tt := range map[string]struct{ nodes, replicas, zones int }{
		"five, two":              {5, 2, 1},
		"five, three":            {5, 3, 1},
		"six in three zones":     {6, 2, 3},
		"six in two zones":       {6, 2, 2},
		"three, more than there": {3, 5, 1},
	} {
		if raceEnabled && name != "five, two" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReading(t, tt.nodes, 500, 5*time.Millisecond, replicas(tt.replicas))
				r.set(zoned(r.c.Members(), tt.zones)...)
				r.start()
				lost := r.owned(r.c.Nodes[0], "n2")
				r.c.Crash(2)
				synctest.Wait()
				r.taken() // what the process that dies still loads when it has lost the others
				time.Sleep(10 * time.Second)
				if got := r.taken(); got > 0 || lost == 0 {
					t.Errorf("got %d loads for %d keys of the dead owner, want none", got, lost)
				}
				all := zoned(r.c.Members(), tt.zones)
				r.set(append(all[:2:2], all[3:]...)...)
				time.Sleep(10 * time.Second)
				if got := r.taken(); got > 0 {
					t.Errorf("got %d loads for %d keys that have another owner, want none", got, lost)
				}
				r.read(r.open(r.c.Restart(2)))
				time.Sleep(time.Second)
				r.set(all...)
				time.Sleep(10 * time.Second)
				if got := r.taken(); got > 0 {
					t.Errorf("got %d loads for %d keys that have their owner back, want none", got, lost)
				}
				r.halt()
			})
		})
	}
}

// copied is a cluster of which n0 owns keys, and whose members have read them from replicas on.
type copied struct {
	*testing.T
	c      *testcluster.Cluster
	origin *origin
	cfg    nearcache.Config[string]
	caches []*nearcache.Cache[string]
	keys   []string
}

// newCopied starts a cluster whose member n0 owns count keys, all of them loaded and copied.
func newCopied(t *testing.T, nodes, count int, cfg nearcache.Config[string], opts ...testcluster.Option) *copied {
	t.Helper()
	x := &copied{T: t, c: testcluster.Bubble(t, nodes, opts...), origin: newOrigin(func() time.Duration { return time.Millisecond }), cfg: cfg}
	x.cfg.TTL, x.cfg.NearTTL = time.Hour, -1
	x.caches = x.origin.openOn(t, x.c, x.cfg)
	time.Sleep(5 * time.Second) // who has opened a keyspace lately takes no copies
	for i := range count {
		x.keys = append(x.keys, testcluster.Key(x.c.Nodes[0], "ks", "n0", i))
	}
	x.read("loaded", 0)
	time.Sleep(2 * time.Second)
	x.origin.total()
	return x
}

// read reads all keys on all nodes that run, and wants a version of each.
func (x *copied) read(when string, version int) {
	x.Helper()
	for i, cache := range x.caches {
		if cache == nil {
			continue
		}
		for _, key := range x.keys {
			if v, err := cache.Get(x.Context(), key); err != nil || v != testcluster.Value(key, version) {
				x.Errorf("%s: n%d reads %q of %s, %v, want version %d", when, i, v, key, err, version)
			}
		}
	}
}

// crash ends a member, and all reads of the others cost so many loads at most.
func (x *copied) crash(i, version, loads int) {
	x.Helper()
	x.c.Crash(i)
	x.caches[i] = nil
	x.origin.total()
	x.read("after the crash", version)
	if got := x.origin.total(); got > loads {
		x.Errorf("got %d loads of %d keys after the crash, want %d at most", got, len(x.keys), loads)
	}
}

// restart brings a member back, which the others had on their list all the time.
func (x *copied) restart(i int) {
	x.Helper()
	x.c.Restart(i)
	x.caches[i] = x.origin.openAt(x.T, x.c, i, x.cfg)
	x.c.Ready()
	x.c.Warm()
}

// Whatever changes a value ends the copies of it, before the call returns.
func TestReplicasHearOfChanges(t *testing.T) {
	tagged := func(key, _ string) []string { return []string{"tag of " + key} }
	for name, change := range map[string]func(x *copied, key string) error{
		"Invalidate":    func(x *copied, key string) error { return x.caches[1].Invalidate(x.Context(), key) },
		"Expire":        func(x *copied, key string) error { return x.caches[1].Expire(x.Context(), key) },
		"InvalidateAll": func(x *copied, _ string) error { return x.caches[1].InvalidateAll(x.Context()) },
		"InvalidateTag": func(x *copied, key string) error { return x.caches[1].InvalidateTag(x.Context(), tagged(key, "")...) },
		"Set": func(x *copied, key string) error {
			_, err := x.caches[1].Set(x.Context(), key, testcluster.Value(key, 1))
			return err
		},
		"Update": func(x *copied, key string) error {
			return x.caches[1].Update(x.Context(), []string{key}, func(context.Context) error { return nil })
		},
		"by the owner": func(x *copied, key string) error { return x.caches[0].Invalidate(x.Context(), key) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newCopied(t, 4, 5, nearcache.Config[string]{TagsOf: tagged}, replicas(2))
				for _, key := range x.keys {
					x.origin.bump(key)
					if err := change(x, key); err != nil {
						t.Fatal(err)
					}
				}
				if name == "Expire" { // the replica has a stale copy, which is served once, and marked so
					x.c.Crash(0)
					for _, key := range x.keys {
						_, _ = x.caches[1].Get(t.Context(), key)
					}
					time.Sleep(100 * time.Millisecond)
					x.caches[0] = nil
					x.read("after the crash", 1)
					return
				}
				x.crash(0, 1, 20)
			})
		})
	}
}

// The invalidation of a tag ends the copies of values that have it, and no others; what a Set stored with a version is copied.
func TestCopiesHaveTagsAndVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := nearcache.Config[string]{
			TagsOf:    func(key, _ string) []string { return []string{"all", key} },
			VersionOf: func(v string) uint64 { return uint64(len(v)) },
		}
		x := newCopied(t, 4, 5, cfg, replicas(2))
		if err := x.caches[1].InvalidateTag(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		for _, key := range x.keys {
			for version := range 11 { // the last one is longer
				x.origin.bump(key)
				if version < 9 {
					continue
				}
				if _, err := x.caches[1].Set(t.Context(), key, testcluster.Value(key, version+1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(2 * time.Second)
		x.crash(0, 11, 0)
		for _, key := range x.keys {
			x.origin.bump(key)
		}
		if err := x.caches[1].InvalidateTag(t.Context(), "all"); err != nil {
			t.Fatal(err)
		}
		x.read("after the tag", 12)
	})
}

// A replica that starts anew is given what it had, also when it stays on the list.
func TestAReplicaThatRestartsIsGivenCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newCopied(t, 3, 100, nearcache.Config[string]{}, replicas(2))
		for _, i := range []int{1, 2} {
			x.crash(i, 0, 0)
			time.Sleep(time.Second)
			x.restart(i)
			time.Sleep(7 * time.Second)
		}
		x.crash(0, 0, 0)
	})
}

// While members differ in their Replicas nobody keeps copies, and all values are as fresh as ever. When they have the same, what is there is
// copied.
func TestMembersWithDifferentReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		different := true
		x := newCopied(t, 3, 50, nearcache.Config[string]{}, func(i int, cfg *nearcache.NodeConfig) {
			if cfg.Replicas = 2; i == 2 && different {
				cfg.Replicas = 1
			}
		})
		for i, cache := range x.caches {
			if got := cache.Stats().Copies; got > 0 {
				t.Errorf("n%d took %d copies, want none", i, got)
			}
		}
		different = false
		x.crash(2, 0, 0)
		time.Sleep(time.Second)
		x.restart(2)
		time.Sleep(7 * time.Second)
		if got := x.caches[1].Stats().Copies + x.caches[2].Stats().Copies; got != 50 {
			t.Errorf("got %d copies once the members have the same Replicas, want 50", got)
		}
		x.crash(0, 0, 0)
	})
}

// Copies are entries that count: MaxBytes bounds both together.
func TestCopiesCountInMaxBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 256 << 10
		x := newCopied(t, 3, 3000, nearcache.Config[string]{}, replicas(3), func(_ int, cfg *nearcache.NodeConfig) { cfg.MaxBytes = budget })
		for i, cache := range x.caches {
			s := cache.Stats()
			if i > 0 && s.Copies < 2000 || s.ShardBytes > budget*11/10 || s.ShardBytes < budget/2 {
				t.Errorf("n%d has %d bytes after %d copies, want %d at most", i, s.ShardBytes, s.Copies, budget)
			}
		}
	})
}

// Copies end when members differ in their rings for nearly as long as those who tell remember the past, and come back when they do not.
func TestCopiesEndWhileMembersDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := peers.NewList() // of n2
		x := newCopied(t, 3, 30, nearcache.Config[string]{}, replicas(3), func(i int, cfg *nearcache.NodeConfig) {
			if i == 2 {
				cfg.Discovery = other
				other.Set(firstMembers(3)...)
			}
		})
		copies := func() int64 { return x.caches[1].Stats().ShardEntries }
		if got := copies(); got != 30 {
			t.Fatalf("n1 has %d copies, want 30", got)
		}
		other.Set(append(firstMembers(3), peers.Member{ID: "n9", Addr: testcluster.Host(9) + ":7946"})...)
		time.Sleep(3 * time.Second)
		if got := copies(); got != 30 {
			t.Errorf("n1 has %d copies a moment later, want 30", got)
		}
		time.Sleep(3 * time.Second)
		if got := copies(); got != 0 {
			t.Errorf("n1 has %d copies while n2 goes by another list, want none", got)
		}
		other.Set(firstMembers(3)...)
		time.Sleep(10 * time.Second)
		if got := copies(); got != 30 {
			t.Errorf("n1 has %d copies once the lists agree, want 30", got)
		}
	})
}

// firstMembers are the first n members of a Bubble.
func firstMembers(n int) (all []peers.Member) {
	for i := range n {
		all = append(all, peers.Member{ID: fmt.Sprint("n", i), Addr: testcluster.Host(i) + ":7946"})
	}
	return all
}
