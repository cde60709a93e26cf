package benchmarks

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

const (
	crowdEnv = "NEARCACHE_BENCHMARKS_CROWD" // set: this process has all members but one, whose address that is

	invalidations = 30_000  // a second
	crowdNodes    = 9       // members beside the reader
	crowdKeys     = 1_000   // keys that are read
	crowdKnown    = 2_000   // keys of which all members have had near copies: their invalidations are told to all
	crowdStrange  = 200_000 // keys that no member has
)

func crowdKey(set string, i int) string { return fmt.Sprintf("%s:%08d", set, i) }

// crowdMember is a member with two keyspaces.
type crowdMember struct {
	*nearcache.Node
	list         *peers.List
	near, remote *nearcache.Cache[[]byte] // with near copies, and without
}

func startCrowdMember(ctx context.Context) (m crowdMember, err error) {
	m.list = peers.NewList()
	m.Node, err = nearcache.Start(ctx, nearcache.NodeConfig{Listen: "127.0.0.1:0", Discovery: m.list, PeerTimeout: time.Second})
	if err != nil {
		return m, err
	}
	cfg := nearcache.Config[[]byte]{
		Load:    func(context.Context, string) ([]byte, error) { return make([]byte, 100), nil },
		NearTTL: time.Hour, TTL: time.Hour, Jitter: -1,
	}
	if m.near, err = nearcache.New(m.Node, "near", cfg); err != nil {
		return m, err
	}
	cfg.NearTTL = -1
	m.remote, err = nearcache.New(m.Node, "remote", cfg)
	return m, err
}

// join makes m one of the members, and has it read what it is to have copies of, twice: an answer that was waited for may not have been kept.
func (m crowdMember) join(ctx context.Context, addresses []string) error {
	var all []peers.Member
	for _, addr := range addresses {
		all = append(all, peers.Member{Addr: addr})
	}
	m.list.Set(all...)
	if err := m.ReadyWarm(ctx); err != nil {
		return err
	}
	for range 2 {
		for set, keys := range map[string]int{"read": crowdKeys, "known": crowdKnown} {
			for i := range keys {
				if _, err := m.near.Get(ctx, crowdKey(set, i)); err != nil {
					return err
				}
				if _, err := m.remote.Get(ctx, crowdKey(set, i)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// runCrowd is the process of all members but the reader. It writes the addresses of all, and for each line a rate: a line with a percentage has it
// invalidate until the next line.
func runCrowd(reader string) int {
	if err := serveCrowd(context.Background(), reader, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "crowd:", err)
		return 1
	}
	return 0
}

func serveCrowd(ctx context.Context, reader string, in io.Reader, out io.Writer) error {
	var members []crowdMember
	addresses := []string{reader}
	for range crowdNodes {
		m, err := startCrowdMember(ctx)
		if err != nil {
			return err
		}
		members, addresses = append(members, m), append(addresses, m.Addr())
	}
	enc, lines := json.NewEncoder(out), bufio.NewScanner(in)
	if err := enc.Encode(addresses); err != nil {
		return err
	}
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { errs[i] = m.join(ctx, addresses) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	stop := func() float64 { return 0 }
	for lines.Scan() {
		rate := stop()
		stop = func() float64 { return 0 }
		var known *int
		if err := json.Unmarshal(lines.Bytes(), &known); err != nil {
			return err
		}
		if known != nil {
			stop = invalidate(ctx, members, *known)
		}
		if err := enc.Encode(rate); err != nil {
			return err
		}
	}
	return lines.Err()
}

// invalidate invalidates keys on all of members at once, a hundred in a call and known percent of them known to all, until stop, which returns
// how many there were a second.
func invalidate(ctx context.Context, members []crowdMember, known int) (stop func() float64) {
	const batch = 100
	ctx, cancel := context.WithCancel(ctx)
	var (
		wg    sync.WaitGroup
		n     atomic.Int64
		began = time.Now()
	)
	for k, m := range members {
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
				_ = m.near.Invalidate(ctx, keys...) // a *PartialError on a machine that does much else
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

// BenchmarkBesideInvalidations reads keys on one of ten members while the nine others, which are another process, invalidate 30,000 other keys a second, at
// an even pace. Of these a share may be cached on any member, so that all are told. x-reads/cpu is the number of reads for the reader's processor
// time, divided by that without invalidations, in slices that take turns: what a reader keeps that has a machine of its own. core-% is the
// processor time that the invalidations took of the reader, in percent of a core. The rate of reads would say how two cores are shared.
func BenchmarkBesideInvalidations(b *testing.B) {
	m, err := startCrowdMember(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	crowd := startChild(b, crowdEnv+"="+m.Addr())
	var addresses []string
	crowd.read(b, &addresses)
	if err := m.join(b.Context(), addresses); err != nil {
		b.Fatal(err)
	}
	for _, reads := range []struct {
		name    string
		cache   *nearcache.Cache[[]byte]
		callers int
	}{{"near", m.near, 1}, {"remote", m.remote, 16}} {
		for _, known := range []int{0, 4, 100} {
			b.Run(fmt.Sprintf("reads=%s/known=%d%%", reads.name, known), func(b *testing.B) {
				besideInvalidations(b, crowd, reads.cache, reads.callers, known)
			})
		}
	}
}

func besideInvalidations(b *testing.B, crowd *child, cache *nearcache.Cache[[]byte], callers, known int) {
	b.Helper()
	keys := make([]string, crowdKeys)
	for i := range keys {
		keys[i] = crowdKey("read", i)
	}
	get := func(ctx context.Context, rnd *rand.Rand) error {
		_, err := cache.Get(ctx, keys[rnd.IntN(len(keys))])
		return err
	}
	var reads, rate [2][]float64 // for a second of processor time, and a second
	var came []float64
	measure := func(with int) {
		var share *int
		if with == 1 {
			share = &known
		}
		crowd.write(b, share)
		crowd.read(b, new(float64))
		before, began := usageNow(), time.Now()
		n, _ := runSlice(b, callers, 2*(*slice), get)
		took := time.Since(began)
		rate[with] = append(rate[with], n/took.Seconds())
		reads[with] = append(reads[with], n/(float64(usageNow().since(before).CPU)/1e9))
		var per float64
		crowd.write(b, nil)
		crowd.read(b, &per)
		if with == 1 {
			came = append(came, per)
		}
	}
	measure(1) // connects, and fills pools
	reads, rate, came = [2][]float64{}, [2][]float64{}, nil
	inRounds(b, []int{0, 1}, func(order []int) {
		for _, with := range order {
			measure(with)
		}
	})
	var taken []float64 // what the reads do not explain
	for i, n := range rate[1] {
		taken = append(taken, 100*n*(1/reads[1][i]-1/reads[0][i]))
	}
	b.ReportMetric(median(rate[0]), "alone-reads/s")
	b.ReportMetric(median(rate[1]), "beside-reads/s")
	b.ReportMetric(median(came), "invalidations/s")
	b.ReportMetric(median(ratios(reads[1], reads[0])), "x-reads/cpu")
	b.ReportMetric(median(taken), "core-%")
}
