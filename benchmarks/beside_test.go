package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
)

const (
	largeKeyspace  = "large"
	largeKeys      = 4 // of each size
	largePerSecond = 100 << 20
)

func largeSizes() []int { return []int{1 << 20, 16 << 20} }

// largeKey is a key whose value has size bytes.
func largeKey(size, i int) string { return fmt.Sprintf("%d:%d", size, i) }

func loadLarge(_ context.Context, key string) ([]byte, error) {
	size, _, _ := strings.Cut(key, ":")
	n, err := strconv.Atoi(size)
	return make([]byte, n), err
}

func largeConfig(load func(context.Context, string) ([]byte, error)) nearcache.Config[[]byte] {
	cfg := remoteConfig(load)
	cfg.MaxValueBytes = -1 // as large as the wire carries
	return cfg
}

// ownLarge makes the owner's node hold the large values.
func ownLarge(ctx context.Context, n *nearcache.Node) error {
	c, err := nearcache.New(n, largeKeyspace, largeConfig(loadLarge))
	if err != nil {
		return err
	}
	for _, size := range largeSizes() {
		for i := range largeKeys {
			if _, err := c.Get(ctx, largeKey(size, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// BenchmarkBesideLarge gets resident values of 1 KB that another process owns while 100 MiB of large values come from it every second, at an
// even pace. x-p99 is the 99th percentile of the small gets' time divided by that without large values, in slices that take turns.
func BenchmarkBesideLarge(b *testing.B) {
	const callers = 16
	n, list := clientNode(b)
	o := startOwner(b, n.Addr())
	joinOwner(b, n, list, o)
	small := nearcacheRemote(b, n)
	large, err := nearcache.New(n, largeKeyspace, largeConfig(loadNothing))
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range largeSizes() {
		b.Run(fmt.Sprintf("large=%dMiB", size>>20), func(b *testing.B) {
			beside(b, callers, func(ctx context.Context, rnd *rand.Rand) error {
				n, err := small.get(ctx, ownedKey(rnd.IntN(ownedKeys)))
				return check(n, valueBytes, err)
			}, func(ctx context.Context, i int) error {
				v, err := large.Get(ctx, largeKey(size, i%largeKeys))
				return check(len(v), size, err)
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
