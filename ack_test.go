package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// rows is a cluster with one key, for the rows of the table of bounds in docs/protocol.md.
type rows struct {
	t      *testing.T
	c      *testcluster.Cluster
	db     *database
	caches []*nearcache.Cache[int]
	key    string
	value  int
}

// silence is how long a member holds something after it was heard for the last time, at most: H, C and what clocks may be off.
const silence = 2*time.Second + 100*time.Millisecond

// newRows starts nodes whose near copies live a minute; the key is owner's. All of them hold it.
func newRows(t *testing.T, nodes int, owner string, opts ...testcluster.Option) *rows {
	r := &rows{t: t, c: testcluster.Bubble(t, nodes, opts...), db: newDatabase(func() time.Duration { return 0 })}
	r.caches = open(t, r.c, "ks", nearcache.Config[int]{Load: r.db.load, NearTTL: time.Minute, TTL: time.Hour, Jitter: -1})
	r.key = testcluster.Key(r.c.Nodes[0], "ks", owner, 0)
	r.write()
	wantEverywhere(t, "before", r.caches, r.key, r.value)
	time.Sleep(time.Second) // what is loaded in the instant of an invalidation is not older than it
	return r
}

func (r *rows) write() {
	r.value++
	r.db.write(r.key, r.value)
}

// invalidate writes a new value and invalidates the key on node i, which has to succeed within a time.
func (r *rows) invalidate(i int, within time.Duration) {
	r.t.Helper()
	r.write()
	start := time.Now()
	if err := r.caches[i].Invalidate(r.t.Context(), r.key); err != nil {
		r.t.Fatalf("got %v after %v, want nil", err, time.Since(start))
	}
	if took := time.Since(start); took > within {
		r.t.Errorf("took %v, want at most %v", took, within)
	}
}

// fails does so where it cannot succeed.
func (r *rows) fails(i int, within time.Duration, members ...string) *nearcache.PartialError {
	r.t.Helper()
	r.write()
	start := time.Now()
	err := r.caches[i].Invalidate(r.t.Context(), r.key)
	partial, ok := errors.AsType[*nearcache.PartialError](err)
	if !ok || !slices.Equal(partial.Members, members) || !slices.Equal(partial.Keys, []string{r.key}) {
		r.t.Fatalf("got %v, want a *PartialError that names %v", err, members)
	}
	if took := time.Since(start); took > within {
		r.t.Errorf("took %v, want at most %v", took, within)
	}
	return partial
}

// fresh reads the key on all nodes: none may have an old value for longer than a bound from now.
func (r *rows) fresh(bound time.Duration) {
	r.t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		old := -1
		for i, cache := range r.caches {
			if v, err := cache.Get(r.t.Context(), r.key); err != nil {
				r.t.Fatalf("node %d: %v", i, err)
			} else if v != r.value {
				old = i
			}
		}
		took := time.Since(start)
		if old >= 0 && took > bound {
			r.t.Fatalf("node %d has an old value %v after the invalidation was confirmed, want %v at most", old, took, bound)
		}
		if took > bound+3*time.Second {
			return
		}
	}
}

// in runs a row in a bubble.
func in(t *testing.T, name string, row func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, row) })
}

// An owner that is cut off, alone or with a member that holds a near copy of a minute: nobody has the old value once an Invalidate has
// returned nil, and that does not take longer than the owner, and what it granted, can live. Later calls wait for nothing.
//
// Case invalidation-2.
func TestAckWhileTheOwnerIsCutOff(t *testing.T) {
	for name, cut := range map[string]func(r *rows){
		"alone": func(r *rows) { r.c.Network.Isolate(testcluster.Host(0)) },
		"with another": func(r *rows) {
			for _, i := range []int{0, 1} {
				for j := 2; j < 5; j++ {
					r.c.Network.Cut(testcluster.Host(i), testcluster.Host(j))
				}
			}
		},
		"dead": func(r *rows) {
			r.c.Crash(0)
			r.caches = slices.Delete(r.caches, 0, 1)
		},
		"gone from the list": func(r *rows) {
			r.c.Network.Isolate(testcluster.Host(0))
			r.c.List.Set(r.c.Members()[1:]...)
			time.Sleep(500 * time.Millisecond) // all that are left agree again
		},
	} {
		in(t, name, func(t *testing.T) {
			r := newRows(t, 5, "n0")
			cut(r)
			writer := len(r.caches) - 1
			r.invalidate(writer, silence+100*time.Millisecond)
			r.fresh(0)
			for range 3 {
				r.invalidate(writer, time.Millisecond)
				r.fresh(time.Second + slack)
			}
			r.c.Network.HealAll()
		})
	}
}

