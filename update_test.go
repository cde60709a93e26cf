package nearcache_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// update changes the row in the middle of a transaction, and makes the new value what readers have to see once it is over.
func (s *strict) update(i int, takes time.Duration) error {
	var v int
	err := s.caches[i].Update(s.t.Context(), []string{s.key}, func(ctx context.Context) error {
		time.Sleep(takes)
		v = s.db.bump(s.key)
		time.Sleep(takes)
		return ctx.Err()
	})
	if err == nil {
		s.acked.Store(int64(v))
	}
	return err
}

// No reader sees an old value after anybody has seen the new one, during the transaction and after it; what is read then is cached again.
func TestUpdate(t *testing.T) {
	for _, nodes := range []int{3, 10} {
		synctest.Test(t, func(t *testing.T) {
			s := newStrict(t, nodes, nearcache.Config[int]{}, testcluster.PeerTimeout(200*time.Millisecond))
			for i := range nodes {
				for j := range nodes {
					s.c.Network.Delay(testcluster.Host(i), testcluster.Host(j), time.Duration((i*7+j*3)%11)*2*time.Millisecond)
				}
			}
			time.Sleep(6 * time.Second) // doubt ends
			s.seen()
			for n := range 100 {
				if err := s.update(n%nodes, time.Duration(n%7)*time.Millisecond); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(n%50) * time.Millisecond)
			}
			s.done()
			time.Sleep(time.Second)
			for range 2 { // the second time from near copies
				wantEverywhere(t, "afterwards", s.caches, s.key, s.db.rows[s.key])
			}
			loads := s.db.loads.Load()
			wantEverywhere(t, "at rest", s.caches, s.key, s.db.rows[s.key])
			if got := s.db.loads.Load() - loads; got != 0 {
				t.Errorf("got %d loads of a key that nobody holds any more, want none", got)
			}
		})
	}
}

// seen is read, but what any reader has seen binds all others from then on.
func (s *strict) seen() {
	for _, cache := range s.caches {
		for range 3 {
			s.wg.Go(func() {
				for !s.stop.Load() {
					want := s.acked.Load()
					v, err := cache.Get(s.t.Context(), s.key)
					if err != nil || int64(v) < want {
						s.t.Errorf("got %d, %v, want %d or newer", v, err, want)
						return
					}
					for old := s.acked.Load(); int64(v) > old && !s.acked.CompareAndSwap(old, int64(v)); old = s.acked.Load() {
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
	}
}

// Readers of a held key share one load at a time, on each member; who comes while it runs shares the next.
func TestReadersOfAHeldKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var running, most, loads atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[int]{Load: func(context.Context, string) (int, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(10 * time.Millisecond)
			return int(loads.Add(1)), nil
		}, LoadMany: func(_ context.Context, keys []string) (map[string]int, error) {
			return nil, errors.New("a batch of held keys")
		}})
		err := caches[0].Update(t.Context(), []string{"k", "k"}, func(context.Context) error {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 100 * time.Microsecond)
					before := int(loads.Load())
					v, err := caches[1].Get(t.Context(), "k")
					if i%3 == 1 {
						v, err = caches[1].Refresh(t.Context(), "k")
					} else if i%3 == 2 {
						var m map[string]int
						m, err = caches[1].GetMany(t.Context(), []string{"k"})
						v = m["k"]
					}
					if err != nil || v <= before {
						t.Errorf("got %d, %v, want a load later than %d", v, err, before)
					}
				})
			}
			wg.Wait()
			if _, ok, _ := caches[1].Peek(t.Context(), "k"); ok {
				t.Error("a held key is resident")
			}
			if stored, err := caches[2].Set(t.Context(), "k", 7); stored || err != nil {
				t.Errorf("a Set of a held key: got %v, %v, want not stored", stored, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if most.Load() != 1 || loads.Load() > 10 {
			t.Errorf("got %d loads, %d at once, want few, one after the other", loads.Load(), most.Load())
		}
	})
}

// What cannot be held is not committed; the keys are free again.
func TestNoHold(t *testing.T) {
	for name, tt := range map[string]struct {
		fault  func(c *testcluster.Cluster)
		within time.Duration
	}{
		"a member is cut off":  {func(c *testcluster.Cluster) { c.Network.Isolate(testcluster.Host(2)) }, 1100 * time.Millisecond},
		"this node is cut off": {func(c *testcluster.Cluster) { c.Network.Isolate(testcluster.Host(0)); time.Sleep(2 * time.Second) }, 100 * time.Millisecond},
		"a member joins": {func(c *testcluster.Cluster) {
			time.AfterFunc(5*time.Millisecond, func() { c.List.Set(c.Members()[:2]...) })
		}, 1100 * time.Millisecond},
		"members see otherwise": {func(c *testcluster.Cluster) { c.List.Set(c.Members()[:2]...) }, 1100 * time.Millisecond},
	} {
		in(t, name, func(t *testing.T) {
			s := newStrict(t, 3, nearcache.Config[int]{})
			for i := range 2 {
				s.c.Network.Delay(testcluster.Host(0), testcluster.Host(1+i), 10*time.Millisecond)
			}
			tt.fault(s.c)
			began := time.Now()
			err := s.caches[0].Update(t.Context(), []string{s.key}, func(context.Context) error { panic("commit was run") })
			if name == "members see otherwise" && err == nil {
				return
			}
			if !errors.Is(err, nearcache.ErrHold) {
				t.Errorf("got %v, want ErrHold", err)
			}
			if took := time.Since(began); took > tt.within {
				t.Errorf("took %v, want at most %v", took, tt.within)
			}
			s.c.Network.HealAll()
			s.c.List.Set(s.c.Members()...)
			time.Sleep(10 * time.Second)
			if err := s.update(0, 0); err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

// However commit ends, what is read afterwards is what the origin has.
func TestEndsOfACommit(t *testing.T) {
	own := errors.New("rolled back")
	for name, tt := range map[string]struct {
		commit func(ctx context.Context) error
		check  func(err error) bool
		want   string
	}{
		"error": {func(context.Context) error { return own }, func(err error) bool { return err == own }, "its own error"}, //nolint:errorlint // unwrapped
		"panic": {func(context.Context) error { panic("boom") }, func(err error) bool {
			e, ok := errors.AsType[*nearcache.PanicError](err)
			return ok && e.Value == "boom"
		}, "a *PanicError"},
		"late": {func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return nil }, func(err error) bool {
			e, ok := errors.AsType[*nearcache.PartialError](err)
			return ok && len(e.Members) == 0 && len(e.Keys) == 1 && errors.Is(err, context.DeadlineExceeded)
		}, "a *PartialError"},
		"late with an error": {func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return own }, func(err error) bool {
			_, ok := errors.AsType[*nearcache.PartialError](err)
			return ok && errors.Is(err, own)
		}, "a *PartialError with its own error"},
	} {
		in(t, name, func(t *testing.T) {
			s := newStrict(t, 3, nearcache.Config[int]{})
			wantEverywhere(t, "before", s.caches, s.key, 1)
			var v int
			err := s.caches[1].Update(t.Context(), []string{s.key}, func(ctx context.Context) error {
				defer func() { v = s.db.bump(s.key) }()
				if name == "late" {
					time.AfterFunc(5500*time.Millisecond, func() { _, _ = s.caches[2].Get(t.Context(), s.key) }) // the old value, once the hold is over
				}
				return tt.commit(ctx)
			})
			if !tt.check(err) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			wantEverywhere(t, "afterwards", s.caches, s.key, v)
			testcluster.Last(10 * time.Millisecond)
			wantEverywhere(t, "from near copies", s.caches, s.key, v)
		})
	}
}

// A member that is dead but listed keeps nobody from updating once it can hold nothing any more; one whose own member died is free by itself.
func TestUpdateWithoutTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict(t, 5, nearcache.Config[int]{})
		commit := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = s.caches[4].Update(t.Context(), []string{s.key}, func(ctx context.Context) error {
				close(commit)
				<-ctx.Done()
				return ctx.Err()
			})
		})
		<-commit
		s.c.Crash(4)
		s.caches = s.caches[:4]
		time.Sleep(3 * time.Second)
		if err := s.update(1, time.Millisecond); err != nil {
			t.Errorf("with a dead member: got %v, want nil", err)
		}
		wantEverywhere(t, "held by the dead", s.caches, s.key, 2)
		time.Sleep(3 * time.Second)
		wantEverywhere(t, "free", s.caches, s.key, 2)
		loads := s.db.loads.Load()
		wantEverywhere(t, "at rest", s.caches, s.key, 2)
		if got := s.db.loads.Load() - loads; got != 0 {
			t.Errorf("got %d loads after the hold of the dead member, want none", got)
		}
		wg.Wait()
	})
}

