// Package counter is an exact counter that many goroutines add to without sharing a cache line.
package counter

import (
	"sync/atomic"
	"unsafe"
)

// stripes is a power of two. More take 64 bytes each and spare collisions on machines with many cores.
const stripes = 16

// Counter is a sum. The zero Counter is 0 and ready for use; it must not be copied. All methods are safe for concurrent
// use, do not block and do not allocate.
type Counter struct {
	stripe [stripes]struct {
		n atomic.Int64
		_ [56]byte
	}
}

// Add adds n. A goroutine mostly hits the same stripe, and different goroutines different ones.
func (c *Counter) Add(n int64) { c.stripe[pick()].n.Add(n) }

// Load returns the sum of all that was added before it was called, and of some of what is added meanwhile.
func (c *Counter) Load() int64 {
	sum := int64(0)
	for i := range c.stripe {
		sum += c.stripe[i].n.Load()
	}
	return sum
}

// pick hashes the address of the calling goroutine's stack: stacks are at least 2 KiB apart. Any result is correct.
func pick() uint64 {
	var here byte
	return uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9e3779b97f4a7c15 >> (64 - 4)
}
