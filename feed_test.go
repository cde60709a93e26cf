package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// source is a database whose writers know nothing of the cache, and the stream of what they change.
type source struct {
	*feed.Memory
	mu    sync.Mutex
	rows  map[string]int
	loads int
}

func newSource() *source { return &source{Memory: feed.NewMemory(0), rows: make(map[string]int)} }

func (s *source) load(_ context.Context, key string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads++
	return s.rows[key], nil
}

// write changes keys and returns what is to be appended to the stream for it.
func (s *source) write(keys ...string) (changes []feed.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		s.rows[k]++
		changes = append(changes, feed.Change{Keyspace: "k", Key: k})
	}
	return changes
}

func (s *source) loaded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.loads
	s.loads = 0
	return n
}

// wantFresh checks that every node gets what is at the source.
func (s *source) wantFresh(t *testing.T, caches []*nearcache.Cache[int], keys []string) {
	t.Helper()
	s.mu.Lock()
	want := make(map[string]int)
	for _, k := range keys {
		want[k] = s.rows[k]
	}
	s.mu.Unlock()
	for i, c := range caches {
		for _, k := range keys {
			if v, info, err := c.GetInfo(t.Context(), k); v != want[k] || err != nil || info.Stale {
				t.Errorf("node %d, %s: got %d (stale: %v), %v, want %d", i, k, v, info.Stale, err, want[k])
			}
		}
	}
}

func names(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	return keys
}

func followFeed(t *testing.T, n *nearcache.Node, s feed.Source, cfg nearcache.FeedConfig) *nearcache.Feed {
	t.Helper()
	f, err := n.Follow(t.Context(), s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// settle lets the feeds read what there is, and the bound pass.
func settle() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// Writes that only the stream knows of reach every node, whether one of them follows it or all; so do those of five minutes in which the
// stream was away, duplicates and what comes out of order.
func TestFeed(t *testing.T) {
	for name, followers := range map[string]int{"one member follows": 1, "every member follows": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				s := newSource()
				var feeds []*nearcache.Feed
				for _, n := range c.Nodes[:followers] {
					feeds = append(feeds, followFeed(t, n, s, nearcache.FeedConfig{}))
				}
				caches := open(t, c, "k", nearcache.Config[int]{Load: s.load, TTL: time.Hour, NearTTL: time.Minute})
				keys := names(50)
				s.wantFresh(t, caches, keys)

				s.Append(s.write(keys[:20]...)...)
				settle()
				s.wantFresh(t, caches, keys)

				s.Break(errors.New("connection lost"))
				for range 10 {
					s.Append(s.write(keys[10:30]...)...)
					time.Sleep(30 * time.Second)
				}
				if lag := feeds[0].Stats().LastBatch; lag < 5*time.Minute {
					t.Errorf("got %v since the last batch, want 5 m", lag)
				}
				s.Break(nil)
				settle()
				s.wantFresh(t, caches, keys)

				late := slices.Concat(s.write(keys...), s.write(keys...), s.write(keys[:5]...))
				slices.Reverse(late)
				s.Append(append(late, late...)...)
				settle()
				s.wantFresh(t, caches, keys)
				for _, f := range feeds {
					st := f.Stats()
					if st.Applied < 430 || st.Duplicates == 0 || st.Gaps+st.Invalid+st.Unknown+st.Unconfirmed > 0 || st.Restarts == 0 {
						t.Errorf("got %+v, want 430 applied, duplicates, restarts, and nothing else", st)
					}
				}
				s.loaded()
				s.wantFresh(t, caches, keys)
				if n := s.loaded(); n > 0 {
					t.Errorf("got %d loads while nothing changed, want none", n)
				}
			})
		})
	}
}

// A gap makes what is cached stale: it is served, marked so, while owners let it be loaded anew at a bounded rate.
func TestFeedGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		s := newSource()
		f := followFeed(t, c.Nodes[0], s, nearcache.FeedConfig{})
		const maxLoads, seconds = 2, 20
		caches := open(t, c, "k", nearcache.Config[int]{Load: s.load, TTL: time.Hour, NearTTL: time.Minute, MaxLoads: maxLoads})
		keys := names(300)
		s.wantFresh(t, caches, keys)
		s.loaded()

		s.Break(errors.New("connection lost"))
		s.Append(s.write(keys...)...)
		s.Clean(0)
		s.Break(nil)
		settle()
		if st := f.Stats(); st.Gaps != 1 {
			t.Errorf("got %+v, want one gap", st)
		}
		for range seconds {
			for i, cache := range caches {
				for _, k := range keys {
					v, info, err := cache.GetInfo(t.Context(), k)
					if err != nil || v == 0 && !info.Stale {
						t.Fatalf("node %d, %s: got %d (stale: %v), %v, want a copy marked stale or the new value", i, k, v, info.Stale, err)
					}
				}
			}
			time.Sleep(time.Second)
		}
		if n := s.loaded(); n < seconds*maxLoads || n > (seconds+1)*maxLoads*len(caches) {
			t.Errorf("got %d loads in %d s, want up to %d a second on each of %d owners", n, seconds, maxLoads, len(caches))
		}
		for range 200 {
			for _, k := range keys {
				_, _ = caches[0].Get(t.Context(), k)
			}
			time.Sleep(time.Second)
		}
		s.wantFresh(t, caches, keys)
	})
}

