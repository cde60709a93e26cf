package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// groupOf is the TagsOf of these tests: "red 7" has the tags red and row:red 7.
func groupOf(key string, _ int) []string {
	group, _, _ := strings.Cut(key, " ")
	return []string{group, "row:" + key}
}

// R15: InvalidateTag reaches everything that has the tag, on every member, and nothing else.
func TestInvalidateTag(t *testing.T) {
	for _, nodes := range []int{3, 10} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, nodes)
				c.Warm()
				db := newDatabase(func() time.Duration { return 0 })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TTL: time.Hour, TagsOf: groupOf})
				var red, blue []string
				for i := range 50 {
					red, blue = append(red, fmt.Sprint("red ", i)), append(blue, fmt.Sprint("blue ", i))
					db.write(red[i], 1)
					db.write(blue[i], 1)
				}
				read := func(when string, keys []string, want int, wantLoads int64) {
					t.Helper()
					loads := db.loads.Load()
					for i, cache := range caches {
						m, err := cache.GetMany(t.Context(), keys)
						if len(m) != len(keys) || err != nil {
							t.Fatalf("%s: node %d: got %d of %d values, %v", when, i, len(m), len(keys), err)
						}
						for k, v := range m {
							if v != want {
								t.Errorf("%s: node %d: %s is %d, want %d", when, i, k, v, want)
							}
						}
					}
					if got := db.loads.Load() - loads; got != wantLoads {
						t.Errorf("%s: got %d loads, want %d", when, got, wantLoads)
					}
				}
				read("before", slices.Concat(red, blue), 1, 100)
				time.Sleep(time.Millisecond) // what is loaded in the instant of an invalidation may be older than it
				for i, k := range red {
					db.write(k, 2)
					db.write(blue[i], 2)
				}
				if err := caches[nodes-1].InvalidateTag(t.Context(), "red", "a tag that nothing has"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				read("red, after its tag was invalidated", red, 2, 50)
				read("blue, after another tag was invalidated", blue, 1, 0)
				time.Sleep(2 * time.Minute) // no near copy is left
				read("red, at its owners", red, 2, 0)
				for i, cache := range caches {
					if got := cache.Stats().TagsInvalidated; got != 2 {
						t.Errorf("node %d: got %d tags invalidated, want 2", i, got)
					}
				}
			})
		})
	}
}

// R15: a load that read the old row and stalls while a tag of it is invalidated, which nobody knows before it is over: in all placements of
// holder and invalidator.
func TestAnOldLoadOfATagIsNotStored(t *testing.T) {
	for name, tt := range map[string]struct {
		holder, writer int
	}{
		"owner loads, owner invalidates":          {0, 0},
		"another loads, owner invalidates":        {1, 0},
		"owner loads, another invalidates":        {0, 1},
		"another loads, the holder invalidates":   {1, 1},
		"another loads, a third node invalidates": {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				db := newStalling()
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TagsOf: func(string, int) []string { return []string{"tag"} }})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				db.write(key, 1)
				release := db.stall(key)
				var wg sync.WaitGroup
				get := func(i, want int, who string) {
					wg.Go(func() {
						if v, err := caches[i].Get(t.Context(), key); v != want || err != nil {
							t.Errorf("%s on node %d: got %d, %v, want %d", who, i, v, err, want)
						}
					})
				}
				get(tt.holder, 1, "the caller that loads")
				synctest.Wait()
				time.Sleep(time.Millisecond)
				db.write(key, 2)
				if err := caches[tt.writer].InvalidateTag(t.Context(), "tag"); err != nil {
					t.Fatal(err)
				}
				for i := range caches {
					get(i, 2, "a caller after the invalidation")
				}
				synctest.Wait()
				release()
				wg.Wait()
				synctest.Wait()
				wantEverywhere(t, "after the old load", caches, key, 2)
				time.Sleep(2 * time.Minute) // no near copy is left: what does the owner have?
				wantEverywhere(t, "later", caches, key, 2)
				if got := total(caches, func(s nearcache.KeyspaceStats) int64 { return int64(s.Rejected) }); got != 1 {
					t.Errorf("got %d rejected fills, want 1", got)
				}
				if got := db.loads.Load(); got != 2 {
					t.Errorf("got %d loads, want the old one and one more", got)
				}
				wantIdle(t, caches)
			})
		})
	}
}

