package main

import (
	"math/bits"
	"time"
)

// A histogram counts durations in buckets of at most 1/32 of their size, so that a quantile is at most 3 % too high. The zero value is empty. Not
// safe for concurrent use.
type histogram struct {
	count   uint64
	max     time.Duration
	buckets [64 * subBuckets]uint64
}

const subBuckets = 32

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.count++
	h.max = max(h.max, d)
	h.buckets[bucket(uint64(d))]++
}

// quantile returns a duration that the share q of all durations does not exceed; 0 when there are none.
func (h *histogram) quantile(q float64) time.Duration {
	want := uint64(q * float64(h.count))
	var n uint64
	for i, c := range h.buckets {
		n += c
		if c > 0 && (n > want || n == h.count) {
			return min(h.max, time.Duration(bucketEnd(i)))
		}
	}
	return 0
}

// since returns what was added after h was as old, a copy of it.
func (h *histogram) since(old *histogram) *histogram {
	d := &histogram{count: h.count - old.count, max: h.max}
	for i := range d.buckets {
		d.buckets[i] = h.buckets[i] - old.buckets[i]
	}
	return d
}

// bucket returns the index of v's bucket: small values have one each, larger ones share it by their highest six bits.
func bucket(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - 6 // v>>shift is in [32, 64)
	return shift*subBuckets + int(v>>shift)
}

// bucketEnd returns the largest value in bucket i.
func bucketEnd(i int) uint64 {
	if i < 2*subBuckets {
		return uint64(i)
	}
	shift := i/subBuckets - 1
	return (uint64(i%subBuckets+subBuckets)+1)<<shift - 1
}
