package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkGrowthNodes gets resident values of clusters of several sizes, whose nodes share one process. x-N-nodes is what a get costs with three
// nodes, as throughput, divided by that with N: 1 would be no growth at all. Each peer has connections of its own, so that the same callers
// make smaller batches of more peers.
func BenchmarkGrowthNodes(b *testing.B) {
	v := values{valueBytes, 16 << 10}
	systems := []remote{
		nearcacheOver(b, "nearcache", v, 1, 3),
		nearcacheOver(b, "10-nodes", v, 1, 10),
		nearcacheOver(b, "30-nodes", v, 1, 30),
	}
	for _, callers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			compare(b, systems, "get", getOne(keysOf(v.Size, v.N), v.Size), callers)
		})
	}
}

// BenchmarkGrowthKeys gets values of 100 bytes of an owner that holds ten thousand, a million and four million. (BenchmarkNearUniform does so with
// near copies.)
func BenchmarkGrowthKeys(b *testing.B) {
	var systems []remote
	gets := make(map[string]call)
	for _, s := range []struct {
		name string
		keys int
	}{{"nearcache", 10_000}, {"1M-keys", 1_000_000}, {"4M-keys", 4_000_000}} {
		v := values{100, s.keys}
		systems = append(systems, nearcacheOver(b, s.name, v, 1, 1))
		gets[s.name] = getOne(keysOf(v.Size, v.N), v.Size)
	}
	for _, callers := range []int{1, 128} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			compare(b, systems, "get", func(ctx context.Context, r remote, rnd *rand.Rand) error {
				return gets[r.name](ctx, r, rnd)
			}, callers)
		})
	}
}