// A member that was cut off while a key was held may give out what it loaded by itself when it is heard again, for a Bound: nobody asks it before
// that is over.
func TestUpdateWithoutTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStrict(t, 5, nearcache.Config[int]{})
		const owner = 0
		for i := range 5 {
			if i != owner {
				s.c.Network.Reset(testcluster.Host(owner), testcluster.Host(i))
			}
		}
		s.c.Network.Isolate(testcluster.Host(owner))
		time.Sleep(3 * time.Second)
		if _, err := s.caches[owner].Get(t.Context(), s.key); err != nil {
			t.Fatal(err)
		}
		if err := s.update(1, time.Millisecond); err != nil {
			t.Fatalf("without the owner: got %v, want nil", err)
		}
		s.c.Network.HealAll()
		heard := false
		for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(10 * time.Millisecond) {
			for i := range 5 {
				v, info, err := s.caches[i].GetInfo(t.Context(), s.key)
				switch {
				case err != nil:
					t.Fatal(err)
				case i != owner && int64(v) < s.acked.Load():
					t.Fatalf("node %d got %d from %s %v after an Update returned, want %d", i, v, info.Member, time.Since(began), s.acked.Load())
				}
				heard = heard || i != owner && info.Member == s.c.Nodes[owner].ID()
			}
		}
		if !heard {
			t.Error("nobody has heard the owner again")
		}
	})
}

// A cache in one process has nobody to ask.
func TestUpdateAlone(t *testing.T) {
	row := 1
	cache, err := nearcache.New(nil, "ks", nearcache.Config[int]{Load: func(context.Context, string) (int, error) { return row, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close(t.Context())
	for range 2 {
		if v, err := cache.Get(t.Context(), "k"); v != row || err != nil {
			t.Errorf("got %d, %v, want %d", v, err, row)
		}
		if err := cache.Update(t.Context(), []string{"k"}, func(context.Context) error { row++; return nil }); err != nil {
			t.Error(err)
		}
	}
	if err := cache.Update(t.Context(), []string{""}, nil); !errors.Is(err, nearcache.ErrInvalidKey) {
		t.Errorf("got %v, want ErrInvalidKey", err)
	}
}