// The owner still hears a member that cannot pass anything on to it: nobody knows what it holds.
func TestAckWhileAMemberHearsTheOwner(t *testing.T) {
	in(t, "both ways", func(t *testing.T) { // told through that member
		r := newRows(t, 5, "n0")
		for j := 2; j < 5; j++ {
			r.c.Network.Cut(testcluster.Host(0), testcluster.Host(j))
		}
		r.invalidate(4, time.Second)
		r.fresh(time.Second + slack)
		r.c.Network.HealAll()
	})
	in(t, "one way", func(t *testing.T) {
		r := newRows(t, 5, "n0")
		for j := 2; j < 5; j++ {
			r.c.Network.Cut(testcluster.Host(0), testcluster.Host(j))
		}
		r.c.Network.CutOneWay(testcluster.Host(1), testcluster.Host(0))
		r.fails(4, 3300*time.Millisecond, "n0")
		r.c.Network.HealAll()
		time.Sleep(2 * time.Second)
		r.fresh(0)
	})
}

// One link is cut: others pass it on.
func TestAckOverACutLink(t *testing.T) {
	for _, nodes := range []int{3, 5} {
		in(t, fmt.Sprint(nodes), func(t *testing.T) {
			r := newRows(t, nodes, "n0")
			r.c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
			r.invalidate(1, 300*time.Millisecond) // one time-out
			r.fresh(time.Second + slack)
			for range 5 {
				r.invalidate(1, 20*time.Millisecond)
				r.fresh(0)
			}
			r.write()
			if err := r.caches[1].InvalidateAll(t.Context()); err != nil {
				t.Errorf("InvalidateAll: %v", err)
			}
			r.fresh(0)
			if stored, err := r.caches[1].Set(t.Context(), r.key, 100); stored || err == nil {
				t.Errorf("Set: got %v, %v, want that the owner cannot be asked", stored, err)
			}
			r.c.Network.HealAll()
		})
	}
}

// A writer that is cut off cannot know who owns its own keys by now.
func TestAckOfAWriterThatIsCutOff(t *testing.T) {
	for _, owner := range []string{"n0", "n4"} {
		in(t, owner, func(t *testing.T) {
			r := newRows(t, 5, owner)
			r.c.Network.Isolate(testcluster.Host(4))
			others := []string{"n0", "n1", "n2", "n3", "n4"}
			time.Sleep(2 * time.Second)
			r.fails(4, 500*time.Millisecond, others...)
			if v, err := r.caches[4].Get(t.Context(), r.key); v != r.value || err != nil {
				t.Errorf("the caller got %d, %v, want its own view", v, err)
			}
			r.c.Network.HealAll()
			time.Sleep(2 * time.Second) // what is owed is told
			r.fresh(0)
			r.invalidate(4, 100*time.Millisecond)
			r.fresh(0)
		})
	}
}

// Nor does one whose peers have all left: they may be back where it does not reach them.
func TestAckOfAMemberThatIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows(t, 3, "n0")
		for _, n := range r.c.Nodes[1:] {
			if err := n.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r.caches = r.caches[:1]
		time.Sleep(2 * time.Second)
		r.fails(0, 500*time.Millisecond, "n0")
	})
}

// Two members: neither has a majority without the other, so that a dead one is told of by an error, at once, until the list says that it is
// gone. On a list that never changes the other one goes on owning what it owns.
func TestAckOfTwoMembers(t *testing.T) {
	in(t, "a list that may change", func(t *testing.T) {
		r := newRows(t, 2, "n0")
		r.c.Crash(0)
		r.caches = r.caches[1:]
		r.fails(0, 500*time.Millisecond, "n0")
		time.Sleep(time.Second)
		r.fails(0, 500*time.Millisecond, "n0", "n1") // n1 is no owner either
		r.c.List.Set(r.c.Members()[1:]...)
		time.Sleep(6 * time.Second)
		r.invalidate(0, 0)
		r.fresh(0)
	})
	in(t, "a fixed list", func(t *testing.T) {
		addrs := []string{testcluster.Host(0) + ":7946", testcluster.Host(1) + ":7946"}
		static := peers.Static(addrs...)
		r := newRows(t, 2, addrs[0], func(_ int, cfg *nearcache.NodeConfig) { cfg.Discovery, cfg.ID = static, "" })
		r.c.Crash(0)
		r.caches = r.caches[1:]
		for range 2 {
			r.fails(0, 500*time.Millisecond, addrs[0])
			time.Sleep(time.Second)
		}
		r.key = testcluster.Key(r.c.Nodes[1], "ks", addrs[1], 0)
		r.invalidate(0, 0)
		r.fresh(0)
	})
}

// A member that has left, or restarts, holds nothing: nobody waits for it, or for longer than its restart takes.
func TestAckAfterALeave(t *testing.T) {
	in(t, "leave", func(t *testing.T) {
		r := newRows(t, 5, "n0")
		if err := r.c.Nodes[0].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.caches = r.caches[1:]
		r.invalidate(3, time.Millisecond)
		r.fresh(slack)
		r.c.List.Set(r.c.Members()[1:]...)
		r.invalidate(3, time.Millisecond)
		r.fresh(0)
	})
	in(t, "restart", func(t *testing.T) {
		r := newRows(t, 5, "n0")
		r.c.Crash(0)
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(300 * time.Millisecond)
			r.c.Restart(0)
		})
		r.invalidate(4, 1500*time.Millisecond)
		wg.Wait()
		r.caches[0] = open(t, &testcluster.Cluster{Nodes: r.c.Nodes[:1]}, "ks", nearcache.Config[int]{Load: r.db.load})[0]
		r.fresh(time.Second + slack) // near copies of who is not connected to the new one yet
	})
}

