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
)

// strict is a cluster on all nodes of which a key is read without a pause, while it is changed. Its near copies live a minute.
type strict struct {
	t      *testing.T
	c      *testcluster.Cluster
	db     *database
	caches []*nearcache.Cache[int]
	key    string
	acked  atomic.Int64 // the value whose invalidation was confirmed
	reads  atomic.Int64
	stop   atomic.Bool
	wg     sync.WaitGroup
}

// newStrict makes loads take up to a few milliseconds, now and then many.
func newStrict(t *testing.T, nodes int, cfg nearcache.Config[int], opts ...testcluster.Option) *strict {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(7, uint64(nodes)))
	s := &strict{t: t, c: testcluster.Bubble(t, nodes, opts...), db: newDatabase(func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(10) == 0 {
			return time.Duration(rng.IntN(1500)) * time.Millisecond
		}
		return time.Duration(rng.IntN(8)) * time.Millisecond
	})}
	cfg.Load, cfg.NearTTL, cfg.TTL, cfg.Jitter, cfg.Ack = s.db.load, time.Minute, time.Hour, -1, nearcache.AckAll
	s.caches = open(t, s.c, "ks", cfg)
	s.key = testcluster.Key(s.c.Nodes[0], "ks", "n0", 0)
	s.db.bump(s.key)
	return s
}

// read reads on all nodes, by several readers each, until done. A read that began after a confirmation must see what was confirmed.
func (s *strict) read() {
	for i, cache := range s.caches {
		for j := range 3 {
			s.wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				for !s.stop.Load() {
					want := s.acked.Load()
					v, info, err := cache.GetInfo(s.t.Context(), s.key)
					if err != nil || int64(v) < want && !info.Stale {
						s.t.Errorf("node %d: got %d, %v, want %d or newer", i, v, err, want)
						return
					}
					s.reads.Add(1)
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				}
			})
		}
	}
}

func (s *strict) done() {
	s.stop.Store(true)
	s.wg.Wait()
}

// change writes a row and confirms it by tell on some node.
func (s *strict) change(tell func(ctx context.Context) error) error {
	v := s.db.bump(s.key)
	err := tell(s.t.Context())
	if err == nil {
		s.acked.Store(int64(v))
	}
	return err
}

// With AckAll no node serves an old value once a change has returned nil, not for a millisecond: not from near copies that live a minute, nor
// from loads and answers that were under way, whoever changes it by whatever call.
//
// Case invalidation-1.
func TestAckAll(t *testing.T) {
	for _, nodes := range []int{3, 10} {
		in(t, fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			s := newStrict(t, nodes, nearcache.Config[int]{TagsOf: func(string, int) []string { return []string{"t"} }}, testcluster.PeerTimeout(200*time.Millisecond))
			for i := range nodes { // no two links alike
				for j := range nodes {
					s.c.Network.Delay(testcluster.Host(i), testcluster.Host(j), time.Duration((i*7+j*3)%11)*2*time.Millisecond)
				}
			}
			s.read()
			var slowest time.Duration
			for n := range 200 {
				cache := s.caches[n%nodes]
				began := time.Now()
				err := s.change(func(ctx context.Context) error {
					switch n % 5 {
					case 1:
						return cache.InvalidateTag(ctx, "t")
					case 2:
						return cache.InvalidateAll(ctx)
					case 3:
						return cache.Expire(ctx, s.key)
					default:
						return cache.Invalidate(ctx, s.key)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				slowest = max(slowest, time.Since(began))
				time.Sleep(time.Duration(n%100) * time.Millisecond)
			}
			s.done()
			t.Logf("%d reads, the slowest change took %v", s.reads.Load(), slowest)
			if slowest > 100*time.Millisecond {
				t.Errorf("a change took %v, want two round trips", slowest)
			}
		})
	}
}

// A member that is slow is waited for; one that is cut off, until its near copies and the loads that it shares are dead.
func TestAckAllWaits(t *testing.T) {
	const last = 2 // neither the owner nor the writer
	for name, tt := range map[string]struct {
		fault       func(s *strict)
		first, next time.Duration // how long changes may take
	}{
		"slow": {func(s *strict) {
			for i := range last {
				s.c.Network.Delay(testcluster.Host(i), testcluster.Host(last), 20*time.Millisecond)
			}
		}, 100 * time.Millisecond, 100 * time.Millisecond},
		"cut off":            {func(s *strict) { s.c.Network.Isolate(testcluster.Host(last)) }, silence + 200*time.Millisecond, 1200 * time.Millisecond},
		"cut from it":        {func(s *strict) { s.c.Network.Cut(testcluster.Host(1), testcluster.Host(last)) }, time.Second, time.Second},
		"cut from the owner": {func(s *strict) { s.c.Network.Cut(testcluster.Host(0), testcluster.Host(last)) }, 100 * time.Millisecond, 100 * time.Millisecond},
		"restarted":          {func(s *strict) { s.c.Network.Reset(testcluster.Host(0), testcluster.Host(last)) }, time.Second, 100 * time.Millisecond},
	} {
		in(t, name, func(t *testing.T) {
			s := newStrict(t, 5, nearcache.Config[int]{})
			s.read()
			time.Sleep(time.Second)
			tt.fault(s)
			within := tt.first
			for range 20 {
				began := time.Now()
				if err := s.change(func(ctx context.Context) error { return s.caches[1].Invalidate(ctx, s.key) }); err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				if took > within {
					t.Errorf("took %v, want at most %v", took, within)
				}
				within = tt.next
				time.Sleep(100 * time.Millisecond)
			}
			s.c.Network.HealAll()
			time.Sleep(5 * time.Second)
			s.done()
		})
	}
}

// A member that is heard but does not confirm is named.
func TestAckAllInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict(t, 3, nearcache.Config[int]{})
		for i := range 2 {
			s.c.Network.CutOneWay(testcluster.Host(i), testcluster.Host(2))
		}
		began := time.Now()
		err := s.change(func(ctx context.Context) error { return s.caches[1].Invalidate(ctx, s.key) })
		partial, ok := errors.AsType[*nearcache.PartialError](err)
		if !ok || !slices.Equal(partial.Members, []string{"n2"}) {
			t.Fatalf("got %v, want a *PartialError that names n2", err)
		}
		if took := time.Since(began); took > 3*time.Second+peerTimeout+100*time.Millisecond {
			t.Errorf("took %v, want three Bounds at most", took)
		}
		if err := s.caches[1].Invalidate(nearcache.WithAck(t.Context(), nearcache.AckOwners), s.key); err != nil {
			t.Errorf("with AckOwners: got %v, want nil", err)
		}
		s.c.Network.HealAll()
	})
}

// A Set is seen everywhere.
func TestAckAllOfASet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict(t, 3, nearcache.Config[int]{})
		for i := range 30 {
			wantEverywhere(t, "before", s.caches, s.key, i+1)
			v := s.db.bump(s.key)
			if _, err := s.caches[i%3].Set(t.Context(), s.key, v); err != nil {
				t.Fatal(err)
			}
		}
	})
}
