package near

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/tag"
)

func yes() bool { return true }

func source(gen uint64, leaseUntil int64) *Source {
	s := new(Source)
	s.Gen.Store(gen)
	s.LeaseUntil.Store(leaseUntil)
	return s
}

// R4: a near copy is served before its deadline, under its generation, and within its own free time or its source's
// lease.
func TestServable(t *testing.T) {
	tests := []struct {
		name     string
		src      *Source
		gen      uint64
		free     int64
		deadline int64
		now      int64
		want     bool
	}{
		{"own shard", nil, 0, 0, 100, 99, true},
		{"own shard, expired", nil, 0, 0, 100, 100, false},
		{"free", source(7, 0), 7, 50, 100, 49, true},
		{"free time over, no lease", source(7, 0), 7, 50, 100, 50, false},
		{"leased", source(7, 80), 7, 50, 100, 79, true},
		{"lease lapsed", source(7, 80), 7, 50, 100, 80, false},
		{"free longer than leased", source(7, 40), 7, 50, 100, 45, true},
		{"leased, expired", source(7, 1000), 7, 50, 100, 100, false},
		{"another generation", source(8, 1000), 7, 1000, 1000, 1, false},
		{"an earlier generation", source(6, 1000), 7, 1000, 1000, 1, false},
	}
	for _, tt := range tests {
		c := New[string](store.Config{MaxBytes: 1 << 20})
		c.Install("k", Item[string]{Source: tt.src, Gen: tt.gen, Free: tt.free, Value: "v", Seq: 3}, 1, tt.deadline, 0, yes)
		it := c.Get("k", tt.now)
		if (it != nil) != tt.want {
			t.Errorf("%s: Get = %v, want one: %v", tt.name, it, tt.want)
		}
		if it != nil && it.Value != "v" {
			t.Errorf("%s: Get = %+v, not what was installed", tt.name, it)
		}
	}
}