// R3: an answer that an invalidation of its tag has overtaken becomes no near copy.
func TestAnAnswerOvertakenByATagIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3, testcluster.PeerTimeout(2*time.Second))
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TagsOf: func(string, int) []string { return []string{"tag"} }})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		wantEverywhere(t, "the owner", caches[:1], key, 1)
		c.Network.Delay(testcluster.Host(0), testcluster.Host(1), 400*time.Millisecond)
		var wg sync.WaitGroup
		wg.Go(func() { wantEverywhere(t, "the overtaken caller", caches[1:2], key, 1) })
		time.Sleep(100 * time.Millisecond)
		db.write(key, 2)
		if err := caches[2].InvalidateTag(t.Context(), "tag"); err != nil { // n1 hears it from n2 before n0's answer
			t.Fatal(err)
		}
		wg.Wait()
		time.Sleep(10 * time.Millisecond)
		wantEverywhere(t, "after the answer", caches, key, 2)
	})
}

// A copy that a member took after it had been told, from an owner that had not been told yet, goes when the owner is: by the owner's log.
func TestACopyTakenBeforeTheOwnerIsToldOfATag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3, testcluster.PeerTimeout(2*time.Second))
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TagsOf: func(string, int) []string { return []string{"tag"} }})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		db.write(key, 1)
		wantEverywhere(t, "the owner", caches[:1], key, 1)
		c.Network.Delay(testcluster.Host(2), testcluster.Host(0), 300*time.Millisecond)
		var wg sync.WaitGroup
		db.write(key, 2)
		wg.Go(func() {
			if err := caches[2].InvalidateTag(t.Context(), "tag"); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		wantEverywhere(t, "a member that has been told, before the owner is", caches[1:2], key, 1)
		wg.Wait()
		synctest.Wait()
		wantEverywhere(t, "afterwards", caches, key, 2)
	})
}

// A new owner that has been told of a tag does not take over what the former owner, which has not been told yet, still holds (R10b).
func TestAPeekBeforeTheFormerOwnerIsToldOfATag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3, testcluster.PeerTimeout(2*time.Second))
		db := newDatabase(func() time.Duration { return 0 })
		cfg := nearcache.Config[int]{Load: db.load, TagsOf: func(string, int) []string { return []string{"tag"} }}
		caches := open(t, c, "ks", cfg)
		former := make(map[string]string)
		for i := range 100 {
			key := fmt.Sprint("key-", i)
			db.write(key, 1)
			former[key] = c.Nodes[0].Owner("ks", key).ID
			wantEverywhere(t, "before", caches[:1], key, 1)
		}
		c.Nodes = append(c.Nodes, c.Start(3))
		newcomer, err := nearcache.New(c.Nodes[3], "ks", cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.List.Set(c.Members()...)
		c.Ready()
		time.Sleep(2 * time.Second)
		tested := 0
		for key, owner := range former {
			if c.Nodes[0].Owner("ks", key).ID != "n3" || owner == "n0" {
				continue
			}
			tested++
			slow := int(owner[1] - '0')
			c.Network.Delay(testcluster.Host(0), testcluster.Host(slow), 40*time.Millisecond)
			var wg sync.WaitGroup
			db.write(key, 2)
			wg.Go(func() {
				if err := caches[0].InvalidateTag(t.Context(), "tag"); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(20 * time.Millisecond)
			if _, err := newcomer.Get(t.Context(), key); err != nil {
				t.Error(err)
			}
			wg.Wait()
			c.Network.Delay(testcluster.Host(0), testcluster.Host(slow), 0)
			synctest.Wait()
			wantEverywhere(t, "afterwards", []*nearcache.Cache[int]{newcomer}, key, 2)
		}
		if tested < 5 {
			t.Errorf("only %d keys moved: this has tested nothing", tested)
		}
	})
}

// Neither a stand-in nor a node that loads alone has an old value for those who come after the invalidation of its tag.
func TestTagsAtStandInsAndAlone(t *testing.T) {
	for _, nodes := range []int{3, 2} { // of two nodes the one that is left has nobody to ask
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, nodes)
				var took atomic.Int64
				db := newDatabase(func() time.Duration { return time.Duration(took.Load()) })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, TagsOf: groupOf})
				var keys []string
				for i := 0; len(keys) < 2; i++ {
					if k := fmt.Sprint("red ", i); c.Nodes[0].Owner("ks", k).ID == "n0" {
						keys = append(keys, k)
						db.write(k, 1)
					}
				}
				c.Network.Isolate(testcluster.Host(0))
				if _, err := caches[1].Get(t.Context(), keys[0]); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				took.Store(int64(5 * time.Second))
				wg.Go(func() { _, _ = caches[1].Get(t.Context(), keys[1]) })
				time.Sleep(200 * time.Millisecond)
				took.Store(int64(time.Millisecond))
				for _, k := range keys {
					db.write(k, 2)
				}
				err := caches[nodes-1].InvalidateTag(t.Context(), "red")
				if nodes == 2 { // no majority, so that nobody knows what n0 has
					partial, ok := errors.AsType[*nearcache.PartialError](err)
					if !ok || !slices.Contains(partial.Members, "n0") || !slices.Equal(partial.Tags, []string{"red"}) || partial.StaleFor <= 0 || len(partial.Keys) > 0 {
						t.Errorf("got %v, want a *PartialError for red and n0", err)
					}
				} else if err != nil {
					t.Error(err)
				}
				for range 10 {
					for _, k := range keys {
						wantEverywhere(t, "after the invalidation", caches[1:], k, 2)
					}
					time.Sleep(100 * time.Millisecond)
				}
				wg.Wait()
				c.Network.HealAll()
			})
		})
	}
}

