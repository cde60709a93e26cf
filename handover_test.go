package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// reading is a cluster whose members read random keys all the time, and invalidate some, while their list changes. Each member has a
// discovery of its own. Every value that is read is checked: it must not be one that was invalidated more than a Bound before.
type reading struct {
	t     *testing.T
	c     *testcluster.Cluster
	lists []*peers.List
	keys  []string
	cfg   nearcache.Config[string]
	every time.Duration // between two reads on a member
	write time.Duration // between two invalidations on a member; 0: there are none
	rows  []atomic.Int64
	loads atomic.Int64
	slow  atomic.Int64 // loads take so long
	seeds atomic.Uint64
	wg    sync.WaitGroup
	end   chan struct{}

	mu    sync.Mutex // guards what follows
	acked [][]confirmed
	worst time.Duration
	nils  int
}

// confirmed is an invalidation that returned nil.
type confirmed struct {
	version int
	at      time.Time
}

// newReading starts n members and loads all keys. Of one more there is the list already.
func newReading(t *testing.T, n, keys int, every time.Duration, opts ...testcluster.Option) *reading {
	t.Helper()
	r := &reading{
		t: t, every: every, end: make(chan struct{}), rows: make([]atomic.Int64, keys), acked: make([][]confirmed, keys),
		cfg: nearcache.Config[string]{TTL: time.Hour, Jitter: -1, NearTTL: -1},
	}
	r.slow.Store(int64(2 * time.Millisecond))
	for range n + 1 {
		r.lists = append(r.lists, peers.NewList())
	}
	for i := range keys {
		r.keys = append(r.keys, fmt.Sprint("k", i))
	}
	opts = append([]testcluster.Option{func(i int, cfg *nearcache.NodeConfig) { cfg.Discovery = r.lists[i] }}, opts...)
	var all []peers.Member
	for i := range n {
		all = append(all, peers.Member{ID: fmt.Sprint("n", i), Addr: testcluster.Host(i) + ":7946"})
	}
	r.wg.Go(func() { // Bubble tells its own list, which nobody follows, and waits
		time.Sleep(10 * time.Millisecond)
		r.set(all...)
	})
	r.c = testcluster.Bubble(t, n, opts...)
	return r
}

// start opens the keyspace everywhere, loads all keys, and begins to read.
func (r *reading) start() {
	var caches []*nearcache.Cache[string]
	for _, node := range r.c.Nodes {
		caches = append(caches, r.open(node))
	}
	for i := range r.keys {
		r.get(caches[0], i)
	}
	for _, cache := range caches {
		r.read(cache)
	}
	time.Sleep(6 * time.Second)
	r.taken()
}

// set tells all members the list at once.
func (r *reading) set(all ...peers.Member) {
	for _, l := range r.lists {
		l.Set(all...)
	}
}

// spread tells the members the list one after the other, the last one after d.
func (r *reading) spread(d time.Duration, all ...peers.Member) {
	for i, k := range r.random().Perm(len(r.lists)) {
		if i > 0 {
			time.Sleep(d / time.Duration(len(r.lists)-1))
		}
		r.lists[k].Set(all...)
	}
}

func (r *reading) random() *rand.Rand { return rand.New(rand.NewPCG(r.seeds.Add(1), 1)) }