// A lapsed lease that is renewed makes the copies servable again; a bumped generation kills them for good, all at once.
func TestLeaseAndGeneration(t *testing.T) {
	c := New[int](store.Config{MaxBytes: 1 << 20})
	a, b := source(1, 100), source(1, 100)
	for i := range 10 {
		src := a
		if i%2 == 1 {
			src = b
		}
		c.Install(fmt.Sprint(i), Item[int]{Source: src, Gen: 1, Value: i}, 8, 1000, 0, yes)
	}
	live := func(now int64) (n int) {
		for i := range 10 {
			if c.Get(fmt.Sprint(i), now) != nil {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		name string
		do   func()
		now  int64
		want int
	}{
		{"leased", func() {}, 99, 10},
		{"lapsed", func() {}, 100, 0},
		{"a renewed", func() { a.LeaseUntil.Store(200) }, 100, 5},
		{"b renewed", func() { b.LeaseUntil.Store(200) }, 100, 10},
		{"a's generation bumped", func() { a.Gen.Add(1) }, 100, 5},
		{"a renewed again", func() { a.LeaseUntil.Store(900) }, 100, 5},
		{"expired", func() { b.LeaseUntil.Store(2000) }, 1000, 0},
	} {
		step.do()
		if got := live(step.now); got != step.want {
			t.Errorf("%s: %d copies are servable, want %d", step.name, got, step.want)
		}
	}
	if got := c.Clear(); got != 10 || c.Stats().Entries != 0 {
		t.Errorf("Clear = %d, %d left, want 10 and 0", got, c.Stats().Entries)
	}
}

func TestInvalidate(t *testing.T) {
	src, other := source(1, 100), source(1, 100)
	tests := []struct {
		name string
		from *Source
		gen  uint64 // of the copy
		seq  uint64
		inv  uint64
		want bool
	}{
		{"older copy", src, 1, 4, 5, true},
		{"read after the event", src, 1, 5, 5, false},
		{"read after a later event", src, 1, 6, 5, false},
		{"older copy, many events", src, 1, 1<<32 + 4, 1<<32 + 5, true},
		{"much older copy", src, 1, 9, 1<<32 + 5, true},
		{"read much later", src, 1, 1<<32 + 4, 5, false},
		{"late duplicate still deletes", src, 1, 4, 9, true},
		{"copy from an earlier life", src, 0, 6, 5, true},
		{"copy from another member", other, 1, 6, 5, true},
		{"own shard", nil, 1, 0, 5, true},
	}
	for _, tt := range tests {
		c := New[int](store.Config{MaxBytes: 1 << 20})
		c.Install("k", Item[int]{Source: tt.from, Gen: tt.gen, Seq: tt.seq}, 8, 100, 0, yes)
		if got := c.Invalidate("k", src, tt.inv); got != tt.want {
			t.Errorf("%s: Invalidate = %v, want %v", tt.name, got, tt.want)
		}
		if got := c.Stale("k", 1) == nil; got != tt.want {
			t.Errorf("%s: gone is %v, want %v", tt.name, got, tt.want)
		}
		if c.Invalidate("absent", src, 5) {
			t.Errorf("%s: an absent key was dropped", tt.name)
		}
	}
}

func TestInstall(t *testing.T) {
	c := New[string](store.Config{MaxBytes: 1000})
	if c.Install("k", Item[string]{Value: "v"}, 1, 100, 0, func() bool { return false }) || c.Get("k", 1) != nil {
		t.Error("a copy was installed although it was not to be")
	}
	if !c.Install("k", Item[string]{Value: "v"}, 1, 100, 0, yes) || c.Get("k", 1) == nil {
		t.Error("a copy was not installed")
	}
	if c.Install("k", Item[string]{Value: "w"}, 1, 100, 0, func() bool { return false }) || c.Get("k", 1).Value != "v" {
		t.Error("a copy that was not to be installed replaced one")
	}
	if c.Install("k", Item[string]{Value: strings.Repeat("x", 2000)}, 2000, 100, 0, yes) || c.Get("k", 1) != nil {
		t.Error("a copy that is too large was installed, or the old one stayed")
	}
	// Case L1-17: an empty value and an absence are kept, and differ.
	c.Install("empty", Item[string]{}, 0, 100, 0, yes)
	c.Install("absent", Item[string]{Absent: true}, 0, 100, 0, yes)
	if it := c.Get("empty", 1); it == nil || it.Absent() {
		t.Errorf("empty: %+v", it)
	}
	if it := c.Get("absent", 1); it == nil || !it.Absent() {
		t.Errorf("absent: %+v", it)
	}
	if !c.Delete("empty") || c.Delete("empty") || c.Get("empty", 1) != nil {
		t.Error("Delete does not tell or do what it should")
	}
	if got := c.Sweep(1 << 40); got == 0 || c.Stats().Entries != 0 {
		t.Errorf("Sweep = %d with %d left", got, c.Stats().Entries)
	}
}

// Case lease-2, case invalidation-6: a reply on its way to L1 is overtaken by the invalidation. The owner's side
// writes a version, numbers the event, and the receiver marks its fetch and invalidates; meanwhile the fetch that
// read the older version installs it. Whatever the interleaving, when both have ended no copy is left that is older
// than the event.
func TestInstallRacesInvalidate(t *testing.T) {
	rounds := 10_000
	if testing.Short() {
		rounds = 1000
	}
	c := New[uint64](store.Config{MaxBytes: 1 << 20})
	src := source(1, 1<<40)
	for i := range uint64(rounds) {
		event := i + 1
		var marked atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() { // the reply: read when event i was the last one
			c.Install("k", Item[uint64]{Source: src, Gen: 1, Value: i, Seq: i}, 8, 1<<40, 0, func() bool { return !marked.Load() })
		})
		wg.Go(func() { // the invalidation
			marked.Store(true)
			c.Invalidate("k", src, event)
		})
		wg.Wait()
		if it := c.Get("k", 1); it != nil && it.number() < event {
			t.Fatalf("round %d: a copy read at %d survived event %d", i, it.number(), event)
		}
		if i%2 == 0 { // every other round begins with a copy in place
			c.Install("k", Item[uint64]{Source: src, Gen: 1, Value: event, Seq: event}, 8, 1<<40, 0, yes)
		}
	}
}

// The worst interleaving of the above, forced: the mark and the invalidation come just after still has looked. (Ask
// still before the lock in Install, and this test fails.)
func TestInvalidateBetweenStillAndTheCopy(t *testing.T) {
	c := New[uint64](store.Config{MaxBytes: 1 << 20})
	src := source(1, 1<<40)
	var marked, done atomic.Bool
	var wg sync.WaitGroup
	still := func() bool {
		ok := !marked.Load()
		wg.Go(func() {
			marked.Store(true)
			c.Invalidate("k", src, 1)
			done.Store(true)
		})
		for i := 0; i < 10_000 && !done.Load(); i++ { // give it every chance: it has to wait for Install
			runtime.Gosched()
		}
		return ok
	}
	if !c.Install("k", Item[uint64]{Source: src, Gen: 1}, 8, 1<<40, 0, still) {
		t.Error("the mark was seen before it was set")
	}
	wg.Wait()
	if it := c.Get("k", 1); it != nil {
		t.Errorf("a copy read at %d survived event 1", it.number())
	}
}

// item is what was installed, but for what matters only then.
func (c *Copy[V]) item() *Item[V] {
	t := c.terms
	return &Item[V]{
		Value: c.Value, Absent: c.Absent(), Source: t.source, Gen: t.gen, Seq: c.number(), Free: c.free, LoadedAt: c.LoadedAt(),
		Version: c.Version(), Mark: t.mark, Stale: t.stale,
	}
}

// The copies of a member share what they have in common: else each of them takes a second object.
func TestTermsAreShared(t *testing.T) {
	c := New[int](store.Config{MaxBytes: 1 << 20})
	a, b := source(1, 100), source(1, 100)
	install := func(it Item[int]) *terms {
		c.Install("k", it, 8, 100, 0, yes)
		return c.Get("k", 1).terms
	}
	first := install(Item[int]{Source: a, Gen: 1, Value: 1, Seq: 1, LoadedAt: 1, Free: 50})
	if got := install(Item[int]{Source: a, Gen: 1, Value: 2, Seq: 2, LoadedAt: 2, Free: 60}); got != first {
		t.Error("two copies of one member do not share their terms")
	}
	for i, it := range []Item[int]{
		{Source: b, Gen: 1},
		{Gen: 1},
		{Source: a, Gen: 1, Stale: 5},
		{Source: a, Gen: 1, Absent: true},
		{Source: a, Gen: 1, Version: 1},
		{Source: a, Gen: 1, Seq: 1 << 40},
		{Source: a, Gen: 1, Mark: tag.Of(nil)},
		{Source: a, Gen: 1, Mark: tag.Of([]uint64{1})},
		{Source: a, Gen: 1, Mark: tag.Mark{}.At(1)},
	} {
		if got := install(it); *got != termsOf(&it) {
			t.Errorf("item %d: the copy has %+v", i, got)
		}
	}
	for i := range 3 * maxShared { // generations
		c.terms.of(&terms{source: a, gen: uint64(i)}, false)
	}
	if got := len(c.terms.known); got > maxShared {
		t.Errorf("%d terms are known, want %d at most", got, maxShared)
	}
}

// The start of a load comes out up to a tick earlier than it went in, and of an old value as far back as there is room for.
func TestLoadedAt(t *testing.T) {
	const tick = 1 << tickBits
	hour := int64(time.Hour)
	for _, tt := range []struct{ free, loaded, earliest int64 }{
		{100 * hour, 99 * hour, 99*hour - tick},
		{100 * hour, 101 * hour, 101*hour - tick}, // it began while the request waited
		{hour, -50 * hour, -50*hour - tick},       // before this process did
		{5 * tick, 2 * tick, 2 * tick},
		{0, -10_000 * hour, -math.MaxInt32 * tick},
	} {
		c := newCopy(&Item[int]{Free: tt.free, LoadedAt: tt.loaded}, &terms{})
		if got := c.LoadedAt(); got < tt.earliest || got > max(tt.loaded, -math.MaxInt32*tick) {
			t.Errorf("free until %d, loaded at %d: got %d", tt.free, tt.loaded, got)
		}
	}
}

// Eight bytes more and every entry takes sixteen more of the heap (docs/performance.md).
func TestEntrySize(t *testing.T) {
	if got := unsafe.Sizeof(store.Entry[Copy[[]byte]]{}); got > 96 {
		t.Errorf("an entry has %d bytes, want 96 at most", got)
	}
	if got := unsafe.Sizeof(terms{}); got > termsBytes {
		t.Errorf("terms have %d bytes, more than they count: %d", got, termsBytes)
	}
}

// What this process has loaded for want of the owner lasts as long as the owner's copy that it replaces: not if that is newer, or a tag of it was
// invalidated.
func TestACopyInherits(t *testing.T) {
	const red = 1
	for name, tt := range map[string]struct {
		loadedAt   int64 // in ticks
		tagged     bool
		kept, last string // fresh, and as a stale copy
	}{
		"newer":              {30, false, "own", "own"},
		"older":              {10, false, "", "owner's"},
		"newer, tag is over": {30, true, "own", ""},
		"older, tag is over": {10, true, "own", ""},
		"maybe older":        {20, false, "", "owner's"},
	} {
		t.Run(name, func(t *testing.T) {
			c, src := New[string](store.Config{MaxBytes: 1 << 20}), source(1, 1000)
			c.Install("k", Item[string]{Value: "owner's", Source: src, Gen: 1, LoadedAt: 20 << tickBits, Stale: 100, Mark: tag.Of([]uint64{red}).At(c.TagPos())}, 1, 40, 0, yes)
			if tt.tagged {
				c.InvalidateTags([]uint64{red}, 45)
			}
			c.Install("k", Item[string]{Value: "own", LoadedAt: tt.loadedAt << tickBits, Inherits: true, Mark: tag.Of([]uint64{red}).At(c.TagPos())}, 1, 60, 50, yes)
			value := func(it *Copy[string]) string {
				if it == nil {
					return ""
				}
				return it.Value
			}
			if got := value(c.Get("k", 55)); got != tt.kept {
				t.Errorf("Get: got %q, want %q", got, tt.kept)
			}
			if got := value(c.Stale("k", 100)); got != tt.last {
				t.Errorf("Stale: got %q, want %q", got, tt.last)
			}
		})
	}
}

// Random operations on two sources agree with a naive map that forgets nothing.
func TestModel(t *testing.T) {
	type copied struct {
		it       Item[int]
		deadline int64
		end      int64 // of the stale copy
	}
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := New[int](store.Config{MaxBytes: 1 << 30})
		model := map[string]copied{}
		sources := []*Source{nil, source(1, 100), source(1, 100)}
		now := int64(1)
		for i := range 20_000 {
			key := fmt.Sprint(r.IntN(40))
			src := sources[r.IntN(3)]
			switch op := r.IntN(20); {
			case op < 8:
				got := c.Get(key, now)
				w, ok := model[key]
				s := w.it.Source
				want := ok && now < w.deadline && (s == nil || w.it.Gen == s.Gen.Load() && (now < w.it.Free || now < s.LeaseUntil.Load()))
				if (got != nil) != want || want && *got.item() != w.it {
					t.Fatalf("seed %d, step %d: Get(%s) = %+v, want %+v (%v)", seed, i, key, got, w, want)
				}
				got = c.Stale(key, now)
				want = ok && now < w.end
				if (got != nil) != want || want && *got.item() != w.it {
					t.Fatalf("seed %d, step %d: Stale(%s) = %+v, want %+v (%v)", seed, i, key, got, w, want)
				}
			case op < 14:
				it := Item[int]{Source: src, Value: i, Seq: r.Uint64N(50), Free: now + r.Int64N(30), Version: r.Uint64N(3)}
				it.LoadedAt = it.Free - r.Int64N(10)<<tickBits
				if src != nil {
					it.Gen = src.Gen.Load() - r.Uint64N(2)
				}
				ok := true
				deadline := now + r.Int64N(200)
				switch r.IntN(3) {
				case 0:
					it.Stale = r.Int64N(200)
				case 1:
					it.Inherits = true
				}
				w := copied{it, deadline, deadline + it.Stale}
				if old, is := model[key]; is && it.Inherits && old.it.Stale > 0 && old.end > w.end && old.end > now {
					w.it.Source, w.it.Gen, w.it.Seq, w.end = old.it.Source, old.it.Gen, old.it.Seq, old.end
					w.it.Stale = w.end - deadline
					ok = it.LoadedAt >= old.it.LoadedAt+1<<tickBits
				}
				w.it.Inherits = false
				if may := r.IntN(4) > 0; c.Install(key, it, 10, deadline, now, func() bool { return may }) != (ok && may) {
					t.Fatalf("seed %d, step %d: Install did not obey", seed, i)
				} else if ok && may {
					model[key] = w
				}
			case op < 16:
				if src == nil {
					continue
				}
				seq := r.Uint64N(50)
				w, ok := model[key]
				want := ok && (w.it.Source != src || w.it.Gen != src.Gen.Load() || w.it.Seq < seq)
				if want {
					delete(model, key)
				}
				if got := c.Invalidate(key, src, seq); got != want && now < w.end {
					t.Fatalf("seed %d, step %d: Invalidate = %v, want %v", seed, i, got, want)
				}
			case op < 17:
				delete(model, key)
				c.Delete(key)
			case op < 18:
				now += r.Int64N(20)
				c.Sweep(now)
			case op < 19:
				if src != nil {
					src.LeaseUntil.Store(now + r.Int64N(100))
				}
			default:
				if src != nil && r.IntN(10) == 0 {
					src.Gen.Add(1)
				}
			}
		}
	}
}

