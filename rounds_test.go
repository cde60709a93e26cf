package nearcache_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// rounds is a cluster under load whose members are in trouble one after the other.
type rounds struct {
	t      *testing.T
	c      *testcluster.Cluster
	o      *origin
	cfg    nearcache.Config[string]
	caches []*nearcache.Cache[string]
	keys   [][]string // by owner
}

const roundCallers = 4 // on a node

func newRounds(t *testing.T, nodes int) *rounds {
	r := &rounds{
		t: t, c: testcluster.Bubble(t, nodes), o: newOrigin(func() time.Duration { return time.Millisecond }),
		cfg:  nearcache.Config[string]{NearTTL: -1, TTL: time.Hour, Jitter: -1},
		keys: make([][]string, nodes),
	}
	r.caches = r.o.openOn(t, r.c, r.cfg)
	for i := range nodes {
		for n := range 20 {
			r.keys[i] = append(r.keys[i], testcluster.Key(r.c.Nodes[0], "ks", fmt.Sprint("n", i), n))
		}
	}
	r.read(-1, time.Second)
	if got, want := r.o.total(), 20*nodes; got != want {
		t.Errorf("got %d loads before the faults, want each of %d keys once", got, want)
	}
	return r
}

// read reads all keys on all nodes but one for d, and returns how many reads waited.
func (r *rounds) read(but int, d time.Duration) int {
	r.t.Helper()
	all := slices.Concat(r.keys...)
	var well []*nearcache.Cache[string]
	for i, cache := range r.caches {
		if i != but {
			well = append(well, cache)
		}
	}
	load := &readers{t: r.t, caches: well, keys: all}
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i, cache := range well {
		for j := range roundCallers {
			mine := rand.New(rand.NewPCG(uint64(i), uint64(j)))
			wg.Go(func() {
				for time.Now().Before(end) {
					load.read(cache, all[mine.IntN(len(all))])
					time.Sleep(time.Duration(1+mine.IntN(10)) * time.Millisecond)
				}
			})
		}
	}
	wg.Wait()
	if got := time.Duration(load.longest.Load()); got > 2*peerTimeout+20*time.Millisecond {
		r.t.Errorf("a read took %v, want little more than a time-out of %v", got, peerTimeout)
	}
	return int(load.slow.Load())
}

// judge holds the loads of a round against what was promised: a key of the member in trouble once in each life of a stand-in's copy, the
// others' keys never, and no key twice at once.
func (r *rounds) judge(name string, ill, lives int) {
	r.t.Helper()
	r.o.mu.Lock()
	byKey := make(map[string]int)
	for by, n := range r.o.loads {
		byKey[by.key] += n
	}
	beside := r.o.beside
	r.o.mu.Unlock()
	for i, keys := range r.keys {
		for _, key := range keys {
			if n := byKey[key]; i == ill && n > lives || i != ill && n > 0 {
				r.t.Errorf("%s of n%d: %s of n%d was loaded %d times", name, ill, key, i, n)
			}
		}
	}
	if beside > 0 {
		r.t.Errorf("%s of n%d: %d loads ran beside another one of the same key", name, ill, beside)
	}
	r.o.total()
}

// returned waits until all others are served by the member.
func (r *rounds) returned(ill int) {
	r.t.Helper()
	back, id := time.Now(), fmt.Sprint("n", ill)
	for i, cache := range r.caches {
		for i != ill && time.Since(back) < 10*time.Second {
			_, info, err := cache.GetInfo(r.t.Context(), r.keys[ill][0])
			if err != nil {
				r.t.Errorf("node %d: %v", i, err)
			}
			if info.Member == id {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	if took := time.Since(back); took > time.Second {
		r.t.Errorf("n%d is in use again after %v, want a second", ill, took)
	}
}

// Members that are frozen, cut off, reset, killed and started again, one after the other, under load on all others: no read fails or hangs,
// a caller waits once for a member in trouble, keys of the others are not loaded again, and nothing is left in the end.
//
// Case L2-2.
func TestTroubleOneAfterTheOther(t *testing.T) {
	faults := []struct {
		name       string
		start, end func(r *rounds, ill int)
		waits      int // of a caller
	}{
		{"a freeze", func(r *rounds, ill int) { r.c.Network.Isolate(testcluster.Host(ill)) }, (*rounds).heal, 1},
		{"a cut", func(r *rounds, ill int) {
			r.c.Network.Cut(testcluster.Host(ill), testcluster.Host((ill+1)%len(r.caches)))
		}, (*rounds).heal, 1},
		{"a reset", (*rounds).reset, (*rounds).heal, 0},
		{"the end", func(r *rounds, ill int) { r.c.Crash(ill) }, (*rounds).restart, 0},
	}
	for _, nodes := range []int{3, 5, 10} {
		if nodes > 3 && (raceEnabled || testing.Short()) {
			continue
		}
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRounds(t, nodes)
				base, heap := testcluster.Held(), testcluster.Heap()
				for n := range 2 * len(faults) / max(1, nodes/5) {
					f, ill := faults[n%len(faults)], n%nodes
					f.start(r, ill)
					waited := r.read(ill, away)
					r.judge(f.name, ill, int(away/time.Second)+1)
					if most := f.waits * roundCallers * (nodes - 1); waited > most {
						t.Errorf("%s of n%d: %d reads waited, want at most %d", f.name, ill, waited, most)
					}
					f.end(r, ill)
					r.returned(ill)
					r.c.Warm() // until then what it loads lives a Bound (R7)
					r.read(-1, 2*time.Second)
					r.judge("after "+f.name, ill, 3) // at a stand-in on the way home, there in doubt, and there
				}
				r.c.Rest(base, 30*time.Second)
				if got := testcluster.Heap(); got > heap+4<<20 {
					t.Errorf("the heap has %d bytes, %d at the start", got, heap)
				}
			})
		})
	}
}

func (r *rounds) heal(int) { r.c.Network.HealAll() }

func (r *rounds) reset(ill int) {
	for i := range r.caches {
		if i != ill {
			r.c.Network.Reset(testcluster.Host(i), testcluster.Host(ill))
		}
	}
}

func (r *rounds) restart(ill int) {
	r.c.Restart(ill)
	r.caches[ill] = r.o.openAt(r.t, r.c, ill, r.cfg)
}
