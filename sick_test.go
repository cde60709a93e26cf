package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// readers read keys of one owner on all other nodes, a key every few milliseconds each.
type readers struct {
	t      *testing.T
	caches []*nearcache.Cache[string]
	keys   []string
	each   int // on a node

	slow    atomic.Int64 // reads that took a PeerTimeout or longer
	reads   atomic.Int64
	longest atomic.Int64
}

const peerTimeout = 50 * time.Millisecond // the default

// run reads for d.
func (r *readers) run(d time.Duration) {
	r.t.Helper()
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for i, cache := range r.caches {
		for j := range r.each {
			wg.Go(func() {
				for n := i + j; time.Now().Before(end); n++ {
					r.read(cache, r.keys[n%len(r.keys)])
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	}
	wg.Wait()
}

func (r *readers) read(cache *nearcache.Cache[string], key string) {
	began := time.Now()
	v, err := cache.Get(r.t.Context(), key)
	took := time.Since(began)
	if err != nil {
		r.t.Errorf("%s after %v: %v", key, took, err)
	} else if _, err := testcluster.Version(key, v); err != nil {
		r.t.Error(err)
	}
	r.reads.Add(1)
	if took >= peerTimeout {
		r.slow.Add(1)
	}
	for old := r.longest.Load(); int64(took) > old && !r.longest.CompareAndSwap(old, int64(took)); old = r.longest.Load() {
	}
}

// A peer in trouble costs each caller that meets it one time-out at most, and its keys one load each at their stand-ins for as long as a
// copy may live there; within a second of its return it is in use again.
//
// Case transport-6.
// Case transport-16.
// Case L2-2.
func TestSickPeers(t *testing.T) {
	const host = "127.0.0.1"
	links := func(f func(c *testcluster.Cluster, other string)) func(c *testcluster.Cluster) {
		return func(c *testcluster.Cluster) {
			for i := 1; i < len(c.Nodes); i++ {
				f(c, testcluster.Host(i))
			}
		}
	}
	heal := func(c *testcluster.Cluster) { c.Network.HealAll() }
	for _, tt := range []struct {
		name       string
		start, end func(c *testcluster.Cluster)
		waits      int // time-outs that one caller may meet
	}{
		{"frozen", func(c *testcluster.Cluster) { c.Network.Isolate(host) }, heal, 1},
		{"deaf", links(func(c *testcluster.Cluster, other string) { c.Network.CutOneWay(other, host) }), heal, 1},
		{"mute", links(func(c *testcluster.Cluster, other string) { c.Network.CutOneWay(host, other) }), heal, 1},
		{"cut from one", func(c *testcluster.Cluster) { c.Network.Cut(host, testcluster.Host(1)) }, heal, 1},
		{"reset", links(func(c *testcluster.Cluster, other string) { c.Network.Reset(other, host) }), heal, 0},
		{"gone", func(c *testcluster.Cluster) { c.Crash(0) }, func(c *testcluster.Cluster) { c.Restart(0) }, 0},
		{
			// No late answer closes the breaker: it would be open for a round trip only.
			"slow", links(func(c *testcluster.Cluster, other string) { c.Network.Delay(host, other, 200*time.Millisecond) }),
			links(func(c *testcluster.Cluster, other string) { c.Network.Delay(host, other, 0) }), 1,
		},
	} {
		for _, nodes := range []int{3, 5, 10} {
			if nodes > 3 && (raceEnabled || testing.Short()) {
				continue
			}
			t.Run(fmt.Sprint(tt.name, " of ", nodes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSick(t, nodes)
					base := testcluster.Held()
					tt.start(s.c)
					s.r.run(away)
					s.judge(tt.waits)
					tt.end(s.c)
					s.returned()
					s.c.Rest(base, 30*time.Second)
				})
			})
		}
	}
}

// away is how long a peer is in trouble: its stand-ins' copies live a Bound each.
const away = 3 * time.Second

// sick is a cluster whose member n0 is in trouble, and readers of n0's keys on all others.
type sick struct {
	t   *testing.T
	c   *testcluster.Cluster
	o   *origin
	r   *readers
	cfg nearcache.Config[string]
}

func newSick(t *testing.T, nodes int) *sick {
	s := &sick{t: t, c: testcluster.Bubble(t, nodes), cfg: nearcache.Config[string]{NearTTL: -1, TTL: time.Hour}}
	s.o = newOrigin(func() time.Duration { return time.Millisecond })
	s.r = &readers{t: t, caches: s.o.openOn(t, s.c, s.cfg)[1:], each: 5}
	for i := range 50 {
		s.r.keys = append(s.r.keys, testcluster.Key(s.c.Nodes[0], "ks", "n0", i))
	}
	s.r.run(time.Second)
	if got := s.o.total(); got != len(s.r.keys) {
		t.Errorf("got %d loads of %d keys before the fault", got, len(s.r.keys))
	}
	s.r.slow.Store(0)
	return s
}

// judge looks at what the fault cost.
func (s *sick) judge(waits int) {
	s.t.Helper()
	callers := len(s.r.caches) * s.r.each
	most, loads := s.o.most(), s.o.total()
	s.t.Logf("%d of %d reads by %d callers waited, the longest %v; %d loads of %d keys", s.r.slow.Load(), s.r.reads.Load(), callers,
		time.Duration(s.r.longest.Load()), loads, len(s.r.keys))
	if got := s.r.slow.Load(); got > int64(callers*waits) {
		s.t.Errorf("%d reads waited for a time-out, want at most %d each by %d callers", got, waits, callers)
	}
	if got := time.Duration(s.r.longest.Load()); got > 2*peerTimeout+20*time.Millisecond {
		s.t.Errorf("a read took %v, want little more than a time-out of %v", got, peerTimeout)
	}
	if lives := int(away/time.Second) + 1; most > lives {
		s.t.Errorf("a key was loaded %d times, want one load in each of %d lives of a stand-in's copy", most, lives)
	}
	if s.o.beside > 0 {
		s.t.Errorf("%d loads ran beside another one of the same key", s.o.beside)
	}
}

// returned waits until n0 serves every other node again.
func (s *sick) returned() {
	s.t.Helper()
	back := time.Now()
	if len(s.c.Nodes[0].Stats().Keyspaces) == 0 { // it is a new one
		s.o.openAt(s.t, s.c, 0, s.cfg)
	}
	for i, cache := range s.r.caches {
		for {
			_, info, err := cache.GetInfo(s.t.Context(), s.r.keys[0])
			if err != nil {
				s.t.Errorf("node %d: %v", i+1, err)
			}
			if info.Member == "n0" || time.Since(back) > 10*time.Second {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	if took := time.Since(back); took > time.Second {
		s.t.Errorf("in use again after %v, want a second", took)
	}
}

// A peer whose loads or links are slow slows down nobody but the readers of its own keys, and takes no more connections than before.
//
// Case transport-7.
func TestASlowPeerSlowsNobodyElse(t *testing.T) {
	for name, slow := range map[string]time.Duration{"loader": 0, "link": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 5)
				load := func(ctx context.Context, key string) (string, error) {
					if c.Nodes[0].Owner("ks", key).ID == "n0" {
						select {
						case <-time.After(5 * time.Second):
						case <-ctx.Done():
							return "", ctx.Err()
						}
					}
					return testcluster.Value(key, 1), nil
				}
				caches := make([]*nearcache.Cache[string], len(c.Nodes))
				for i, n := range c.Nodes {
					var err error
					// Each load of a slow key takes a slot: there must be enough of them for both kinds of keys.
					caches[i], err = nearcache.New(n, "ks", nearcache.Config[string]{Load: load, NearTTL: -1, MaxLoads: 256})
					if err != nil {
						t.Fatal(err)
					}
				}
				c.Network.Delay(testcluster.Host(0), testcluster.Host(1), slow)
				c.Network.Delay(testcluster.Host(1), testcluster.Host(0), slow)
				goroutines := testcluster.Held().Goroutines
				var wg sync.WaitGroup
				for i := range 1000 { // one a millisecond
					time.Sleep(time.Millisecond)
					key := fmt.Sprint("k", i%400)
					mine := c.Nodes[1].Owner("ks", key).ID == "n0"
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						defer cancel()
						began := time.Now()
						_, err := caches[1].Get(ctx, key)
						took := time.Since(began)
						switch {
						case mine && err != nil && !errors.Is(err, context.DeadlineExceeded):
							t.Errorf("a key of the slow member: got %v, want the value or the caller's own deadline", err)
						case mine && took > time.Second:
							t.Errorf("a key of the slow member took %v, the caller's deadline was a second", took)
						case !mine && (err != nil || took > 0):
							t.Errorf("a key of another member: got %v after %v, want no delay", err, took)
						}
					})
				}
				// A flight and a load for each slow key at most, with what belongs to them.
				if got := testcluster.Held().Goroutines - goroutines; got > 1200 {
					t.Errorf("got %d goroutines more", got)
				}
				wg.Wait()
				if got := c.Network.Conns(testcluster.Host(1), testcluster.Host(0)); got > 2 {
					t.Errorf("got %d connections to the slow member, want 2 at most", got)
				}
				c.Network.Delay(testcluster.Host(0), testcluster.Host(1), 0)
				c.Network.Delay(testcluster.Host(1), testcluster.Host(0), 0)
			})
		})
	}
}