func TestGetDoesNotAllocate(t *testing.T) {
	c := New[[]byte](store.Config{MaxBytes: 1 << 20})
	src := source(1, 100)
	c.Install("own", Item[[]byte]{Value: []byte("v")}, 1, 100, 0, yes)
	c.Install("near", Item[[]byte]{Source: src, Gen: 1}, 1, 100, 0, yes)
	for _, key := range []string{"own", "near", "absent"} {
		if n := testing.AllocsPerRun(1000, func() { c.Get(key, 50) }); n != 0 {
			t.Errorf("Get(%q): %v allocations, want 0", key, n)
		}
	}
}

// BenchmarkGet is a leased copy from another member; compare with the plain map beside it.
func BenchmarkGet(b *testing.B) {
	c := New[[]byte](store.Config{MaxBytes: 1 << 30})
	src := source(1, 1<<40)
	m := map[string]*Copy[[]byte]{}
	for i := range 1000 {
		key := fmt.Sprintf("product:%016x", i)
		c.Install(key, Item[[]byte]{Source: src, Gen: 1}, 1, 1<<40, 0, yes)
		m[key] = c.Get(key, 0)
	}
	key := strings.Clone("product:0000000000000007")
	b.Run("map", func(b *testing.B) {
		for b.Loop() {
			if m[key] == nil {
				b.Fatal("miss")
			}
		}
	})
	b.Run("near", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if c.Get(key, 1) == nil {
				b.Fatal("miss")
			}
		}
	})
}
