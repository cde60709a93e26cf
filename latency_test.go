package nearcache

import (
	"testing"
	"time"
)

func TestLatency(t *testing.T) {
	var l latency
	for _, tt := range []struct {
		d      time.Duration
		bucket int
	}{
		{-time.Second, 0},
		{0, 0},
		{1, 0},
		{time.Microsecond, 0},
		{time.Microsecond + 1, 1},
		{2 * time.Microsecond, 1},
		{2*time.Microsecond + 1, 2},
		{4 * time.Microsecond, 2},
		{time.Second, 20},
		{LatencyBound(24), 24},
		{LatencyBound(24) + 1, 25},
		{time.Hour, 25},
	} {
		before := l.load()
		l.add(tt.d)
		after := l.load()
		if after.Buckets[tt.bucket] != before.Buckets[tt.bucket]+1 || after.Count != before.Count+1 || after.Sum < before.Sum {
			t.Errorf("%v: got %v after %v, want one more in bucket %d", tt.d, after, before, tt.bucket)
		}
	}
}

func TestQuantile(t *testing.T) {
	var l latency
	if h := l.load(); h.Quantile(0.5) != 0 || h.Mean() != 0 {
		t.Errorf("got %v and %v of nothing, want 0", h.Quantile(0.5), h.Mean())
	}
	for i := range 1000 {
		l.add(time.Duration(i+1) * time.Millisecond)
	}
	h := l.load()
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		want := time.Duration(q * float64(time.Second))
		if got := h.Quantile(q); got < want/2 || got > 2*want {
			t.Errorf("quantile %v: got %v, want %v within a factor of two", q, got, want)
		}
	}
	if got, want := h.Mean(), 500500*time.Microsecond; got != want {
		t.Errorf("mean: got %v, want %v", got, want)
	}
	l.add(time.Hour)
	h = l.load()
	if got := h.Quantile(1); got != LatencyBound(LatencyBuckets-2) {
		t.Errorf("above all bounds: got %v, want the last one", got)
	}
}

// The samples of the last minutes are a ring: the oldest go.
func TestHistoryIsBounded(t *testing.T) {
	var h history
	for i := range uint64(HistorySeconds + 10) {
		h.add(Sample{NearHits: i * i}, int64(i+1)*int64(time.Second))
	}
	list := h.list()
	if len(list) != HistorySeconds {
		t.Fatalf("got %d samples, want %d", len(list), HistorySeconds)
	}
	for i, s := range list {
		n := uint64(i + 10) // samples begin with the second time
		if want := n*n - (n-1)*(n-1); s.NearHits != want || s.Gets() != want || s.Took != time.Second {
			t.Errorf("sample %d: got %+v, want %d near hits in a second", i, s, want)
		}
	}
}