// What was loaded before the position was taken is stale. A change with a version keeps what has it, and what is lower is refused.
func TestFeedVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		s := newSource()
		caches := open(t, c, "k", nearcache.Config[int]{Load: s.load, TTL: time.Hour, VersionOf: func(v int) uint64 { return uint64(v) }})
		key := testcluster.Key(c.Nodes[0], "k", "n0", 0)
		s.wantFresh(t, caches, []string{key})
		s.write(key)
		followFeed(t, c.Nodes[0], s, nearcache.FeedConfig{})
		settle()
		if v, info, err := caches[1].GetInfo(t.Context(), key); v != 0 || !info.Stale || err != nil {
			t.Errorf("got %d (stale: %v), %v, want the copy from before the feed, marked stale", v, info.Stale, err)
		}
		settle()
		s.wantFresh(t, caches, []string{key})
		s.loaded()

		s.Append(feed.Change{Keyspace: "k", Key: key, Version: 1})
		settle()
		s.wantFresh(t, caches, []string{key})
		if n := s.loaded(); n != 0 {
			t.Errorf("got %d loads, want none: what is cached has the version", n)
		}
		s.Append(feed.Change{Keyspace: "k", Key: key, Version: 3})
		settle()
		for range 3 {
			if _, err := caches[0].Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		if n := s.loaded(); n != 3 {
			t.Errorf("got %d loads, want 3: the loader still reads version 1, which is not kept", n)
		}
		s.write(key)
		s.write(key)
		s.wantFresh(t, caches, []string{key})
		settle()
		s.loaded()
		s.wantFresh(t, caches, []string{key})
		if n := s.loaded(); n != 0 {
			t.Errorf("got %d loads, want none: version 3 is there", n)
		}
	})
}

// A change of a tag reaches what has it, one of a keyspace all of it.
func TestFeedTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		s := newSource()
		f := followFeed(t, c.Nodes[0], s, nearcache.FeedConfig{})
		caches := open(t, c, "k", nearcache.Config[int]{
			Load: s.load, TTL: time.Hour, NearTTL: time.Minute,
			TagsOf: func(key string, _ int) []string { return []string{"tag-" + key} },
		})
		keys := names(20)
		s.wantFresh(t, caches, keys)
		s.write(keys[:5]...)
		s.loaded()
		for _, k := range keys[:5] {
			s.Append(feed.Change{Keyspace: "k", Tags: []string{"tag-" + k}})
		}
		settle()
		s.wantFresh(t, caches, keys)
		if n := s.loaded(); n != 5 {
			t.Errorf("got %d loads, want those of the 5 keys with a tag", n)
		}
		s.write(keys...)
		s.Append(feed.Change{Keyspace: "k", All: true}, feed.Change{Keyspace: "k", All: true})
		settle()
		s.wantFresh(t, caches, keys)
		if st := f.Stats(); st.Applied != 7 || st.Duplicates != 1 {
			t.Errorf("got %+v, want 7 applied, one of them a duplicate", st)
		}
	})
}

// A position is saved when what was before it cannot be stale any more; what an owner did not hear is told again; and who goes on from the
// saved position misses nothing.
func TestFeedPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		s := newSource()
		saved := make(map[feed.Position]time.Time)
		var last feed.Position
		var mu sync.Mutex
		cfg := nearcache.FeedConfig{Save: func(_ context.Context, p feed.Position) error {
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			last = p
			saved[p] = time.Now()
			return nil
		}}
		const ttl = 3 * time.Minute
		caches := open(t, c, "k", nearcache.Config[int]{Load: s.load, TTL: ttl})
		key := testcluster.Key(c.Nodes[0], "k", "n2", 0)
		s.wantFresh(t, caches, []string{key})
		f := followFeed(t, c.Nodes[0], s, cfg)
		settle()
		if v, info, err := caches[1].GetInfo(t.Context(), key); !info.Stale || err != nil {
			t.Errorf("got %d (stale: %v), %v, want a stale copy: nobody knows what changed before the first position", v, info.Stale, err)
		}
		settle()
		s.wantFresh(t, caches, []string{key})
		s.Append(s.write("x")...)
		settle()
		if st := f.Stats(); st.Saved != st.Position || last != st.Position {
			t.Errorf("got %q saved, want %q", last, st.Position)
		}

		c.Network.Isolate(testcluster.Host(0))
		time.Sleep(time.Second)
		missed := time.Now()
		s.Append(s.write(key)...)
		time.Sleep(30 * time.Second)
		s.Append(s.write("y")...)
		settle()
		if st := f.Stats(); st.Saved == st.Position || st.Unconfirmed == 0 {
			t.Errorf("got %+v, want a position that is not saved yet", st)
		}
		c.Network.HealAll()
		settle()
		s.wantFresh(t, caches, []string{key, "y"})
		time.Sleep(ttl)
		p := f.Stats().Position
		if d := saved[p].Sub(missed); d < ttl {
			t.Errorf("a position was saved %v after something before it was missed, want %v", d, ttl)
		}

		s.Append(s.write("x")...)
		synctest.Wait()
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := f.Stats(); last != st.Position || st.Saved != last {
			t.Errorf("got %q saved after Close, want %q", last, st.Position)
		}
		s.Append(s.write(key)...)
		settle()
		followFeed(t, c.Nodes[1], s, nearcache.FeedConfig{After: last})
		settle()
		s.wantFresh(t, caches, []string{key, "x", "y"})
	})
}

