package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkRemoteGet gets resident values of 1 KB that another process owns, without near copies, through nearcache, groupcache
// with its transport tuned, and plain gRPC calls. x-groupcache is nearcache's throughput divided by groupcache's in the same round.
func BenchmarkRemoteGet(b *testing.B) {
	systems, o := remotes(b)
	keys := make([]string, ownedKeys)
	for i := range keys {
		keys[i] = ownedKey(i)
	}
	for _, callers := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			compare(b, systems, o, "get", func(ctx context.Context, r remote, rnd *rand.Rand) error {
				n, err := r.get(ctx, keys[rnd.IntN(len(keys))])
				return check(n, valueBytes, err)
			}, callers)
		})
	}
}

// BenchmarkGetMany gets 100 such values with one call. The others have no such call: 100 goroutines get one each.
func BenchmarkGetMany(b *testing.B) {
	const batch = 100
	systems, o := remotes(b)
	keys := make([]string, 2*ownedKeys) // twice, so that a batch may begin anywhere
	for i := range keys {
		keys[i] = ownedKey(i % ownedKeys)
	}
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			compare(b, systems, o, "call", func(ctx context.Context, r remote, rnd *rand.Rand) error {
				at := rnd.IntN(ownedKeys)
				n, err := r.getMany(ctx, keys[at:at+batch])
				return check(n, batch*valueBytes, err)
			}, callers)
		})
	}
}

// figures are a system's, one of each per round, per call.
type figures struct {
	rate                      []float64 // calls/s
	p50                       []float64 // µs
	cpu                       []float64 // µs, client and owner
	clientAllocs, ownerAllocs []float64
}

// compare measures systems with a number of callers that each call again as soon as they have an answer.
func compare(b *testing.B, systems []remote, o *owner, unit string, call func(context.Context, remote, *rand.Rand) error, callers int) {
	b.Helper()
	all := make(map[string]*figures)
	for _, r := range systems {
		all[r.name] = &figures{}
		runSlice(b, callers, *slice/4, func(ctx context.Context, rnd *rand.Rand) error { return call(ctx, r, rnd) }) // connects, and fills pools
	}
	inRounds(b, systems, func(order []remote) {
		for _, r := range order {
			f := all[r.name]
			client, own, begin := usageNow(), o.usage(b), time.Now()
			n, times := runSlice(b, callers, *slice, func(ctx context.Context, rnd *rand.Rand) error { return call(ctx, r, rnd) })
			took := time.Since(begin)
			client, own = usageNow().since(client), o.usage(b).since(own)
			f.rate = append(f.rate, n/took.Seconds())
			f.p50 = append(f.p50, median(times))
			f.cpu = append(f.cpu, float64(client.CPU+own.CPU)/1e3/n)
			f.clientAllocs = append(f.clientAllocs, float64(client.Mallocs)/n)
			f.ownerAllocs = append(f.ownerAllocs, float64(own.Mallocs)/n)
		}
	})
	base := all["nearcache"]
	for name, f := range all {
		b.ReportMetric(median(f.rate), name+"-"+unit+"/s")
		b.ReportMetric(median(f.p50), name+"-p50-µs")
		b.ReportMetric(median(f.cpu), name+"-cpu-µs/"+unit)
		b.ReportMetric(median(f.clientAllocs), name+"-client-allocs/"+unit)
		b.ReportMetric(median(f.ownerAllocs), name+"-owner-allocs/"+unit)
		if base != nil && f != base {
			b.ReportMetric(median(ratios(base.rate, f.rate)), "x-"+name)
			b.ReportMetric(median(ratios(base.cpu, f.cpu)), "cpu-x-"+name)
		}
	}
}

// runSlice lets callers call for a while. It returns the number of calls and what those that were timed took, in µs.
func runSlice(b *testing.B, callers int, d time.Duration, call func(context.Context, *rand.Rand) error) (calls float64, times []float64) {
	b.Helper()
	var (
		stop  atomic.Bool
		mu    sync.Mutex // guards what follows
		total int
		wg    sync.WaitGroup
	)
	ctx, cancel := context.WithCancelCause(b.Context())
	defer cancel(nil)
	for i := range callers {
		wg.Go(func() {
			const timed = 16                          // one call in that many
			ctx, cancelOwn := context.WithCancel(ctx) // of its own, as a request's is
			defer cancelOwn()
			rnd := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
			var mine []float64
			n := 0
			for ; !stop.Load(); n++ {
				begin := time.Time{}
				if n%timed == 0 {
					begin = time.Now()
				}
				if err := call(ctx, rnd); err != nil {
					cancel(err)
					break
				}
				if n%timed == 0 {
					mine = append(mine, float64(time.Since(begin))/1e3)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
			times = append(times, mine...)
		})
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	stop.Store(true)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		b.Fatal(err)
	}
	return float64(total), times
}