// Members that take different members for the owner: all of them are told.
func TestAckWhileMembersDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := make([]*peers.List, 5)
		var all []peers.Member
		for i := range lists {
			lists[i] = peers.NewList()
			all = append(all, peers.Member{ID: fmt.Sprint("n", i), Addr: testcluster.Host(i) + ":7946"})
		}
		set := func(members ...peers.Member) {
			for _, l := range lists {
				l.Set(members...)
			}
		}
		set(all...)
		r := newRows(t, 5, "n0", func(i int, cfg *nearcache.NodeConfig) { cfg.Discovery = lists[i] })
		// n0 is removed, alive, and everybody but n4 and itself knows.
		for _, l := range lists[1:4] {
			l.Set(all[1:]...)
		}
		for minute := time.Now(); time.Since(minute) < time.Minute; time.Sleep(3 * time.Second) {
			for writer := range r.caches {
				r.invalidate(writer, 100*time.Millisecond)
				time.Sleep(50 * time.Millisecond)
				r.fresh(0)
			}
		}
		set(all[1:]...)
		r.caches = r.caches[1:]
		for range 3 {
			r.invalidate(3, 100*time.Millisecond)
			r.fresh(0)
		}
	})
}

// A member that is on the list no more, but alive, and does not know: it is told for a window, and in doubt.
func TestAckOfAMemberThatIsUnlisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := peers.NewList()
		r := newRows(t, 4, "n0", func(i int, cfg *nearcache.NodeConfig) {
			if i == 0 {
				var all []peers.Member
				for i := range 4 {
					all = append(all, peers.Member{ID: fmt.Sprint("n", i), Addr: testcluster.Host(i) + ":7946"})
				}
				own.Set(all...)
				cfg.Discovery = own
			}
		})
		r.c.List.Set(r.c.Members()[1:]...)
		time.Sleep(500 * time.Millisecond) // all others agree again, and what it holds has half a second left
		r.invalidate(3, 50*time.Millisecond)
		time.Sleep(50 * time.Millisecond)
		r.fresh(0)
		for range 4 {
			r.invalidate(3, 50*time.Millisecond)
			r.fresh(time.Second + slack)
			time.Sleep(3 * time.Second)
		}
	})
}

// A thousand writers a second to an owner that dies: they wait together, and later ones not at all.
func TestManyWritersToADeadOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows(t, 5, "n0")
		keys := make([]string, 4000)
		for i := range keys {
			keys[i] = testcluster.Key(r.c.Nodes[1], "ks", "n0", i)
		}
		base := runtime.NumGoroutine()
		r.c.Crash(0)
		dead := time.Now()
		var mu sync.Mutex
		most, callers, last := 0, 0, time.Duration(0)
		var wg sync.WaitGroup
		for i, k := range keys {
			wg.Go(func() {
				mu.Lock()
				callers++
				most = max(most, runtime.NumGoroutine()-base-callers)
				mu.Unlock()
				start := time.Now()
				if err := r.caches[1+i%4].Invalidate(t.Context(), k); err != nil {
					t.Errorf("%v after the death: %v", time.Since(dead), err)
				}
				mu.Lock()
				callers--
				if took := time.Since(start); took > time.Millisecond {
					last = max(last, time.Since(dead))
				}
				mu.Unlock()
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		t.Logf("the last one to wait returned %v after the death; %d goroutines beside the callers", last, most)
		if last > silence+100*time.Millisecond {
			t.Errorf("a call waited until %v after the death, want %v at most", last, silence)
		}
		if most > 100 {
			t.Errorf("%d goroutines beside the callers, want a few for each member", most)
		}
	})
}

// A context that ends ends the wait, and what is owed is told all the same.
func TestAckWithAContextThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows(t, 3, "n0")
		r.c.Network.Isolate(testcluster.Host(0))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r.write()
		start := time.Now()
		var partial *nearcache.PartialError
		if err := r.caches[1].Invalidate(ctx, r.key); !errors.As(err, &partial) || !slices.Equal(partial.Members, []string{"n0"}) {
			t.Errorf("got %v, want a *PartialError that names n0", err)
		}
		if took := time.Since(start); took > 110*time.Millisecond {
			t.Errorf("took %v, want the context's 100ms", took)
		}
		time.Sleep(time.Second)
		r.c.Network.HealAll()
		time.Sleep(time.Second)
		r.fresh(0)
	})
}

// A call that waits ends with its node.
func TestAckWhileTheWriterCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows(t, 3, "n0")
		r.c.Network.Isolate(testcluster.Host(0))
		done := make(chan error, 1)
		go func() { done <- r.caches[1].Invalidate(t.Context(), r.key) }()
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		if err := r.c.Nodes[1].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var partial *nearcache.PartialError
		if err := <-done; !errors.As(err, &partial) || !errors.Is(err, nearcache.ErrClosed) {
			t.Errorf("got %v, want a *PartialError because the node is closed", err)
		}
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		r.c.Network.HealAll()
	})
}
