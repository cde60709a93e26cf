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

// storm is a cluster in fake time, faults by chance, and what was promised about its keys.
type storm struct {
	t      *testing.T
	c      *testcluster.Cluster
	cfg    nearcache.Config[string]
	origin *origin
	keys   []string

	mu     sync.Mutex
	caches []*nearcache.Cache[string] // nil: the node is down
	acks   map[string][]ack
	own    map[ownKey]int // versions that the node itself invalidated with nil
	seen   sight
}

type ownKey struct {
	key   string
	cache *nearcache.Cache[string]
}

// ack is an invalidation that returned nil.
type ack struct {
	version int
	at      time.Time
}

// sight is what the readers saw.
type sight struct {
	reads, acked, partial int
	errors                map[string]int
	worst                 time.Duration // longest that a value was read after its invalidation had been acknowledged
	slowest               time.Duration
}

// slack is what a bound may be exceeded by: the coarse clock's lag.
const slack = 50 * time.Millisecond

func newStorm(t *testing.T, nodes, copies int, cfg nearcache.Config[string], delay func() time.Duration) *storm {
	s := &storm{t: t, cfg: cfg, origin: newOrigin(delay), acks: make(map[string][]ack), own: make(map[ownKey]int)}
	s.seen.errors = make(map[string]int)
	s.c = testcluster.Bubble(t, nodes, replicas(copies))
	s.caches = s.origin.openOn(t, s.c, cfg)
	for i := range 20 {
		s.keys = append(s.keys, fmt.Sprint("k", i))
	}
	return s
}

func (s *storm) cache(i int) *nearcache.Cache[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.caches[i]
}

// read reads keys on node i, several in a batch, and holds what came against what was promised.
func (s *storm) read(i int, keys ...string) {
	cache := s.cache(i)
	if cache == nil {
		return
	}
	s.mu.Lock()
	own := make([]int, len(keys))
	for n, key := range keys {
		own[n] = s.own[ownKey{key, cache}]
	}
	s.mu.Unlock()
	began := time.Now()
	values, err := get(s.t.Context(), cache, keys)
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, nearcache.ErrClosed) && s.caches[i] != cache {
		return // it was killed meanwhile
	}
	s.seen.reads++
	s.seen.slowest = max(s.seen.slowest, took)
	if err != nil {
		s.seen.errors[err.Error()]++
		return
	}
	for n, key := range keys {
		version, err := testcluster.Version(key, values[key])
		if err != nil {
			s.t.Errorf("node %d: %v", i, err)
			continue
		}
		if version < own[n] {
			s.t.Errorf("node %d read version %d of %s, which it had invalidated with version %d itself", i, version, key, own[n])
		}
		s.seen.worst = max(s.seen.worst, s.staleness(key, version, began))
	}
}

// get reads one key by Get, several by GetMany.
func get(ctx context.Context, cache *nearcache.Cache[string], keys []string) (map[string]string, error) {
	if len(keys) > 1 {
		return cache.GetMany(ctx, keys)
	}
	v, err := cache.Get(ctx, keys[0])
	return map[string]string{keys[0]: v}, err
}

// staleness returns for how long a newer version of key had been invalidated with success at a time. s.mu is held.
func (s *storm) staleness(key string, version int, at time.Time) (longest time.Duration) {
	for _, a := range s.acks[key] {
		if a.version > version {
			longest = max(longest, at.Sub(a.at))
		}
	}
	return longest
}

// write writes a new version of key and invalidates it on node i.
func (s *storm) write(i int, key string) {
	cache := s.cache(i)
	if cache == nil {
		return
	}
	version := s.origin.bump(key)
	time.Sleep(time.Microsecond) // no load that read the old version begins at the instant of the invalidation
	err := s.invalidate(cache, key, version)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := errors.AsType[*nearcache.PartialError](err); ok {
		s.seen.partial++
		return
	}
	if err != nil {
		if !errors.Is(err, nearcache.ErrClosed) || s.caches[i] == cache {
			s.t.Errorf("node %d: Invalidate: %v", i, err)
		}
		return
	}
	s.seen.acked++
	s.acks[key] = append(s.acks[key], ack{version, time.Now()})
	slices.SortFunc(s.acks[key], func(a, b ack) int { return a.version - b.version })
	s.own[ownKey{key, cache}] = max(s.own[ownKey{key, cache}], version)
}

// invalidate makes a version known: where keys have tags every second one by a tag.
func (s *storm) invalidate(cache *nearcache.Cache[string], key string, version int) error {
	if s.cfg.TagsOf != nil && version%2 == 0 {
		return cache.InvalidateTag(s.t.Context(), s.cfg.TagsOf(key, "")...)
	}
	return cache.Invalidate(s.t.Context(), key)
}

