package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	largeKeys      = 4 // of each size
	largePerSecond = 100 << 20
)

func largeSizes() []int { return []int{1 << 20, 16 << 20} }

// BenchmarkBesideLarge gets resident values of 1 KB that another process owns while 100 MiB of large values come from it every second, at an
// even pace. x-p99 is the 99th percentile of the small gets' time divided by that without large values, in slices that take turns.
func BenchmarkBesideLarge(b *testing.B) {
	const callers = 16
	n, list := clientNode(b, nil)
	held := []values{{valueBytes, 16 << 10}}
	for _, size := range largeSizes() {
		held = append(held, values{size, largeKeys})
	}
	joinOwners(b, n, list, ownerSpec{Keyspaces: []string{keyspace}, Values: held})
	r, keys := nearcacheRemote(b, n), keysOf(valueBytes, held[0].N)
	for _, size := range largeSizes() {
		b.Run(fmt.Sprintf("large=%dMiB", size>>20), func(b *testing.B) {
			beside(b, callers, func(ctx context.Context, rnd *rand.Rand) error {
				return getOne(keys, valueBytes)(ctx, r, rnd)
			}, func(ctx context.Context, i int) error {
				n, err := r.get(ctx, valueKey(size, i%largeKeys))
				return check(n, size, err)
			}, time.Second*time.Duration(size)/largePerSecond)
		})
	}
}

// beside measures get alone, and with a large value every so often.
func beside(b *testing.B, callers int, get func(context.Context, *rand.Rand) error, large func(context.Context, int) error, every time.Duration) {
	b.Helper()
	var p50, p99 [2][]float64
	var came []float64
	measure := func(with bool) {
		k := 0
		if with {
			k = 1
			stop, began := trickle(b, large, every), time.Now()
			defer func() { came = append(came, float64(stop())/time.Since(began).Seconds()) }()
		}
		_, times := runSlice(b, callers, 2*(*slice), get)
		slices.Sort(times)
		p50[k] = append(p50[k], times[len(times)/2])
		p99[k] = append(p99[k], times[len(times)*99/100])
	}
	measure(true) // connects, and fills pools
	p50, p99, came = [2][]float64{}, [2][]float64{}, nil
	inRounds(b, []bool{false, true}, func(order []bool) {
		for _, with := range order {
			measure(with)
		}
	})
	b.ReportMetric(median(p50[0]), "alone-p50-µs")
	b.ReportMetric(median(p99[0]), "alone-p99-µs")
	b.ReportMetric(median(p50[1]), "beside-p50-µs")
	b.ReportMetric(median(p99[1]), "beside-p99-µs")
	b.ReportMetric(median(came), "large/s")
	b.ReportMetric(median(ratios(p99[1], p99[0])), "x-p99")
}

// trickle gets a large value every so often until stop, which returns how many came.
func trickle(b *testing.B, large func(context.Context, int) error, every time.Duration) (stop func() int) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var (
		wg   sync.WaitGroup
		came atomic.Int64
	)
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			wg.Go(func() {
				if err := large(ctx, i); err == nil {
					came.Add(1)
				} else if ctx.Err() == nil {
					b.Errorf("a large get: %v", err)
				}
			})
		}
	})
	return func() int {
		n := int(came.Load())
		cancel()
		wg.Wait()
		return n
	}
}
