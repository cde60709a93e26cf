package nearcache_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/internal/transport"
	nearcachev1 "github.com/nearcache/nearcache/proto/nearcache/v1"
)

// heap returns what is reachable, in MiB. Twice: what pools hold goes with the second collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) >> 20
}

// bystanders read small values of n0 on another node until stop; in fake time that takes none as long as nothing is in their way.
func bystanders(t *testing.T, cache *nearcache.Cache[string], keys []string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key, began := keys[i%len(keys)], time.Now()
				v, err := cache.Get(t.Context(), key)
				if took := time.Since(began); v != "of "+key || err != nil || took > 0 {
					t.Errorf("a bystander: got %.60q, %v after %v", v, err, took)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func ownedKeys(c *testcluster.Cluster, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = testcluster.Key(c.Nodes[0], "ks", "n0", i)
	}
	return keys
}

func loadOf(_ context.Context, key string) (string, error) { return "of " + key, nil }

// A peer that asks and never reads, while the answers come: what is kept for it is bounded, nobody else waits, and nothing is left.
func TestAPeerThatDoesNotRead(t *testing.T) {
	keys := 4000
	if raceEnabled {
		keys = 2000
	}
	const (
		size    = 60 << 10 // 234 MiB together
		perPeer = 4        // MiB, docs/design.md section 12
		parcels = 64       // of all peers
		slack   = 16
	)
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: loadOf, NearTTL: -1})
		stop := bystanders(t, caches[1], ownedKeys(c, 20))
		time.Sleep(time.Second)
		base := heap()
		h := newHostile(t, c.Network, c.Nodes[0].Addr())
		deaf, holder := h.lane(false), h.lane(true)
		for _, l := range []*hostileLane{deaf, holder} {
			l.send(encoded(t, &nearcachev1.RequestFrame{Hello: hello("evil")}))
		}
		get := func(i int) *nearcachev1.Request {
			return &nearcachev1.Request{
				Id: uint32(i), Op: uint32(transport.OpGet), Flags: transport.FlagStandIn, Keyspace: []byte("ks"), Key: fmt.Append(nil, "evil", i),
				BudgetUs: 3600e6, LeaseLifeUs: 3600e6,
			}
		}
		for i := range keys { // one lane gets the leases, the other one waits behind them
			holder.ask(get(i))
			synctest.Wait()
			deaf.ask(get(i))
		}
		synctest.Wait()
		for i, tok := range h.tokens {
			q := get(keys + i)
			q.Op, q.Flags, q.Key = uint32(transport.OpFill), transport.FlagUncached, fmt.Append(nil, "evil", i)
			q.TokenIncarnation, q.TokenNumber = tok.incarnation, tok.number
			q.HasValue, q.Value, q.TtlUs = true, make([]byte, size), 3600e6
			holder.send(encoded(t, &nearcachev1.RequestFrame{Requests: []*nearcachev1.Request{q}}))
			synctest.Wait()
		}
		if n := len(h.tokens); n != keys {
			t.Fatalf("the peer got %d leases, want %d", n, keys)
		}
		h.sent = nil
		for _, s := range []struct {
			after time.Duration
			limit int64
		}{{0, perPeer + parcels + slack}, {time.Minute, perPeer + slack}} {
			time.Sleep(s.after)
			if got := heap() - base; got > s.limit {
				t.Errorf("%v later: %d MiB are kept for a peer that does not read, want at most %d", s.after, got, s.limit)
			}
		}
		h.leave()
		stop()
		time.Sleep(2 * time.Second)
		wantIdle(t, caches)
		if got := heap() - base; got > slack {
			t.Errorf("%d MiB are left when the peer has gone", got)
		}
	})
}

