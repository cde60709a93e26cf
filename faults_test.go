package nearcache_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

var (
	stormAll  = flag.Bool("storm.all", false, "storms of all sizes, 10,000 operations each")
	stormSeed = flag.Uint64("storm.seed", 1, "the seed of the first storm")
)

// schedule is one storm.
type schedule struct {
	weather       weather
	nodes, copies int
	near          time.Duration
	seed          uint64
	operations    int // reads and invalidations, at least
}

func (sc schedule) String() string {
	return fmt.Sprintf("%s, %d nodes, %d copies, near ones of %v, seed %d", sc.weather.name, sc.nodes, sc.copies, sc.near, sc.seed)
}

// weather is a kind of fault that comes over a cluster. Each call of fault begins or ends something, which lasts until a later one, or until all heals.
type weather struct {
	name  string
	fault func(s *storm, rng *rand.Rand)
}

func weathers() []weather {
	return []weather{
		{"cuts", (*storm).cut},
		{"hangs", (*storm).hang},
		{"restarts", (*storm).bounce},
		{"changes of the members", (*storm).change},
		allWeather(),
	}
}

func allWeather() weather { return weather{"all faults", (*storm).anything} }

// pair draws two hosts.
func (s *storm) pair(rng *rand.Rand) (a, b string) {
	n := len(s.caches)
	i := rng.IntN(n)
	return testcluster.Host(i), testcluster.Host((i + 1 + rng.IntN(n-1)) % n)
}

// cut does something to links.
func (s *storm) cut(rng *rand.Rand) {
	a, b := s.pair(rng)
	network := s.c.Network
	switch rng.IntN(10) {
	case 0, 1:
		network.Cut(a, b)
	case 2:
		network.CutOneWay(a, b)
	case 3: // two islands
		left := rng.Perm(len(s.caches))
		right := left[:1+rng.IntN(len(left)/2)]
		for _, i := range left[len(right):] {
			for _, j := range right {
				network.Cut(testcluster.Host(i), testcluster.Host(j))
			}
		}
	case 4:
		network.Reset(a, b)
	case 5, 6:
		network.Heal(a, b)
	default:
		network.HealAll()
	}
}

// hang silences or slows down hosts.
func (s *storm) hang(rng *rand.Rand) {
	a, b := s.pair(rng)
	network := s.c.Network
	switch rng.IntN(8) {
	case 0, 1:
		network.Isolate(a)
	case 2, 3:
		network.Rejoin(a)
	case 4:
		network.Delay(a, b, time.Duration(rng.IntN(120))*time.Millisecond)
	case 5:
		network.Delay(a, b, time.Duration(rng.IntN(3000))*time.Millisecond)
	default:
		s.heal()
	}
}

// bounce kills or closes a member, which comes back after seconds; its discovery may or may not notice.
func (s *storm) bounce(rng *rand.Rand) {
	i, away := rng.IntN(len(s.caches)), time.Duration(1+rng.IntN(5000))*time.Millisecond
	if rng.IntN(3) == 0 {
		return
	}
	s.down(i, rng.IntN(2) == 0)
	if rng.IntN(2) == 0 {
		s.list(rng, 0, i)
	}
	time.Sleep(away)
	s.up(i)
	s.list(rng, 0)
}

// change changes the members, who hear of it one after the other: one leaves or dies, and a new one joins; discovery loses one that is alive,
// or half of them; or they do not agree, for as long as nothing else changes.
func (s *storm) change(rng *rand.Rand) {
	i, spread := rng.IntN(len(s.caches)), time.Duration(rng.IntN(3000))*time.Millisecond
	switch rng.IntN(8) {
	case 0, 1:
		s.down(i, rng.IntN(4) == 0)
		s.list(rng, spread, i)
		time.Sleep(time.Duration(rng.IntN(8000)) * time.Millisecond)
		s.up(i)
		s.list(rng, spread)
	case 2, 3:
		s.list(rng, spread, i)
	case 4:
		s.list(rng, spread, rng.Perm(len(s.caches))[:len(s.caches)/2]...)
	case 5:
		for _, l := range s.lists {
			if rng.IntN(2) == 0 {
				l.Set(slices.Delete(firstMembers(len(s.lists)), i, i+1)...)
			}
		}
	default:
		s.list(rng, spread)
	}
}

