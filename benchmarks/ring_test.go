package benchmarks

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nearcache/nearcache/ring"
)

// BenchmarkRing looks owners up. x-hash is a lookup with its hash, divided by the hash alone; largest-share is that of the member that owns most,
// divided by the mean.
func BenchmarkRing(b *testing.B) {
	for _, members := range []int{3, 10, 30, 100} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			var list []ring.Member
			for i := range members {
				list = append(list, ring.Member{ID: fmt.Sprintf("10.0.%d.%d:7946", i/256, i%256)})
			}
			r, err := ring.New(list)
			if err != nil {
				b.Fatal(err)
			}
			keys := keysOf(valueBytes, 1<<12)
			sum, hash, both := uint64(0), []float64(nil), []float64(nil)
			eachRound(b, func() {
				hash = append(hash, perKey(keys, func(key string) { sum += ring.Hash(keyspace, key) }))
				both = append(both, perKey(keys, func(key string) { sum += uint64(r.Owner(ring.Hash(keyspace, key))) }))
			})
			b.ReportMetric(median(hash), "hash-ns")
			b.ReportMetric(median(both), "lookup-ns")
			b.ReportMetric(median(ratios(both, hash)), "x-hash")
			b.ReportMetric(slices.Max(r.Shares())*float64(members), "largest-share")
			if sum == 0 {
				b.Error("nothing was looked up")
			}
		})
	}
}

// perKey is the time that do takes, in ns, over some rounds through the keys.
func perKey(keys []string, do func(string)) float64 {
	const passes = 200
	begin := time.Now()
	for range passes {
		for _, k := range keys {
			do(k)
		}
	}
	return float64(time.Since(begin)) / float64(passes*len(keys))
}