// R9, R7: a member that was cut off from everybody when a tag was invalidated serves nothing old two Bounds after the cut, nor when it
// is back; one that only the caller does not reach is told of the tag through another.
func TestAMemberThatMissedATag(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprint("cut off from everybody: ", alone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3)
				c.Warm()
				db := newDatabase(func() time.Duration { return 0 })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TTL: time.Hour, TagsOf: groupOf})
				var keys []string
				for i := range 60 {
					keys = append(keys, fmt.Sprint("red ", i))
					db.write(keys[i], 1)
					wantEverywhere(t, "before", caches, keys[i], 1)
				}
				time.Sleep(time.Second)
				if alone {
					c.Network.Isolate(testcluster.Host(2))
				} else {
					c.Network.Cut(testcluster.Host(2), testcluster.Host(0))
				}
				for _, k := range keys {
					db.write(k, 2)
				}
				if err := caches[0].InvalidateTag(t.Context(), "red"); err != nil {
					t.Fatal(err)
				}
				if got := caches[2].Stats(); !alone && (got.TagsInvalidated == 0 || got.Invalidations > 0) {
					t.Errorf("relayed: got %d tags and %d keys invalidated, want the tag and nothing else", got.TagsInvalidated, got.Invalidations)
				}
				for _, k := range keys {
					wantEverywhere(t, "the caller", caches[:1], k, 2)
				}
				time.Sleep(2200 * time.Millisecond)
				for _, k := range keys {
					wantEverywhere(t, "two Bounds after the cut", caches, k, 2)
				}
				c.Network.HealAll()
				time.Sleep(time.Second)
				for range 70 { // beyond all near lifetimes
					for _, k := range keys {
						wantEverywhere(t, "after the link is back", caches, k, 2)
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// A member that starts again has forgotten which tags were invalidated, and everything that could be older.
func TestTagsAcrossARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		cfg := nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TTL: time.Hour, TagsOf: groupOf}
		caches := open(t, c, "ks", cfg)
		var keys []string
		for i := range 60 {
			keys = append(keys, fmt.Sprint("red ", i))
		}
		for version := 1; version <= 3; version++ {
			for _, k := range keys {
				db.write(k, version)
			}
			if err := caches[version%2].InvalidateTag(t.Context(), "red"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for _, k := range keys {
				wantEverywhere(t, fmt.Sprint("version ", version), caches, k, version)
			}
			c.Crash(2)
			c.Restart(2)
			c.Ready()
			var err error
			if caches[2], err = nearcache.New(c.Nodes[2], "ks", cfg); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			for _, k := range keys {
				wantEverywhere(t, fmt.Sprint("version ", version, ", after a restart"), caches, k, version)
			}
		}
	})
}

// More tags than the table has places: none is missed, and what is loaded afterwards stays.
func TestMoreTagsThanPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		c.Warm()
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TTL: time.Hour, TagsOf: groupOf})
		keys := []string{"red 0", "red 1", "red 2"}
		for _, k := range keys {
			db.write(k, 1)
			wantEverywhere(t, "before", caches, k, 1)
			db.write(k, 2)
		}
		time.Sleep(time.Millisecond)
		tags := make([]string, 100_000)
		for i := range tags {
			tags[i] = fmt.Sprint("tag ", i)
		}
		tags[50_000] = "red"
		for part := range slices.Chunk(tags, 10_000) {
			if err := caches[0].InvalidateTag(t.Context(), part...); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for _, k := range keys {
			wantEverywhere(t, "afterwards", caches, k, 2)
		}
		loads := db.loads.Load()
		for _, k := range keys {
			wantEverywhere(t, "again", caches, k, 2)
		}
		if got := db.loads.Load() - loads; got != 0 {
			t.Errorf("%d loads of what had just been loaded, want none", got)
		}
	})
}