func (r *reading) open(node *nearcache.Node) *nearcache.Cache[string] {
	r.t.Helper()
	cfg := r.cfg
	cfg.Load = func(_ context.Context, key string) (string, error) {
		r.loads.Add(1)
		var i int
		_, _ = fmt.Sscanf(key, "k%d", &i)
		version := r.rows[i].Load()
		time.Sleep(time.Duration(r.slow.Load()))
		return testcluster.Value(key, int(version)), nil
	}
	cache, err := nearcache.New(node, "ks", cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return cache
}

// get reads a key and checks what comes. False: the node is closed.
func (r *reading) get(cache *nearcache.Cache[string], i int) bool {
	began := time.Now()
	v, err := cache.Get(r.t.Context(), r.keys[i])
	if errors.Is(err, nearcache.ErrClosed) {
		return false
	}
	version, bad := testcluster.Version(r.keys[i], v)
	if err != nil || bad != nil {
		r.t.Errorf("%s: got %v, %v", r.keys[i], err, bad)
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.acked[i] {
		if a.version > version {
			r.worst = max(r.worst, began.Sub(a.at))
			break // the others came later
		}
	}
	return true
}

// invalidate writes a row and tells the cache.
func (r *reading) invalidate(cache *nearcache.Cache[string], i int) error {
	version := int(r.rows[i].Add(1))
	err := cache.Invalidate(r.t.Context(), r.keys[i])
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.acked[i] = append(r.acked[i], confirmed{version, time.Now()})
		r.nils++
	}
	return err
}

// read reads random keys, and writes some, until halt, or until the node is closed.
func (r *reading) read(cache *nearcache.Cache[string]) {
	rnd := r.random()
	r.wg.Go(func() {
		for !r.over(r.every) {
			if !r.get(cache, rnd.IntN(len(r.keys))) {
				return
			}
		}
	})
	if r.write == 0 {
		return
	}
	other := r.random()
	r.wg.Go(func() {
		for !r.over(r.write) {
			if errors.Is(r.invalidate(cache, other.IntN(len(r.keys))), nearcache.ErrClosed) {
				return
			}
		}
	})
}

// over waits for d, and tells whether it was halted.
func (r *reading) over(d time.Duration) bool {
	select {
	case <-r.end:
		return true
	case <-time.After(d):
		return false
	}
}

// halt ends the reading.
func (r *reading) halt() {
	close(r.end)
	r.wg.Wait()
	const slack = 50 * time.Millisecond
	if r.worst > time.Second+slack {
		r.t.Errorf("a value was read %v after it was invalidated, want a Bound at most", r.worst)
	}
}

// confirmed returns the number of invalidations that were.
func (r *reading) confirmed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nils
}

// taken returns the loads since the last time.
func (r *reading) taken() int { return int(r.loads.Swap(0)) }

// owned returns how many keys a member owns.
func (r *reading) owned(node *nearcache.Node, id string) (n int) {
	for _, k := range r.keys {
		if node.Owner("ks", k).ID == id {
			n++
		}
	}
	return n
}

// join starts one more node and tells the members, within spread.
func (r *reading) join(spread time.Duration) *nearcache.Cache[string] {
	r.c.Nodes = append(r.c.Nodes, r.c.Start(len(r.c.Nodes)))
	node := r.c.Nodes[len(r.c.Nodes)-1]
	cache := r.open(node)
	r.spread(spread, r.c.Members()...)
	r.read(cache)
	return cache
}

// close stops member i, and tells the others after late, within spread.
func (r *reading) close(i int, late, spread time.Duration) {
	r.t.Helper()
	if err := r.c.Nodes[i].Close(r.t.Context()); err != nil {
		r.t.Error(err)
	}
	r.c.Nodes[i] = nil
	time.Sleep(late)
	r.spread(spread, r.c.Members()...)
}

// restart closes member i, and lets it come back, on the same address. It stays on the list, or is off it for two seconds.
func (r *reading) restart(i int, listed bool) {
	if listed {
		if err := r.c.Nodes[i].Close(r.t.Context()); err != nil {
			r.t.Error(err)
		}
		time.Sleep(2 * time.Second)
	} else {
		r.close(i, time.Second, 0)
		time.Sleep(time.Second)
	}
	r.c.Nodes[i] = r.c.Start(i)
	cache := r.open(r.c.Nodes[i])
	if !listed {
		time.Sleep(time.Second)
		r.spread(0, r.c.Members()...)
	}
	r.read(cache)
}

// Case L2-13. The eleventh member of ten under load: what moves to it comes from its former owners.
func TestAJoiningMemberCostsNoLoads(t *testing.T) {
	for name, tt := range map[string]struct {
		spread, every time.Duration
	}{
		"at once":     {0, 5 * time.Millisecond},
		"one by one":  {3 * time.Second, 5 * time.Millisecond},
		"seldom read": {0, 50 * time.Millisecond},
	} {
		if raceEnabled && name != "at once" {
			continue // the counts are the same, and take long
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReading(t, 10, 2000, tt.every)
				r.start()
				joined := r.join(tt.spread)
				time.Sleep(30 * time.Second)
				r.halt()
				moved, loads := r.owned(r.c.Nodes[0], "n10"), r.taken()
				t.Logf("%d of %d keys moved, %d loads, %d inherited", moved, len(r.keys), loads, joined.Stats().Inherited)
				if loads*50 > moved {
					t.Errorf("got %d loads for %d keys that moved, want less than 2 %%", loads, moved)
				}
			})
		})
	}
}