// anything does one of these.
func (s *storm) anything(rng *rand.Rand) {
	others := weathers()
	others[rng.IntN(len(others)-1)].fault(s, rng)
}

// down ends node i: kills or closes it.
func (s *storm) down(i int, kill bool) {
	s.mu.Lock()
	s.caches[i] = nil
	s.mu.Unlock()
	if kill {
		s.c.Crash(i)
	} else if err := s.c.Nodes[i].Close(s.t.Context()); err != nil {
		s.t.Error(err)
	}
}

// up starts node i again, on its address.
func (s *storm) up(i int) {
	s.c.Restart(i)
	cache := s.origin.openAt(s.t, s.c, i, s.cfg)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caches[i] = cache
}

// list tells the members the list, without some of them, the last member after spread.
func (s *storm) list(rng *rand.Rand, spread time.Duration, without ...int) {
	all := firstMembers(len(s.lists))
	for _, i := range slices.Backward(slices.Sorted(slices.Values(without))) {
		all = slices.Delete(all, i, i+1)
	}
	for _, k := range rng.Perm(len(s.lists)) {
		s.lists[k].Set(all...)
		time.Sleep(spread / time.Duration(len(s.lists)))
	}
}

// heal ends all faults.
func (s *storm) heal() {
	s.c.Network.HealAll()
	for i := range s.caches {
		s.lists[i].Set(firstMembers(len(s.lists))...)
		for j := range s.caches {
			s.c.Network.Delay(testcluster.Host(i), testcluster.Host(j), 0)
		}
	}
}

// Minutes of faults by chance, with loads that take seconds now and then: no read fails, hangs or sees another key's value, and none sees a
// value for longer than a Bound after an Invalidate of a newer one returned nil, or after the StaleFor of its *PartialError; the process
// that invalidated does not see it at all; and when all is well again what was not confirmed has been told.
func TestTheBoundUnderFaults(t *testing.T) {
	var schedules []schedule
	for n, w := range weathers() {
		schedules = append(schedules, schedule{w, 3, 1 + n%2, []time.Duration{time.Minute, time.Second}[n/2%2], 0, 2000})
	}
	if !raceEnabled {
		schedules = append(schedules, schedule{allWeather(), 5, 2, time.Second, 0, 2000})
	}
	if *stormAll {
		schedules = nil
		for _, w := range weathers() {
			for _, nodes := range []int{3, 5, 10} {
				for _, copies := range []int{1, 2} {
					for _, near := range []time.Duration{time.Second, time.Minute} {
						schedules = append(schedules, schedule{w, nodes, copies, near, 0, 10_000})
					}
				}
			}
		}
	}
	for n, sc := range schedules {
		sc.seed = *stormSeed + uint64(n)
		sc.run(t, nearcache.Config[string]{})
	}
}

// The same where every second invalidation is one of a tag.
func TestTagsUnderFaults(t *testing.T) {
	tagsOf := func(key, _ string) []string { return []string{"row:" + key} }
	schedules := []schedule{{allWeather(), 3, 1, time.Minute, 0, 2000}, {allWeather(), 3, 2, time.Minute, 1, 2000}}
	if *stormAll {
		for seed := range uint64(4) {
			schedules = append(schedules, schedule{allWeather(), 3 + 2*int(seed%2), 1 + int(seed/2), time.Minute, 2 + seed, 10_000})
		}
	}
	for _, sc := range schedules {
		sc.run(t, nearcache.Config[string]{TagsOf: tagsOf})
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