// R16: a member that was not told of a tag's invalidation does not bring the old value back to the process that made it.
func TestTheCallersOwnViewOfTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		c.Warm()
		db := newDatabase(func() time.Duration { return time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1, TTL: time.Hour, TagsOf: groupOf})
		key := ""
		for i := 0; c.Nodes[0].Owner("ks", key).ID != "n0" || key == ""; i++ {
			key = fmt.Sprint("red ", i)
		}
		db.write(key, 1)
		wantEverywhere(t, "before", caches, key, 1)
		time.Sleep(time.Second)
		db.write(key, 2)
		c.Network.Cut(testcluster.Host(0), testcluster.Host(1))
		if err := caches[1].InvalidateTag(t.Context(), "red"); !errors.As(err, new(*nearcache.PartialError)) {
			t.Fatalf("got %v, want a *PartialError", err)
		}
		c.Network.Reset(testcluster.Host(0), testcluster.Host(1)) // what was sent is lost
		c.Network.HealAll()
		// The owner can be asked again a moment before it is told.
		for range 1000 {
			if v, ok, err := caches[1].Peek(t.Context(), key); ok && v == 1 || err != nil {
				t.Fatalf("Peek in the process that invalidated: got %d, %v, %v, want nothing or the new value", v, ok, err)
			}
			wantEverywhere(t, "the process that invalidated", caches[1:2], key, 2)
			if t.Failed() {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// A Set has the tags of its value.
func TestSetHasTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 0 })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TagsOf: groupOf})
		for i, key := range []string{"red 0", "red 1", "red 2", "red 3", "blue 0"} {
			db.write(key, 2)
			if stored, err := caches[i%3].Set(t.Context(), key, 1); !stored || err != nil {
				t.Fatal(stored, err)
			}
			wantEverywhere(t, "after Set", caches, key, 1)
		}
		time.Sleep(time.Millisecond)
		if err := caches[0].InvalidateTag(t.Context(), "red"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for key, want := range map[string]int{"red 0": 2, "red 1": 2, "red 2": 2, "red 3": 2, "blue 0": 1} {
			wantEverywhere(t, "after InvalidateTag", caches, key, want)
		}
	})
}

// Values whose tags are not known go with every tag: where a member has no TagsOf, as in a rolling deploy, and where TagsOf returns what is
// no tag. What TagsOf returned belongs to it again afterwards.
func TestTagsThatAreNotKnown(t *testing.T) {
	long := strings.Repeat("x", 255)
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	reused := make([]string, 1)
	for name, tt := range map[string]struct {
		tagsOf func(string, int) []string
		known  bool
		over   uint64
	}{
		"no TagsOf": {nil, false, 0},
		"too many":  {func(string, int) []string { return many }, false, 1},
		"empty":     {func(string, int) []string { return []string{""} }, false, 1},
		"too long":  {func(string, int) []string { return []string{long + "x"} }, false, 1},
		"at limits": {func(string, int) []string { return append([]string{long}, many[2:]...) }, true, 0},
		"none":      {func(string, int) []string { return nil }, true, 0},
		"reused": {func(key string, _ int) []string {
			reused[0] = "tag of " + key
			return reused
		}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2)
				db := newDatabase(func() time.Duration { return 0 })
				caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: time.Minute, TagsOf: tt.tagsOf})
				key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
				db.write(key, 1)
				if _, err := caches[1].Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				wantEverywhere(t, "before", caches, key, 1)
				if got := caches[1].Stats().OverTagged; got != tt.over {
					t.Errorf("got %d values with tags that are no tags, want %d", got, tt.over)
				}
				reused[0] = "another tag"
				time.Sleep(time.Millisecond)
				db.write(key, 2)
				if err := caches[0].InvalidateTag(t.Context(), "another tag"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				want := 2
				if tt.known {
					want = 1
				}
				wantEverywhere(t, "after another tag was invalidated", caches, key, want)
			})
		})
	}
}

func TestInvalidateTagRefuses(t *testing.T) {
	c, err := nearcache.New(nil, "ks", nearcache.Config[int]{Load: func(context.Context, string) (int, error) { return 1, nil }, TagsOf: groupOf})
	if err != nil {
		t.Fatal(err)
	}
	for name, tags := range map[string][]string{"empty": {"ok", ""}, "long": {strings.Repeat("x", 256)}} {
		if err := c.InvalidateTag(t.Context(), tags...); !errors.Is(err, nearcache.ErrInvalidTag) {
			t.Errorf("%s: got %v, want ErrInvalidTag", name, err)
		}
	}
	if got := c.Stats().TagsInvalidated; got != 0 {
		t.Errorf("got %d tags invalidated by calls that were refused, want 0", got)
	}
	if err := c.InvalidateTag(t.Context()); err != nil {
		t.Errorf("no tags: %v", err)
	}
	if err := c.InvalidateTag(t.Context(), strings.Repeat("x", 255), "red"); err != nil {
		t.Errorf("two tags: %v", err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.InvalidateTag(t.Context(), "red"); !errors.Is(err, nearcache.ErrClosed) {
		t.Errorf("closed: got %v, want ErrClosed", err)
	}
}