// A change in a keyspace that the following node has not opened reaches its owners, also when these were away.
func TestFeedOfAForeignKeyspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		s := newSource()
		f := followFeed(t, c.Nodes[0], s, nearcache.FeedConfig{Keyspaces: []string{"k"}})
		var caches []*nearcache.Cache[int]
		for _, n := range c.Nodes[1:] {
			cache, err := nearcache.New(n, "k", nearcache.Config[int]{Load: s.load, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			caches = append(caches, cache)
		}
		key := testcluster.Key(c.Nodes[0], "k", "n1", 0)
		s.wantFresh(t, caches, []string{key})
		s.Append(s.write(key)...)
		settle()
		s.wantFresh(t, caches, []string{key})

		c.Network.Isolate(testcluster.Host(0))
		time.Sleep(time.Second)
		s.Append(s.write(key)...)
		settle()
		if st := f.Stats(); st.Unknown != 2 || st.Unconfirmed == 0 {
			t.Errorf("got %+v, want two changes of an unknown keyspace, the last unconfirmed", st)
		}
		c.Network.HealAll()
		settle()
		s.wantFresh(t, caches, []string{key})

		s.write(key)
		s.Recreate()
		settle()
		if v, info, err := caches[0].GetInfo(t.Context(), key); err != nil || !info.Stale {
			t.Errorf("after a gap: got %d (stale: %v), %v, want a stale copy", v, info.Stale, err)
		}
	})
}

// badSource does something wrong in each call of Read, besides what Memory does.
type badSource struct {
	*feed.Memory
	calls  int
	before func(calls int, apply func(feed.Batch) error)
	after  func()
}

func (s *badSource) Read(ctx context.Context, after feed.Position, apply func(feed.Batch) error) error {
	s.calls++
	s.before(s.calls, apply)
	defer s.after()
	return s.Memory.Read(ctx, after, apply)
}

// Whatever a source does, changes that it brings in the end are applied, and the node closes.
func TestSourcesThatMisbehave(t *testing.T) {
	twice := func(do func()) func(int, func(feed.Batch) error) {
		return func(calls int, _ func(feed.Batch) error) {
			if calls < 3 {
				do()
			}
		}
	}
	long := strings.Repeat("x", 1<<16)
	invalid := []feed.Change{{}, {Keyspace: "k"}, {Key: "x"}, {Keyspace: "k", Key: long}, {Keyspace: long, All: true}}
	for name, before := range map[string]func(calls int, apply func(feed.Batch) error){
		"panic":    twice(func() { panic("boom") }),
		"goexit":   twice(runtime.Goexit),
		"nonsense": func(_ int, apply func(feed.Batch) error) { _ = apply(feed.Batch{Changes: invalid}) },
		"hang":     twice(func() {}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, release := newSource(), make(chan struct{})
				bad := &badSource{Memory: s.Memory, before: before, after: func() {
					if name == "hang" {
						<-release
					}
				}}
				node, err := nearcache.Start(t.Context(), nearcache.NodeConfig{})
				if err != nil {
					t.Fatal(err)
				}
				f := followFeed(t, node, bad, nearcache.FeedConfig{})
				cache, err := nearcache.New(node, "k", nearcache.Config[int]{Load: s.load})
				if err != nil {
					t.Fatal(err)
				}
				caches := []*nearcache.Cache[int]{cache}
				s.wantFresh(t, caches, names(3))
				s.Append(s.write(names(3)...)...)
				settle()
				s.wantFresh(t, caches, names(3))
				if st := f.Stats(); name == "nonsense" && st.Invalid != uint64(len(invalid)) {
					t.Errorf("got %+v, want %d invalid changes", st, len(invalid))
				}
				if err := node.Close(t.Context()); err != nil {
					t.Error(err)
				}
				close(release)
			})
		})
	}
}
