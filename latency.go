package nearcache

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// LatencyBuckets is the number of buckets of a Latency.
const LatencyBuckets = 26

// Latency is a histogram of durations: Buckets[i] counts those above LatencyBound(i-1) and up to LatencyBound(i), the last one those above
// all bounds.
type Latency struct {
	Count   uint64
	Sum     time.Duration
	Buckets [LatencyBuckets]uint64
}

// LatencyBound returns the upper bound of bucket i: 1 µs for the first one, and twice the one before for each other. The last bucket has no
// bound; the one before ends at 16.8 s.
func LatencyBound(i int) time.Duration { return time.Microsecond << i }

// Mean returns the average, 0 where nothing was counted.
func (l Latency) Mean() time.Duration {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / time.Duration(l.Count)
}

// Quantile returns about how long the share q (0 to 1) of what was counted took at most: within a factor of two. 0 where nothing was.
func (l Latency) Quantile(q float64) time.Duration {
	rank := q * float64(l.Count)
	below := 0.0
	for i, n := range l.Buckets {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		if i == LatencyBuckets-1 {
			return LatencyBound(i - 1)
		}
		var from time.Duration
		if i > 0 {
			from = LatencyBound(i - 1)
		}
		return from + time.Duration((rank-below)/float64(n)*float64(LatencyBound(i)-from))
	}
	return 0
}

// latency counts into a Latency: two additions a time. The zero value is ready for use. It is safe for concurrent use.
type latency struct {
	sum     atomic.Int64
	buckets [LatencyBuckets]atomic.Uint64
}

func (l *latency) add(d time.Duration) {
	d = max(d, 1)                               // a clock may stand still meanwhile
	above := uint64((d - 1) / time.Microsecond) // microseconds begun above the first bound
	l.buckets[min(bits.Len64(above), LatencyBuckets-1)].Add(1)
	l.sum.Add(int64(d))
}

func (l *latency) load() (h Latency) {
	for i := range l.buckets {
		h.Buckets[i] = l.buckets[i].Load()
		h.Count += h.Buckets[i]
	}
	h.Sum = time.Duration(l.sum.Load())
	return h
}