// A member that is closed gives what it has to those who own it next.
func TestALeavingMemberCostsNoLoads(t *testing.T) {
	for name, tt := range map[string]struct {
		late, spread, every time.Duration
	}{
		"at once":     {0, 0, 5 * time.Millisecond},
		"late":        {2 * time.Second, 0, 5 * time.Millisecond},
		"one by one":  {500 * time.Millisecond, 3 * time.Second, 5 * time.Millisecond},
		"seldom read": {time.Second, 0, 50 * time.Millisecond},
	} {
		if raceEnabled && name != "at once" {
			continue // the counts are the same, and take long
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReading(t, 10, 2000, tt.every)
				r.start()
				lost := r.owned(r.c.Nodes[0], "n3")
				r.close(3, tt.late, tt.spread)
				time.Sleep(30 * time.Second)
				r.halt()
				loads := r.taken()
				t.Logf("%d of %d keys moved, %d loads", lost, len(r.keys), loads)
				if loads*50 > lost {
					t.Errorf("got %d loads for %d keys that moved, want less than 2 %%", loads, lost)
				}
			})
		})
	}
}

// A crash costs one load for each key that is asked for at its stand-in, within a Bound.
func TestACrashCostsOneLoadPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReading(t, 10, 2000, 5*time.Millisecond)
		r.start()
		lost := r.owned(r.c.Nodes[0], "n3")
		r.c.Crash(3)
		time.Sleep(900 * time.Millisecond)
		first := r.taken()
		if first > lost || first < lost/4 {
			t.Errorf("got %d loads for %d keys that were lost, want one each for those that were asked for", first, lost)
		}
		r.c.Nodes[3] = nil
		r.spread(0, r.c.Members()...)
		time.Sleep(30 * time.Second)
		r.halt()
		t.Logf("%d of %d keys moved, %d loads in the first second, %d afterwards", lost, len(r.keys), first, r.taken())
	})
}

// Half of the members go at one moment. Closed together they give what they have to each other, as often as not: it is loaded once. Where the list
// follows later, as after crashes, the rest hear no majority, and what is asked for is loaded once a Bound until they are sure again.
func TestAHalvedFleet(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(c *testcluster.Cluster, i int) error
		late time.Duration // until the list follows
		most float64       // loads for each key that moves
	}{
		"closed":         {func(c *testcluster.Cluster, i int) error { return c.Nodes[i].Close(context.Background()) }, 0, 1.5},
		"closed, listed": {func(c *testcluster.Cluster, i int) error { return c.Nodes[i].Close(context.Background()) }, 2 * time.Second, 8},
		"crashed":        {func(c *testcluster.Cluster, i int) error { c.Crash(i); return nil }, 2 * time.Second, 8},
	} {
		if raceEnabled && name != "closed" {
			continue // as above
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReading(t, 10, 1000, 10*time.Millisecond)
				r.start()
				lost := 0
				var wg sync.WaitGroup
				for i := 5; i < 10; i++ {
					lost += r.owned(r.c.Nodes[0], r.c.Nodes[i].ID())
					wg.Go(func() {
						if err := tt.end(r.c, i); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				for i := 5; i < 10; i++ {
					r.c.Nodes[i] = nil
				}
				time.Sleep(tt.late)
				r.spread(0, r.c.Members()...)
				time.Sleep(30 * time.Second)
				r.halt()
				loads := r.taken()
				t.Logf("%d of %d keys moved, %d loads", lost, len(r.keys), loads)
				if float64(loads) > tt.most*float64(lost) {
					t.Errorf("got %d loads for %d keys that moved, want %v for each at most", loads, lost, tt.most)
				}
			})
		})
	}
}