// load reads and writes on all nodes for a while.
func (s *storm) load(rng *rand.Rand, d time.Duration) {
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for i := range s.caches {
		for range 2 {
			mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() {
				for time.Now().Before(end) {
					at := mine.IntN(len(s.keys) - 3)
					s.read(i, s.keys[at:at+1+mine.IntN(3)]...)
					time.Sleep(time.Duration(mine.IntN(40)) * time.Millisecond)
				}
			})
		}
		mine := rand.New(rand.NewPCG(rng.Uint64(), 1))
		wg.Go(func() {
			for time.Now().Before(end) {
				s.write(i, s.keys[mine.IntN(len(s.keys))])
				time.Sleep(time.Duration(mine.IntN(400)) * time.Millisecond)
			}
		})
	}
	wg.Wait()
}

// fault does something to the network or to a node.
func (s *storm) fault(rng *rand.Rand) {
	n := len(s.caches)
	i := rng.IntN(n)
	j := (i + 1 + rng.IntN(n-1)) % n
	a, b := testcluster.Host(i), testcluster.Host(j)
	network := s.c.Network
	switch rng.IntN(12) {
	case 0, 1:
		network.Cut(a, b)
	case 2:
		network.CutOneWay(a, b)
	case 3:
		network.Isolate(a)
	case 4:
		network.Reset(a, b)
	case 5:
		network.Delay(a, b, time.Duration(rng.IntN(120))*time.Millisecond)
	case 6:
		s.restart(i, time.Duration(1+rng.IntN(5000))*time.Millisecond+time.Duration(rng.IntN(4)))
	case 7, 8:
		network.Heal(a, b)
	case 9:
		network.Rejoin(a)
	default:
		network.HealAll()
		network.Delay(a, b, 0)
		network.Delay(b, a, 0)
	}
}

// restart kills or closes node i and starts it again after a while.
func (s *storm) restart(i int, away time.Duration) {
	s.mu.Lock()
	s.caches[i] = nil
	s.mu.Unlock()
	if away%2 == 0 {
		s.c.Crash(i)
	} else if err := s.c.Nodes[i].Close(s.t.Context()); err != nil {
		s.t.Error(err)
	}
	all := s.c.Members()
	if away%4 < 2 { // discovery notices
		s.c.List.Set(slices.Delete(slices.Clone(all), i, i+1)...)
	}
	time.Sleep(away)
	s.c.Restart(i)
	s.c.List.Set(all...)
	cache := s.origin.openAt(s.t, s.c, i, s.cfg)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caches[i] = cache
}

// Hours of partitions, crashes and delays by chance, with loads that take seconds now and then: no read fails, hangs or sees another key's
// value, and none sees a value for longer than a Bound after an Invalidate of a newer one returned nil; the process that invalidated
// does not see it at all.
func TestPartitionsByChance(t *testing.T) {
	type schedule struct {
		nodes, copies int
		seed          uint64
		bursts        int
		near          time.Duration
	}
	var schedules []schedule
	for seed := range uint64(4) {
		near := time.Minute
		if seed%2 == 1 {
			near = time.Second
		}
		schedules = append(schedules, schedule{3, 1, seed, 15, near}, schedule{5, 1, seed, 15, near})
	}
	schedules = append(schedules, schedule{10, 1, 0, 8, time.Minute}, schedule{10, 1, 1, 8, time.Second},
		schedule{3, 2, 0, 15, time.Minute}, schedule{5, 2, 1, 15, time.Second}, schedule{5, 3, 2, 15, time.Minute}, schedule{10, 3, 0, 5, time.Minute})
	if raceEnabled || testing.Short() {
		schedules = []schedule{{3, 1, 1, 5, time.Minute}, {5, 2, 1, 5, time.Second}}
	}
	for _, sc := range schedules {
		t.Run(fmt.Sprintf("%d nodes, %d copies, near ones of %v, seed %d", sc.nodes, sc.copies, sc.near, sc.seed), func(t *testing.T) {
			cfg := nearcache.Config[string]{NearTTL: sc.near, TTL: time.Hour}
			synctest.Test(t, func(t *testing.T) { storms(t, sc.nodes, sc.copies, sc.seed, sc.bursts, cfg) })
		})
	}
}

// The same where every second invalidation is one of a tag.
func TestTagsInPartitionsByChance(t *testing.T) {
	bursts, sizes := 15, []int{3, 3, 3, 5}
	if raceEnabled || testing.Short() {
		bursts, sizes = 5, []int{3, 3}
	}
	for seed, nodes := range sizes {
		copies := 1 + seed%2
		t.Run(fmt.Sprintf("%d nodes, %d copies, seed %d", nodes, copies, seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tagsOf := func(key, _ string) []string { return []string{"row:" + key} }
				storms(t, nodes, copies, uint64(seed), bursts, nearcache.Config[string]{NearTTL: time.Minute, TTL: time.Hour, TagsOf: tagsOf})
			})
		})
	}
}