// A peer that asks faster than it reads, without end: it is not read from any more, and is the only one to wait.
func TestAPeerThatFloods(t *testing.T) {
	const slack = 16 // MiB: 8 lanes, each with the window of its stream (1 MiB), a frame, and what gRPC has unwritten (docs/design.md section 12)
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: loadOf, NearTTL: -1})
		large := testcluster.Key(c.Nodes[0], "ks", "n0", 1000)
		if _, err := caches[0].Set(t.Context(), large, strings.Repeat("x", 60<<10)); err != nil {
			t.Fatal(err)
		}
		stop := bystanders(t, caches[1], ownedKeys(c, 20))
		time.Sleep(time.Second)
		base := heap()
		h := newHostile(t, c.Network, c.Nodes[0].Addr())
		var sent atomic.Int64
		for range 8 {
			l := h.lane(false)
			l.send(encoded(t, &nearcachev1.RequestFrame{Hello: hello("evil")}))
			f := &nearcachev1.RequestFrame{}
			for i := range transport.MaxBatchOps {
				f.Requests = append(f.Requests, &nearcachev1.Request{
					Id: uint32(i), Op: uint32(transport.OpGet), Keyspace: []byte("ks"), Key: []byte(large), BudgetUs: 1e6,
				})
			}
			frame := encoded(t, f)
			h.wg.Go(func() {
				for l.st.SendMsg(frame) == nil {
					sent.Add(1)
				}
			})
		}
		time.Sleep(time.Second)
		before := sent.Load()
		time.Sleep(5 * time.Second)
		if got := sent.Load(); got != before || got == 0 {
			t.Errorf("%d frames were sent at first, and %d more by a peer that does not read", before, got-before)
		}
		if got := heap() - base; got > slack {
			t.Errorf("%d MiB are kept for it, want at most %d", got, slack)
		}
		h.leave()
		stop()
		time.Sleep(2 * time.Second)
		wantIdle(t, caches)
	})
}

// A member that asks for more at once than its lanes take, and for values of 16 MiB beside them: every call has its answer, the other member
// does not notice, and nothing is left.
func TestACallerThatFloods(t *testing.T) {
	const large, slack = 40, 16
	calls := 20000
	if raceEnabled {
		calls = 5000
	}
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		caches := open(t, c, "ks", nearcache.Config[string]{
			NearTTL: -1, MaxValueBytes: -1,
			Load: func(_ context.Context, key string) (string, error) {
				if strings.HasPrefix(key, "large") {
					return strings.Repeat("x", transport.MaxValueBytes), nil
				}
				return "of " + key, nil
			},
		})
		keys := ownedKeys(c, 20)
		stop := bystanders(t, caches[2], keys)
		time.Sleep(time.Second)
		base := heap()
		var wg sync.WaitGroup
		for i := range calls {
			key := fmt.Sprint(keys[i%len(keys)], "-", i)
			wg.Go(func() {
				v, err := caches[1].Get(t.Context(), key)
				if v != "of "+key || err != nil {
					t.Errorf("got %.60q, %v, want the value", v, err)
				}
			})
		}
		for i := range large {
			key := keyWith(c, fmt.Sprint("large", i%2, "-"), "n0")
			wg.Go(func() {
				if v, err := caches[1].Get(t.Context(), key); len(v) != transport.MaxValueBytes || err != nil {
					t.Errorf("got %d bytes, %v, want a large value", len(v), err)
				}
			})
		}
		wg.Wait()
		refused := seen(t, c.Nodes[1], "n0").Errors
		if refused == 0 && !raceEnabled { // the detector slows the callers down
			t.Errorf("%d calls at once are no flood: none was refused", calls)
		}
		stop()
		time.Sleep(12 * time.Second) // large answers that nobody came for are forgotten
		wantIdle(t, caches)
		held := int64(0)
		for _, cache := range caches {
			held += cache.Stats().ShardBytes >> 20
		}
		if got := heap() - base - held; got > slack {
			t.Errorf("%d MiB are left beside the %d MiB that the members hold", got, held)
		}
	})
}
