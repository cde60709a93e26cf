package counter

import (
	"sync"
	"testing"
	"unsafe"
)

// Case stats-1: no addition is lost.
func TestExact(t *testing.T) {
	var c Counter
	const goroutines, each = 64, 1000
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for range each {
				c.Add(int64(g))
			}
		})
	}
	wg.Wait()
	c.Add(-5)
	if got, want := c.Load(), int64(each*goroutines*(goroutines-1)/2-5); got != want {
		t.Errorf("Load() = %d, want %d", got, want)
	}
}

func TestStripes(t *testing.T) {
	if stripes != 1<<4 {
		t.Errorf("pick returns 4 bits, there are %d stripes", stripes)
	}
	if got := unsafe.Sizeof(Counter{}); got != stripes*64 {
		t.Errorf("a Counter has %d bytes, want %d: a line per stripe", got, stripes*64)
	}
	// Goroutines that live at the same time spread over the stripes.
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg, all sync.WaitGroup
	all.Add(64)
	for range 64 {
		wg.Go(func() {
			all.Done()
			all.Wait()
			p := pick()
			mu.Lock()
			seen[p] = true
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(seen) < stripes/2 {
		t.Errorf("64 goroutines used %d of %d stripes", len(seen), stripes)
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	var c Counter
	if n := testing.AllocsPerRun(1000, func() { c.Add(1) }); n != 0 {
		t.Errorf("allocations per Add: %v, want 0", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	b.Run("one", func(b *testing.B) {
		var c Counter
		for b.Loop() {
			c.Add(1)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		var c Counter
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.Add(1)
			}
		})
	})
}