// storms lets faults come over a cluster for minutes: bursts of load, and quiet between them in which a fault stays.
func storms(t *testing.T, nodes, copies int, seed uint64, bursts int, cfg nearcache.Config[string]) {
	rng := rand.New(rand.NewPCG(seed, 7))
	var loads atomic.Uint64
	cfg.LoadTimeout = 30 * time.Second // several slow loads one after the other, where members go while they wait
	s := newStorm(t, nodes, copies, cfg, func() time.Duration {
		if loads.Add(1)%50 == 0 {
			return 5 * time.Second
		}
		return 5 * time.Millisecond
	})
	s.settle()
	base, start := testcluster.Held(), time.Now()
	for range bursts {
		readers := rand.New(rand.NewPCG(rng.Uint64(), 0))
		var wg sync.WaitGroup
		wg.Go(func() { s.load(readers, 10*time.Second) })
		for range 4 {
			s.fault(rng)
			time.Sleep(time.Duration(rng.IntN(2500)) * time.Millisecond)
		}
		wg.Wait()
		time.Sleep(time.Duration(rng.IntN(60)) * time.Second)
	}
	s.heal()
	s.settle()
	s.c.Rest(base, time.Minute)
	s.judge(time.Since(start), 700*bursts)
}

// heal ends all faults.
func (s *storm) heal() {
	s.c.Network.HealAll()
	for i := range s.caches {
		for j := range s.caches {
			s.c.Network.Delay(testcluster.Host(i), testcluster.Host(j), 0)
		}
	}
}

// settle waits until all nodes are connected and each has read each key.
func (s *storm) settle() {
	s.c.Ready()
	time.Sleep(5 * time.Second)
	for i := range s.caches {
		for _, key := range s.keys {
			s.read(i, key)
		}
	}
	for _, n := range s.c.Nodes {
		for _, m := range n.Stats().Members {
			if !m.Connected || m.Breaker != "closed" {
				s.t.Errorf("%s: %s is connected: %v, its breaker is %s; want it in use", n.ID(), m.Member.ID, m.Connected, m.Breaker)
			}
		}
	}
}

// judge holds what was seen against what was promised.
func (s *storm) judge(took time.Duration, reads int) {
	const (
		bound = time.Second
		hang  = 15 * time.Second // three slow loads one after the other
	)
	v := &s.seen
	s.t.Logf("%v: %d reads, %d invalidations acknowledged, %d not; oldest value %v after its invalidation; slowest read %v",
		took.Round(time.Second), v.reads, v.acked, v.partial, v.worst, v.slowest)
	if v.worst > bound+slack {
		s.t.Errorf("a value was read %v after its invalidation was acknowledged, want at most %v", v.worst, bound)
	}
	for text, n := range v.errors {
		s.t.Errorf("%d reads failed: %s", n, text)
	}
	if v.slowest > hang {
		s.t.Errorf("a read took %v", v.slowest)
	}
	if v.reads < reads || v.acked < 100 || v.partial < 10 {
		s.t.Errorf("%d reads, %d and %d invalidations: nothing happened", v.reads, v.acked, v.partial)
	}
}

// R7: an owner that is cut off from everybody while the others replace it hears of no invalidation: what it has ends two Bounds after the cut,
// before anybody else reports success.
//
// Case invalidation-2.
func TestAnOwnerCutOffFromEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Minute
		own := peers.NewList() // n0 does not hear what the others hear
		var all []peers.Member
		for i := range 3 {
			all = append(all, peers.Member{ID: fmt.Sprint("n", i), Addr: testcluster.Host(i) + ":7946"})
		}
		own.Set(all...)
		c := testcluster.Bubble(t, 3, func(i int, cfg *nearcache.NodeConfig) {
			if i == 0 {
				cfg.Discovery = own
			}
		})
		o := newOrigin(func() time.Duration { return 0 })
		caches := o.openOn(t, c, nearcache.Config[string]{TTL: ttl, Jitter: -1})
		key := testcluster.Key(c.Nodes[1], "ks", "n0", 0)
		old := o.bump(key)
		for _, cache := range caches {
			if _, err := cache.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		cut := time.Now()
		c.Network.Isolate(testcluster.Host(0))
		c.List.Set(c.Members()[1:]...)
		time.Sleep(time.Second)
		want := o.bump(key)
		if err := caches[1].Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		for i, cache := range caches {
			for {
				v, err := cache.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				got, err := testcluster.Version(key, v)
				if err != nil {
					t.Fatal(err)
				}
				if got == want {
					break
				}
				if i > 0 || got != old || time.Since(cut) > 2*time.Second {
					t.Fatalf("node %d: got version %d %v after the cut, want %d", i, got, time.Since(cut), want)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		if d := time.Since(cut); d < 1500*time.Millisecond {
			t.Errorf("the owner that was cut off gave up its value %v after the cut, want it to serve its readers for a Bound longer than it was heard", d)
		}
	})
}
