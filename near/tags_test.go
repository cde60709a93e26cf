package near

import (
	"fmt"
	"testing"

	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/tag"
)

// R15: an invalidation of a tag ends the copies whose request was sent before it, whenever they are installed.
func TestInvalidatedTagEndsCopies(t *testing.T) {
	const red, blue = 1, 2
	c := New[string](store.Config{MaxBytes: 1 << 20})
	install := func(key string, m tag.Mark, pos int64) {
		c.Install(key, Item[string]{Value: key, Mark: m.At(pos)}, 1, 100, 0, yes)
	}
	sent := c.TagPos()
	install("red", tag.Of([]uint64{blue, red}), sent)
	install("blue", tag.Of([]uint64{blue}), sent)
	install("none", tag.Of(nil), sent)
	install("unknown", tag.Mark{}, sent)
	c.InvalidateTags([]uint64{red}, 0)
	install("late", tag.Of([]uint64{red}), sent)
	install("new", tag.Of([]uint64{red}), c.TagPos())
	for key, want := range map[string]bool{"red": false, "blue": true, "none": true, "unknown": false, "late": false, "new": true} {
		if got := c.Get(key, 1) != nil; got != want {
			t.Errorf("copy %q: servable %v, want %v", key, got, want)
		}
	}
}

// The tags of a copy count in its bytes.
func TestTagsCount(t *testing.T) {
	c := New[string](store.Config{MaxBytes: 1 << 20})
	c.Install("k", Item[string]{Mark: tag.Of(nil)}, 1, 100, 0, yes)
	without := c.Stats().Bytes
	c.Install("k", Item[string]{Mark: tag.Of([]uint64{1, 2, 3})}, 1, 100, 0, yes)
	if got, want := c.Stats().Bytes-without, int64(termsBytes+24); got != want {
		t.Errorf("three tags count %d bytes, want %d", got, want)
	}
}

// BenchmarkGetTags is a hit of a copy without tags, and of one with three, before and after another tag was invalidated. Compare with
// BenchmarkGet.
func BenchmarkGetTags(b *testing.B) {
	src := source(1, 1<<40)
	for _, n := range []int{0, 3} {
		c := New[[]byte](store.Config{MaxBytes: 1 << 30})
		for i := range 1000 {
			var tags []uint64
			for j := range n {
				tags = append(tags, tag.Hash(fmt.Sprint(i, j)))
			}
			c.Install(fmt.Sprintf("product:%016x", i), Item[[]byte]{Source: src, Gen: 1, Mark: tag.Of(tags).At(c.TagPos())}, 1, 1<<40, 0, yes)
		}
		key := "product:0000000000000007"
		for _, when := range []string{"before", "after"} {
			b.Run(fmt.Sprintf("%d/%s", n, when), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if c.Get(key, 1) == nil {
						b.Fatal("miss")
					}
				}
			})
			c.InvalidateTags([]uint64{tag.Hash("another")}, 1)
		}
	}
}
