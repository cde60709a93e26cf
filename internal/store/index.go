package store

import (
	"math/bits"
	"sync/atomic"
)

// slotsPerBucket makes a bucket one 64-byte cache line: a word of tags and seven pointers.
const slotsPerBucket = 7

// Masks of a bucket's tag word: bytes 0 to 6 are the tags of the slots (the top bit set: occupied), byte 7 counts
// the resident entries whose search passes this bucket because it was full when they came.
const (
	tagOnes     = 0x0001010101010101
	tagTops     = 0x0080808080808080
	tagBytes    = 1<<56 - 1
	passedOne   = 1 << 56
	passedBits  = 0xff << 56
	minBuckets  = 2
	maxLoadNum  = 4 // an index grows beyond 4/5 occupied slots
	maxLoadDen  = 5
	shrinkBelow = 8 // and shrinks below 1/8
)

// bucket is one line of the index.
type bucket[V any] struct {
	tags  atomic.Uint64
	slots [slotsPerBucket]atomic.Pointer[Entry[V]]
}

// index finds entries by key: buckets of tagged slots, linear probing from bucket to bucket. Writers hold the
// shard's mutex; readers hold nothing.
//
// What a reader may rely on: an entry stays in its slot from insert to remove, so that a search which runs
// beside writers misses no entry that was resident all the time. A replaced entry is swapped in its slot. A larger
// index is a new one: searches that began in the old one end there, and see what was resident when they began.
//
// The count of passed entries per bucket is the F14 table's (Facebook, 2019): it makes removal exact, so that there are
// no tombstones and no periodic rebuilds. It sticks at 255.
type index[V any] struct {
	buckets []bucket[V] // a power of two
	used    int         // occupied slots; guarded by the shard's mutex
}

// newIndex returns an index for n entries at no more than its maximum load.
func newIndex[V any](n int) *index[V] {
	size := minBuckets
	for size*slotsPerBucket*maxLoadNum < n*maxLoadDen {
		size *= 2
	}
	return &index[V]{buckets: make([]bucket[V], size)}
}

// place says where an entry is in the index: the bucket's number and, in the lowest three bits, the slot's, from 1 on. noPlace is none. What has to
// find entries besides the index, the queues and the deadline buckets, holds their places: four bytes, and nothing for the garbage collector
// to follow.
type place uint32

const (
	noPlace   place = 0
	placeBits       = 3
	placeSlot       = 1<<placeBits - 1
)

func placeOf(bucket uint32, slot int) place { return place(bucket<<placeBits | uint32(slot+1)) }

// tagOf is the seven highest bits of h and the occupied bit. The bucket is chosen by the lowest ones.
func tagOf(h uint32) uint64 { return uint64(h>>25 | 0x80) }

// matches has the top bit of byte i set where slot i may hold tag. A byte above a match can be reported falsely.
func matches(tags, tag uint64) uint64 {
	x := tags&tagBytes ^ tag*tagOnes
	return (x - tagOnes) &^ x & tagTops
}

// slotIn is the slot of the lowest match.
func slotIn(match uint64) int { return bits.TrailingZeros64(match) >> 3 }

// find returns the entry of key, or nil.
func (x *index[V]) find(h uint32, key string) *Entry[V] {
	mask, tag := uint32(len(x.buckets)-1), tagOf(h)
	for i := uint32(0); i <= mask; i++ {
		b := &x.buckets[(h+i)&mask]
		tags := b.tags.Load()
		for m := matches(tags, tag); m != 0; m &= m - 1 {
			if e := b.slots[slotIn(m)].Load(); e != nil && e.Key == key {
				return e
			}
		}
		if tags < passedOne {
			return nil
		}
	}
	return nil
}

// insert adds e, whose key is not resident, and returns its place; there is a free slot.
func (x *index[V]) insert(e *Entry[V]) place {
	mask := uint32(len(x.buckets) - 1)
	for i := e.hash; ; i++ {
		b := &x.buckets[i&mask]
		tags := b.tags.Load()
		if free := ^tags & tagTops; free != 0 {
			s := slotIn(free)
			b.slots[s].Store(e)
			b.tags.Store(tags | tagOf(e.hash)<<(8*s))
			x.used++
			return placeOf(i&mask, s)
		}
		if tags&passedBits != passedBits {
			b.tags.Store(tags + passedOne)
		}
	}
}

func (x *index[V]) slot(at place) *atomic.Pointer[Entry[V]] {
	return &x.buckets[at>>placeBits].slots[at&placeSlot-1]
}

// at returns the entry of a place.
func (x *index[V]) at(at place) *Entry[V] { return x.slot(at).Load() }

// swap puts e in the place of the entry there, which has the same key.
func (x *index[V]) swap(at place, e *Entry[V]) { x.slot(at).Store(e) }

// remove takes the entry out that is there.
func (x *index[V]) remove(at place) {
	e, b := x.at(at), &x.buckets[at>>placeBits]
	b.tags.Store(b.tags.Load() &^ (0xff << (8 * (at&placeSlot - 1))))
	x.slot(at).Store(nil)
	x.used--
	mask := uint32(len(x.buckets) - 1)
	for i := e.hash; &x.buckets[i&mask] != b; i++ {
		p := &x.buckets[i&mask]
		if tags := p.tags.Load(); tags&passedBits != passedBits {
			p.tags.Store(tags - passedOne)
		}
	}
}

// full tells that another entry would exceed the maximum load.
func (x *index[V]) full() bool {
	return (x.used+1)*maxLoadDen > len(x.buckets)*slotsPerBucket*maxLoadNum
}

// sparse tells that a much smaller index would do.
func (x *index[V]) sparse() bool {
	return len(x.buckets) > minBuckets && x.used*shrinkBelow < len(x.buckets)*slotsPerBucket
}

// resized returns a copy of x for twice the entries of now, and tells moved the places in it.
func (x *index[V]) resized(moved func(*Entry[V], place)) *index[V] {
	y := newIndex[V](max(2*x.used, 1))
	for e := range x.all {
		moved(e, y.insert(e))
	}
	return y
}

// all yields the resident entries; removing the yielded one is allowed.
func (x *index[V]) all(yield func(*Entry[V]) bool) {
	for i := range x.buckets {
		b := &x.buckets[i]
		for s := range b.slots {
			if e := b.slots[s].Load(); e != nil && !yield(e) {
				return
			}
		}
	}
}