// Case discovery-5. Members are restarted one after the other, each on its address. What it costs grows with the Bound: a member vouches for
// what it held only when it was not in doubt for five of them.
func TestRollingRestart(t *testing.T) {
	for _, tt := range []struct {
		bound, between time.Duration
		listed         bool
		most           int
	}{
		{time.Second, 10 * time.Second, false, 50},
		{time.Second, 10 * time.Second, true, 400},
		{time.Second, 2 * time.Second, false, 50},
		{time.Second, 2 * time.Second, true, 500},
		{2 * time.Second, 10 * time.Second, false, 50},
		{5 * time.Second, 10 * time.Second, false, 1000},
		{5 * time.Second, 10 * time.Second, true, 1000},
	} {
		if raceEnabled && (tt.bound > time.Second || tt.between > 2*time.Second || !tt.listed) {
			continue // as above
		}
		t.Run(fmt.Sprint(tt.bound, " ", tt.between, " ", tt.listed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReading(t, 10, 1000, 10*time.Millisecond, func(_ int, cfg *nearcache.NodeConfig) { cfg.Bound = tt.bound })
				r.start()
				for i := range r.c.Nodes {
					r.restart(i, tt.listed)
					time.Sleep(tt.between)
				}
				time.Sleep(30 * time.Second)
				r.halt()
				loads := r.taken()
				t.Logf("%d loads of %d keys", loads, len(r.keys))
				if loads > tt.most {
					t.Errorf("got %d loads, want %d at most", loads, tt.most)
				}
			})
		})
	}
}

// Whatever way values take from owner to owner, what was invalidated is gone within a Bound.
func TestNothingOldIsInherited(t *testing.T) {
	for name, change := range map[string]func(r *reading){
		"join":  func(r *reading) { r.join(3 * time.Second) },
		"leave": func(r *reading) { r.close(3, 500*time.Millisecond, 3*time.Second) },
		"restart": func(r *reading) {
			for i := range 4 {
				r.restart(i, i%2 == 0)
				time.Sleep(time.Second)
			}
		},
		"back and forth": func(r *reading) {
			all := r.c.Members()
			for range 6 {
				r.spread(time.Second, all[1:]...)
				r.spread(time.Second, all...)
				r.spread(time.Second, all[:5]...)
				r.spread(time.Second, all...)
			}
		},
	} {
		for _, near := range []time.Duration{-1, time.Minute} {
			if raceEnabled && (near < 0 || name == "leave" || name == "back and forth") {
				continue // as above
			}
			t.Run(fmt.Sprint(name, ", near ", near), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newReading(t, 6, 300, 4*time.Millisecond)
					r.write, r.cfg.NearTTL = 50*time.Millisecond, near
					r.start()
					for range 2 {
						change(r)
						if slices.Contains(r.c.Nodes, nil) || len(r.c.Nodes) > 6 {
							break
						}
					}
					time.Sleep(10 * time.Second)
					r.halt()
					t.Logf("%d invalidations, the worst read %v late, %d loads", r.nils, r.worst, r.taken())
				})
			})
		}
	}
}

// Case discovery-4. Discovery loses each member in turn for two seconds, while its process goes on: its keys go to others and come back
// without loads, and with nothing that was invalidated meanwhile.
func TestMembersThatBlinkKeepWhatTheyHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReading(t, 5, 2000, 5*time.Millisecond, func(_ int, cfg *nearcache.NodeConfig) {
			cfg.Discovery = peers.Func(cfg.Discovery.Watch) // not the program's own list, which is believed at once
		})
		r.write = 500 * time.Millisecond
		r.start()
		all := r.c.Members()
		written := r.confirmed()
		for i := range all {
			r.spread(0, slices.Concat(all[:i], all[i+1:])...)
			time.Sleep(2 * time.Second)
			r.spread(0, all...)
			time.Sleep(4 * time.Second)
		}
		r.halt()
		loads := r.taken() - (r.nils - written) // what is invalidated is loaded again
		t.Logf("%d loads of %d keys, beside one for each of %d invalidations", loads, len(r.keys), r.nils-written)
		if loads*20 > len(r.keys) {
			t.Errorf("got %d loads of %d keys, want at most 5 %%", loads, len(r.keys))
		}
	})
}
