package transport

import (
	"math/bits"
	"sync"
)

const (
	minPooledBits = 11 // 2 KiB: gRPC does not give back buffers of 1 KiB or less
	maxPooledBits = 22 // 4 MiB
)

// bufferPool is a mem.BufferPool with one class per power of two from 2 KiB to 4 MiB. Unlike gRPC's own it does not clear buffers and
// has no wide gaps between the classes. The zero value is ready; it is safe for concurrent use.
//
// A buffer's old content is visible beyond what its holder wrote: nobody may read past that.
type bufferPool struct {
	classes [maxPooledBits - minPooledBits + 1]sync.Pool // of *[]byte with exactly the class's capacity
}

// Get returns a buffer of n bytes with arbitrary content.
func (p *bufferPool) Get(n int) *[]byte {
	if n > 1<<maxPooledBits {
		b := make([]byte, n)
		return &b
	}
	class := max(bits.Len(uint(max(n, 1)-1)), minPooledBits) - minPooledBits
	if b, ok := p.classes[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(class+minPooledBits))
	return &b
}

// Put takes a buffer back. Those that did not come from Get, or are larger than the largest class, are left to the
// garbage collector.
func (p *bufferPool) Put(b *[]byte) {
	c := cap(*b)
	if c < 1<<minPooledBits || c > 1<<maxPooledBits || c&(c-1) != 0 {
		return
	}
	*b = (*b)[:c]
	p.classes[bits.Len(uint(c))-1-minPooledBits].Put(b)
}
