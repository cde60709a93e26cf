package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	lists  []*peers.List // each member has a discovery of its own

	mu       sync.Mutex
	caches   []*nearcache.Cache[string] // nil: the node is down
	promises map[string][]promise       // by key
	own      map[ownKey]int             // versions that the node itself invalidated
	seen     sight
}

type ownKey struct {
	key   string
	cache *nearcache.Cache[string]
}

// promise is what an invalidation returned.
type promise struct {
	version  int
	at       time.Time
	staleFor time.Duration // of a *PartialError; 0: nil
}

// sight is what the readers saw.
type sight struct {
	reads, acked, partial int
	errors                map[string]int
	worst                 time.Duration // longest that a value was read after its invalidation had returned nil
	overdue               time.Duration // the same after the StaleFor of a *PartialError was over
	slowest               time.Duration
}

const (
	stormBound  = time.Second
	slack       = 50 * time.Millisecond // what a bound may be exceeded by: the coarse clock's lag
	stormBursts = 5                     // of load, at least
)

// newStorm starts nodes of which every second one does not believe its discovery at once, as it would a list of the program's own.
func newStorm(t *testing.T, nodes, copies int, cfg nearcache.Config[string]) *storm {
	s := &storm{t: t, cfg: cfg, promises: make(map[string][]promise), own: make(map[ownKey]int)}
	s.seen.errors = make(map[string]int)
	var loads atomic.Uint64
	s.origin = newOrigin(func() time.Duration {
		if loads.Add(1)%50 == 0 {
			return 5 * time.Second
		}
		return 5 * time.Millisecond
	})
	for range nodes {
		s.lists = append(s.lists, peers.NewList(firstMembers(nodes)...))
	}
	s.c = testcluster.Bubble(t, nodes, replicas(copies), func(i int, cfg *nearcache.NodeConfig) {
		if cfg.Discovery = s.lists[i]; i%2 == 1 {
			cfg.Discovery = peers.Func(s.lists[i].Watch)
		}
	})
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
		s.hold(key, version, began)
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

// hold holds a read that began at a time against the invalidations of newer versions. s.mu is held.
func (s *storm) hold(key string, version int, began time.Time) {
	for _, p := range s.promises[key] {
		since := began.Sub(p.at)
		switch {
		case p.version <= version:
		case p.staleFor == 0:
			s.seen.worst = max(s.seen.worst, since)
		default:
			s.seen.overdue = max(s.seen.overdue, since-p.staleFor)
		}
	}
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
	p := promise{version: version, at: time.Now()}
	switch partial, ok := errors.AsType[*nearcache.PartialError](err); {
	case ok:
		p.staleFor = partial.StaleFor
		s.seen.partial++
	case err == nil:
		s.seen.acked++
	case errors.Is(err, nearcache.ErrClosed) && s.caches[i] != cache:
		return
	default:
		s.t.Errorf("node %d: Invalidate: %v", i, err)
		return
	}
	s.promises[key] = append(s.promises[key], p)
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

// operations returns how many reads and invalidations came back.
func (s *storm) operations() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.reads + s.seen.acked + s.seen.partial
}

// run lets faults come over a cluster for minutes: bursts of load, and quiet between them in which a fault stays, until there were so many
// operations.
func (sc schedule) run(t *testing.T, cfg nearcache.Config[string]) {
	t.Helper()
	t.Run(sc.String(), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { sc.inBubble(t, cfg) })
	})
}

func (sc schedule) inBubble(t *testing.T, cfg nearcache.Config[string]) {
	rng := rand.New(rand.NewPCG(sc.seed, 7))
	cfg.NearTTL = sc.near
	cfg.TTL = 2 * time.Minute          // what was not confirmed is over within the run
	cfg.LoadTimeout = 30 * time.Second // several slow loads one after the other, where members go while they wait
	s := newStorm(t, sc.nodes, sc.copies, cfg)
	s.settle()
	base, start := testcluster.Held(), time.Now()
	for n := 0; n < stormBursts || s.operations() < sc.operations; n++ {
		readers := rand.New(rand.NewPCG(rng.Uint64(), 0))
		var wg sync.WaitGroup
		wg.Go(func() { s.load(readers, 10*time.Second) })
		for range 4 {
			sc.weather.fault(s, rng)
			time.Sleep(time.Duration(rng.IntN(2500)) * time.Millisecond)
		}
		wg.Wait()
		if rng.IntN(3) > 0 {
			time.Sleep(time.Duration(rng.IntN(60)) * time.Second)
			continue
		}
		s.heal()
		s.healed()
	}
	s.heal()
	s.healed()
	s.settle()
	s.c.Rest(base, time.Minute)
	s.judge(time.Since(start))
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

// healed checks that what was owed has been paid, by those that are still there, soon after all is well.
func (s *storm) healed() {
	s.c.Ready()
	time.Sleep(5 * time.Second)
	for _, key := range s.keys {
		newest := 0
		for _, cache := range s.caches {
			newest = max(newest, s.own[ownKey{key, cache}])
		}
		for i, cache := range s.caches {
			v, err := cache.Get(s.t.Context(), key)
			if err != nil {
				s.t.Errorf("node %d: %v", i, err)
			} else if got, err := testcluster.Version(key, v); err != nil || got < newest {
				s.t.Errorf("node %d has version %d of %s, %v, when all is well again, want %d, which was invalidated", i, got, key, err, newest)
			}
		}
	}
}

// judge holds what was seen against what was promised.
func (s *storm) judge(took time.Duration) {
	const hang = 15 * time.Second // three slow loads one after the other
	v := &s.seen
	s.t.Logf("%v: %d reads, %d invalidations acknowledged, %d not; oldest value %v after its invalidation; slowest read %v",
		took.Round(time.Second), v.reads, v.acked, v.partial, v.worst, v.slowest)
	if v.worst > stormBound+slack {
		s.t.Errorf("a value was read %v after its invalidation was acknowledged, want at most %v", v.worst, stormBound)
	}
	if v.overdue > slack {
		s.t.Errorf("a value was read %v after the StaleFor of its *PartialError was over", v.overdue)
	}
	for text, n := range v.errors {
		s.t.Errorf("%d reads failed: %s", n, text)
	}
	if v.slowest > hang {
		s.t.Errorf("a read took %v", v.slowest)
	}
	if v.acked < 50 {
		s.t.Errorf("%d invalidations: nothing happened", v.acked)
	}
}
