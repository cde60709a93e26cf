package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

const (
	invalidations = 30_000  // a second
	crowdNodes    = 10      // members, all in this process
	crowdKeys     = 1_000   // keys that are read
	crowdKnown    = 2_000   // keys of which all members have had near copies: their invalidations are told to all
	crowdStrange  = 200_000 // keys that no member has
)

// crowd is a cluster in this process.
type crowd struct {
	near, remote []*nearcache.Cache[[]byte] // of each member: with near copies, and without
}

func crowdKey(set string, i int) string { return fmt.Sprintf("%s:%08d", set, i) }

func newCrowd(b *testing.B) *crowd {
	b.Helper()
	c := new(crowd)
	list := peers.NewList()
	var all []peers.Member
	var nodes []*nearcache.Node
	for range crowdNodes {
		n, err := nearcache.Start(b.Context(), nearcache.NodeConfig{Listen: "127.0.0.1:0", Discovery: list, PeerTimeout: time.Second})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := n.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
		nodes, all = append(nodes, n), append(all, peers.Member{ID: n.ID(), Addr: n.Addr()})
	}
	list.Set(all...)
	for _, n := range nodes {
		if err := n.ReadyWarm(b.Context()); err != nil {
			b.Fatal(err)
		}
		c.near = append(c.near, c.open(b, n, "near", time.Hour))
		c.remote = append(c.remote, c.open(b, n, "remote", -1))
	}
	return c
}

func (c *crowd) open(b *testing.B, n *nearcache.Node, name string, near time.Duration) *nearcache.Cache[[]byte] {
	b.Helper()
	cache, err := nearcache.New(n, name, nearcache.Config[[]byte]{
		Load:    func(context.Context, string) ([]byte, error) { return make([]byte, 100), nil },
		NearTTL: near, TTL: time.Hour, Jitter: -1,
	})
	if err != nil {
		b.Fatal(err)
	}
	return cache
}

// fill makes all members read keys twice: an answer that was waited for may not have been kept.
func (c *crowd) fill(b *testing.B, caches []*nearcache.Cache[[]byte], set string, keys int) {
	b.Helper()
	var wg sync.WaitGroup
	for range 2 {
		for _, cache := range caches {
			wg.Go(func() {
				for i := range keys {
					if _, err := cache.Get(b.Context(), crowdKey(set, i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

// invalidate invalidates keys on all members at once, a hundred in a call and known percent of them known to all, until stop, which returns how
// many there were a second.
func (c *crowd) invalidate(b *testing.B, known int) (stop func() float64) {
	b.Helper()
	const batch = 100
	ctx, cancel := context.WithCancel(b.Context())
	var (
		wg    sync.WaitGroup
		n     atomic.Int64
		began = time.Now()
	)
	for k, cache := range c.near {
		rnd := rand.New(rand.NewPCG(uint64(k), 3))
		wg.Go(func() {
			for mine := 0; ctx.Err() == nil; {
				if due := int(time.Since(began).Seconds() * invalidations / crowdNodes); mine >= due {
					time.Sleep(2 * time.Millisecond)
					continue
				}
				keys := make([]string, batch)
				for i := range keys {
					if rnd.IntN(100) < known {
						keys[i] = crowdKey("known", rnd.IntN(crowdKnown))
					} else {
						keys[i] = crowdKey("strange", rnd.IntN(crowdStrange))
					}
				}
				_ = cache.Invalidate(ctx, keys...) // a *PartialError on a machine that does much else
				mine += batch
				n.Add(int64(batch))
			}
		})
	}
	return func() float64 {
		rate := float64(n.Load()) / time.Since(began).Seconds()
		cancel()
		wg.Wait()
		return rate
	}
}

// BenchmarkBesideInvalidations reads keys on ten members while 30,000 others are invalidated every second, at an even pace, of which a share may be
// cached on any member, so that all are told. All members, readers and writers share the cores of one process, so that what ten machines would
// do is taken from one. x-rate is the rate of reads divided by that without invalidations, in slices that take turns. core-%/member is the processor
// time that the invalidations took of each member, in percent of a core: what they would take from readers where each member has a machine.
func BenchmarkBesideInvalidations(b *testing.B) {
	c := newCrowd(b)
	c.fill(b, c.near, "read", crowdKeys)
	c.fill(b, c.remote, "read", crowdKeys)
	c.fill(b, c.near, "known", crowdKnown)
	for _, reads := range []struct {
		name    string
		caches  []*nearcache.Cache[[]byte]
		callers int
	}{{"near", c.near, 2}, {"remote", c.remote, 64}} {
		for _, known := range []int{0, 4, 100} {
			b.Run(fmt.Sprintf("reads=%s/known=%d%%", reads.name, known), func(b *testing.B) {
				c.compare(b, reads.caches, reads.callers, known)
			})
		}
	}
}

// compare reads with and without invalidations.
func (c *crowd) compare(b *testing.B, caches []*nearcache.Cache[[]byte], callers, known int) {
	b.Helper()
	keys := make([]string, crowdKeys)
	for i := range keys {
		keys[i] = crowdKey("read", i)
	}
	get := func(ctx context.Context, rnd *rand.Rand) error {
		_, err := caches[rnd.IntN(len(caches))].Get(ctx, keys[rnd.IntN(len(keys))])
		return err
	}
	var rate, cpu [2][]float64 // reads a second, and cores that are busy
	var came []float64
	measure := func(with int) {
		stop := func() float64 { return 0 }
		if with == 1 {
			stop = c.invalidate(b, known)
		}
		before, began := usageNow(), time.Now()
		n, _ := runSlice(b, callers, 2*(*slice), get)
		took := time.Since(began)
		rate[with] = append(rate[with], n/took.Seconds())
		cpu[with] = append(cpu[with], float64(usageNow().since(before).CPU)/float64(took))
		if per := stop(); with == 1 {
			came = append(came, per)
		}
	}
	measure(1) // connects, and fills pools
	rate, cpu, came = [2][]float64{}, [2][]float64{}, nil
	inRounds(b, []int{0, 1}, func(order []int) {
		for _, with := range order {
			measure(with)
		}
	})
	b.ReportMetric(median(rate[0]), "alone-reads/s")
	b.ReportMetric(median(rate[1]), "beside-reads/s")
	b.ReportMetric(median(came), "invalidations/s")
	b.ReportMetric(median(ratios(rate[1], rate[0])), "x-rate")
	var taken []float64 // what the reads do not explain
	for i, cores := range cpu[1] {
		taken = append(taken, 100*(cores-cpu[0][i]*rate[1][i]/rate[0][i])/crowdNodes)
	}
	b.ReportMetric(median(taken), "core-%/member")
}
