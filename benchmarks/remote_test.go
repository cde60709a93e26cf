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

	"github.com/nearcache/nearcache"
)

// sizes are so many values of each size that 1,024 callers do not all want the same: calls for one key share an answer in nearcache and groupcache.
func sizes() []values {
	return []values{{100, 16 << 10}, {valueBytes, 16 << 10}, {10 << 10, 8 << 10}, {100 << 10, 2 << 10}}
}

// BenchmarkRemoteGet gets resident values that another process owns, without near copies. x-groupcache is nearcache's throughput divided by
// groupcache's in the same round. (groupcache as shipped keeps two connections: it is measured once, and there is no need to see it twice.)
func BenchmarkRemoteGet(b *testing.B) {
	all := remotes(b, sizes()...)
	for _, v := range sizes() {
		systems, keys := all, keysOf(v.Size, v.N)
		if v.Size != valueBytes {
			systems = slices.DeleteFunc(slices.Clone(all), func(r remote) bool { return r.name == "groupcache-as-shipped" })
		}
		for _, callers := range []int{1, 16, 128, 1024} {
			b.Run(fmt.Sprintf("bytes=%d/callers=%d", v.Size, callers), func(b *testing.B) {
				compare(b, systems, "get", getOne(keys, v.Size), callers)
			})
		}
	}
}

// call is what a caller does again and again.
type call func(ctx context.Context, r remote, rnd *rand.Rand) error

func getOne(keys []string, size int) call {
	return func(ctx context.Context, r remote, rnd *rand.Rand) error {
		n, err := r.get(ctx, keys[rnd.IntN(len(keys))])
		return check(n, size, err)
	}
}

// BenchmarkGetMany gets several such values with one call. Those that have no such call get them with as many goroutines. nearcache-3-owners
// gets them from three processes.
func BenchmarkGetMany(b *testing.B) {
	v := values{valueBytes, 16 << 10}
	systems := slices.DeleteFunc(remotes(b, v), func(r remote) bool { return r.name == "groupcache-as-shipped" })
	if chosen("nearcache") {
		systems = append(systems, nearcacheOver(b, "nearcache-3-owners", v, 3, 1))
	}
	keys := keysOf(v.Size, v.N)
	keys = append(keys, keys...) // so that a batch may begin anywhere
	for _, batch := range []int{20, 100} {
		for _, callers := range []int{1, 8} {
			b.Run(fmt.Sprintf("keys=%d/callers=%d", batch, callers), func(b *testing.B) {
				compare(b, systems, "call", func(ctx context.Context, r remote, rnd *rand.Rand) error {
					at := rnd.IntN(v.N)
					n, err := r.getMany(ctx, keys[at:at+batch])
					return check(n, batch*v.Size, err)
				}, callers)
			})
		}
	}
}

// nearcacheOver is a cluster with so many owner processes of so many nodes each.
func nearcacheOver(b *testing.B, name string, v values, processes, nodes int) remote {
	b.Helper()
	n, list := clientNode(b, nil)
	owners := joinOwners(b, n, list, slices.Repeat([]ownerSpec{{Nodes: nodes, Keyspaces: []string{keyspace}, Values: []values{v}}}, processes)...)
	r := nearcacheRemote(b, n)
	r.name = name
	r.usage = func(b *testing.B) (sum usage) {
		b.Helper()
		for _, o := range owners {
			u := o.usage(b)
			sum.CPU += u.CPU
			sum.Mallocs += u.Mallocs
		}
		return sum
	}
	return r
}

// BenchmarkTLS gets resident values of another process over mutual TLS and without. cpu-x-plain is what the former costs of the latter.
func BenchmarkTLS(b *testing.B) {
	v := values{valueBytes, 16 << 10}
	dir := writeCertificates(b)
	cfg, err := readCertificates(dir)
	if err != nil {
		b.Fatal(err)
	}
	n, list := clientNode(b, func(c *nearcache.NodeConfig) { c.TLS = cfg })
	o := joinOwners(b, n, list, ownerSpec{Keyspaces: []string{keyspace}, Values: []values{v}, TLS: dir})[0]
	secure, plain := nearcacheRemote(b, n), nearcacheOver(b, "plain", v, 1, 1)
	secure.usage = o.usage
	for _, callers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			compare(b, []remote{secure, plain}, "get", getOne(keysOf(v.Size, v.N), v.Size), callers)
		})
	}
}

// figures are a system's, one of each per round, per call.
type figures struct {
	rate                      []float64 // calls/s
	p50                       []float64 // µs
	cpu                       []float64 // µs, client and owner
	clientAllocs, ownerAllocs []float64
	calls, loads              float64 // in all rounds
}

// compare measures systems with a number of callers that each call again as soon as they have an answer.
func compare(b *testing.B, systems []remote, unit string, do call, callers int) {
	b.Helper()
	all := make(map[string]*figures)
	for _, r := range systems {
		all[r.name] = &figures{}
		runSlice(b, callers, *slice/4, func(ctx context.Context, rnd *rand.Rand) error { return do(ctx, r, rnd) }) // connects, and fills pools
	}
	inRounds(b, systems, func(order []remote) {
		for _, r := range order {
			f := all[r.name]
			loads := r.loaded()
			client, own, begin := usageNow(), r.usage(b), time.Now()
			n, times := runSlice(b, callers, *slice, func(ctx context.Context, rnd *rand.Rand) error { return do(ctx, r, rnd) })
			took := time.Since(begin)
			client, own = usageNow().since(client), r.usage(b).since(own)
			f.calls += n
			f.loads += r.loaded() - loads
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
		if f.loads > 0.01*f.calls {
			b.Logf("%s: %v values were not there in %v calls: this machine is too busy, its figures mean little", name, f.loads, f.calls)
		}
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
