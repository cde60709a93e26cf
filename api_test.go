package nearcache_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

func TestMain(m *testing.M) {
	testcluster.MaybeChild()
	goleak.VerifyTestMain(m)
}

func TestConfigProblems(t *testing.T) {
	load := func(context.Context, string) (string, error) { return "", nil }
	type config = nearcache.Config[string]
	for name, tt := range map[string]struct {
		cfg  config
		want []string
	}{
		"nothing":        {config{}, []string{"Load or LoadMany"}},
		"negative":       {config{Load: load, TTL: -1, MaxBytes: -1, RefreshAhead: -1}, []string{"TTL", "MaxBytes", "RefreshAhead"}},
		"centuries":      {config{Load: load, TTL: math.MaxInt64, NearTTL: math.MaxInt64}, []string{"TTL", "NearTTL"}},
		"jitter":         {config{Load: load, Jitter: 1}, []string{"Jitter"}},
		"large values":   {config{Load: load, MaxValueBytes: 1 << 30}, []string{"MaxValueBytes"}},
		"errors":         {config{Load: load, Errors: map[string]error{"": nil}}, []string{"Errors", "Errors"}},
		"stale on error": {config{Load: load, StaleOnError: -1}, []string{"StaleOnError must not be negative"}},
		"gather":         {config{Load: load, Gather: 1}, []string{"Gather needs LoadMany"}},
		"origin lag":     {config{Load: load, OriginLag: -1}, []string{"OriginLag must not be negative"}},
		"audit": {config{Load: load, Audit: nearcache.AuditConfig{Invalidations: -1, Values: 101}}, []string{
			"Audit.Invalidations must be between 0 and 100", "Audit.Values must be between 0 and 100",
		}},
		"audit of a replica": {config{Load: load, OriginLag: 1, Audit: nearcache.AuditConfig{Values: 1}}, []string{"Audit.Values with OriginLag needs VersionOf"}},
		"eviction":           {config{Load: load, Eviction: nearcache.EvictRandom + 1}, []string{"there is no Eviction 5"}},
		"ack":                {config{Load: load, Ack: -1}, []string{"there is no Ack -1"}},
		"pinned":             {config{Load: load, Hot: nearcache.HotConfig{Pin: make([]string, 129)}}, []string{"128 keys", "1 to 65535 bytes"}},
		"nowhere to pin":     {config{Load: load, NearTTL: -1, Hot: nearcache.HotConfig{Pin: []string{"k"}}}, []string{"Hot.Pin needs a near cache"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nearcache.New(nil, "ks", tt.cfg)
			if _, ok := errors.AsType[*nearcache.ConfigError](err); !ok {
				t.Fatalf("got %v, want a *ConfigError", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %q", err, w)
				}
			}
		})
	}
	if _, err := nearcache.New(nil, "ks", nearcache.Config[chan int]{Load: func(context.Context, string) (chan int, error) { return nil, nil }}); err == nil {
		t.Error("a channel has a codec")
	}
}

// Case ring-8.
// Case discovery-3.
// Case API-4.
func TestNodeConfigProblems(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, tt := range map[string]struct {
		cfg  nearcache.NodeConfig
		want []string
	}{
		"negative":     {nearcache.NodeConfig{MaxBytes: -1, Replicas: -1, PeerTimeout: -1}, []string{"MaxBytes", "Replicas", "PeerTimeout"}},
		"replicas":     {nearcache.NodeConfig{Replicas: 9}, []string{"Replicas must not exceed 8"}},
		"short bound":  {nearcache.NodeConfig{Bound: time.Millisecond}, []string{"Bound"}},
		"long bound":   {nearcache.NodeConfig{Bound: time.Hour}, []string{"Bound"}},
		"weight":       {nearcache.NodeConfig{Weight: math.MaxInt32}, []string{"Weight"}},
		"names":        {nearcache.NodeConfig{ID: long, Cluster: long, Zone: long}, []string{"ID", "Cluster", "Zone"}},
		"no listener":  {nearcache.NodeConfig{Discovery: peers.NewList()}, []string{"Discovery needs"}},
		"wildcard":     {nearcache.NodeConfig{Listen: "127.0.0.1:0", Advertise: "0.0.0.0:7946"}, []string{"Advertise"}},
		"port 0":       {nearcache.NodeConfig{Listen: "127.0.0.1:0", Advertise: "10.0.0.1:0"}, []string{"Advertise"}},
		"ambiguous v6": {nearcache.NodeConfig{Listen: "127.0.0.1:0", Advertise: "::1:7946"}, []string{"Advertise"}},
		"in the clear": {nearcache.NodeConfig{Listen: ":0", Advertise: "10.0.0.1:7946"}, []string{"unencrypted", "Plaintext"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := nearcache.Start(t.Context(), tt.cfg)
			if err == nil {
				_ = n.Close(t.Context())
			}
			if _, ok := errors.AsType[*nearcache.ConfigError](err); !ok {
				t.Fatalf("got %v, want a *ConfigError", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %q", err, w)
				}
			}
		})
	}
}

// Case API-5.
func TestAFailedStartLeavesNothing(t *testing.T) {
	first, err := nearcache.Start(t.Context(), nearcache.NodeConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{Listen: first.Addr()}); err == nil {
			_ = n.Close(t.Context())
			t.Fatal("two nodes on one port")
		}
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := nearcache.Start(t.Context(), nearcache.NodeConfig{Listen: first.Addr()})
	if err != nil {
		t.Fatalf("the port is not free after Close: %v", err)
	}
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// What a call is given that does not exist is refused.
func TestOptionsThatDoNotExist(t *testing.T) {
	c, err := nearcache.New(nil, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	ctx := t.Context()
	var ce *nearcache.ConfigError
	if err := c.Warm(ctx, slices.Values([]string{"k"}), 0); !errors.As(err, &ce) {
		t.Errorf("Warm at no rate: got %v, want a *ConfigError", err)
	}
	if err := c.Invalidate(nearcache.WithAck(ctx, 7), "k"); !errors.As(err, &ce) {
		t.Errorf("an Ack that does not exist: got %v, want a *ConfigError", err)
	}
	for _, ack := range []nearcache.Ack{nearcache.AckOwners, nearcache.AckAll} {
		if err := c.Invalidate(nearcache.WithAck(ctx, ack), "k"); err != nil {
			t.Error(err)
		}
	}
	for p := range nearcache.Priority(3) {
		if _, err := c.Get(nearcache.WithPriority(ctx, p), "k"); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Get(nearcache.WithPriority(ctx, 3), "l"); !errors.As(err, &ce) {
		t.Errorf("a Priority that does not exist: got %v, want a *ConfigError", err)
	}
}

func TestGetMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var calls, keysLoaded atomic.Int64
		cfg := nearcache.Config[string]{
			Load: func(context.Context, string) (string, error) { return "", errors.New("LoadMany was not used") },
			LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
				calls.Add(1)
				keysLoaded.Add(int64(len(keys)))
				time.Sleep(10 * time.Millisecond)
				m := make(map[string]string)
				for _, k := range keys {
					if !strings.HasPrefix(k, "absent") {
						m[k] = "v" + k
					}
				}
				return m, nil
			},
		}
		caches := open(t, c, "ks", cfg)
		keys := []string{"k0", "k0", "absent0"} // one is asked for twice
		want := map[string]string{"k0": "vk0"}
		for i := 1; i < 100; i++ {
			k := fmt.Sprint("k", i)
			keys, want[k] = append(keys, k, fmt.Sprint("absent", i)), "v"+k
		}
		for round := range 2 {
			var wg sync.WaitGroup
			for i, cache := range caches {
				wg.Go(func() {
					got, err := cache.GetMany(t.Context(), keys)
					if err != nil || !maps.Equal(got, want) {
						t.Errorf("round %d, node %d: got %d values, %v, want %d", round, i, len(got), err, len(want))
					}
				})
			}
			wg.Wait()
		}
		if got := keysLoaded.Load(); got != 200 {
			t.Errorf("got %d keys loaded by %d calls, want each of 200 once", got, calls.Load())
		}
		if got := calls.Load(); got > 9 {
			t.Errorf("got %d calls of LoadMany for 200 keys by 3 nodes, want them gathered", got)
		}
		for i, cache := range caches {
			if s := cache.Stats(); s.Gets != 400 || s.NotFound != 200 || s.Failed != 0 {
				t.Errorf("node %d: got %+v, want 400 gets, 200 of them not found", i, s)
			}
		}
	})
}

// A loader may do with the list of its keys what it likes: each caller gets the value of its own key.
func TestLoadManyMaySortItsKeys(t *testing.T) {
	c, err := nearcache.New(nil, "ks", nearcache.Config[string]{LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
		found := make(map[string]string)
		for _, k := range keys {
			found[k] = "v" + k
		}
		slices.Sort(keys)
		return found, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	got, err := c.GetMany(t.Context(), []string{"c", "a", "b"})
	if want := map[string]string{"a": "va", "b": "vb", "c": "vc"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// nilError is an error that is often returned by mistake: a nil pointer that is not a nil error.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestALoaderMayReturnANilPointerAsItsError(t *testing.T) {
	for name, cfg := range map[string]nearcache.Config[string]{
		"Load":     {Load: func(context.Context, string) (string, error) { return "", (*nilError)(nil) }},
		"LoadMany": {LoadMany: func(context.Context, []string) (map[string]string, error) { return nil, (*nilError)(nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := nearcache.New(nil, "ks", cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			var failed *nearcache.LoadError
			if _, err := c.Get(t.Context(), "a"); !errors.As(err, &failed) {
				t.Errorf("Get: got %v, want a *LoadError", err)
			}
			if _, err := c.GetMany(t.Context(), []string{"b"}); !errors.As(err, &failed) {
				t.Errorf("GetMany: got %v, want a *LoadError", err)
			}
		})
	}
}

// A function of the application that panics on one key fails that key only, as a codec does.
func TestGetManySurvivesPanicsOfSingleKeys(t *testing.T) {
	bad := func(v string) {
		if v == "bad" {
			panic("boom")
		}
	}
	for name, cfg := range map[string]nearcache.Config[string]{
		"VersionOf": {VersionOf: func(v string) uint64 { bad(v); return 1 }},
		"TTLOf":     {TTLOf: func(_, v string) time.Duration { bad(v); return time.Minute }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.LoadMany = func(context.Context, []string) (map[string]string, error) {
				return map[string]string{"a": "good", "b": "bad"}, nil
			}
			c, err := nearcache.New(nil, "ks", cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			got, err := c.GetMany(t.Context(), []string{"a", "b"})
			var batch *nearcache.BatchError
			if !errors.As(err, &batch) || len(batch.Errs) != 1 || got["a"] != "good" {
				t.Fatalf("got %v, %v, want a, and b alone in a *BatchError", got, err)
			}
			var panicked *nearcache.PanicError
			if !errors.As(batch.Errs["b"], &panicked) || panicked.Value != "boom" || panicked.Stack == nil {
				t.Errorf("got %v, want the *PanicError", batch.Errs["b"])
			}
			if _, err := c.Get(t.Context(), "b"); !errors.As(err, &panicked) {
				t.Errorf("Get: got %v, want the *PanicError", err)
			}
		})
	}
}

// ErrNotFound means the same from LoadMany as from Load.
func TestLoadManyFindsNothing(t *testing.T) {
	c, err := nearcache.New(nil, "ks", nearcache.Config[string]{LoadMany: func(context.Context, []string) (map[string]string, error) {
		return nil, fmt.Errorf("rows: %w", nearcache.ErrNotFound)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	for range 2 {
		if got, err := c.GetMany(t.Context(), []string{"a", "b"}); len(got) != 0 || err != nil {
			t.Errorf("got %v, %v, want nothing found", got, err)
		}
	}
	if s := c.Stats(); s.Loads != 2 || s.LoadErrors != 0 || s.NotFound != 4 {
		t.Errorf("got %d loads, %d errors, %d not found, want 2, 0, 4", s.Loads, s.LoadErrors, s.NotFound)
	}
}

// Case API-2.
func TestGetManyReportsEachKeyOnItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var loads atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{NotFoundTTL: time.Minute, Load: func(_ context.Context, key string) (string, error) {
			loads.Add(1)
			switch {
			case strings.HasPrefix(key, "bad"):
				return "", errOwn
			case strings.HasPrefix(key, "absent"):
				return "", nearcache.ErrNotFound
			case strings.HasPrefix(key, "slow"):
				time.Sleep(5 * time.Second)
			}
			return "v", nil
		}})
		keys := []string{"a", "b", "c", "d", "e", "f", "absent", "bad", "", "slow"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		got, err := caches[0].GetMany(ctx, keys)
		if took := time.Since(start); took > 1050*time.Millisecond {
			t.Errorf("took %v, want the context's second", took)
		}
		var be *nearcache.BatchError
		if !errors.As(err, &be) || len(be.Errs) != 3 {
			t.Fatalf("got %v, want a *BatchError with three keys", err)
		}
		if !errors.Is(be.Errs["bad"], errOwn) || !errors.Is(be.Errs[""], nearcache.ErrInvalidKey) || !errors.Is(be.Errs["slow"], context.DeadlineExceeded) {
			t.Errorf("got %v, want each key's own kind", be.Errs)
		}
		if len(got) != 6 {
			t.Errorf("got %d values, want 6", len(got))
		}
		time.Sleep(10 * time.Second) // the slow loader ignores its context
		before := loads.Load()
		if got, err := caches[1].GetMany(t.Context(), keys[:7]); len(got) != 6 || err != nil || loads.Load() != before {
			t.Errorf("a second call: got %d values, %v, %d more loads, want 6 and none", len(got), err, loads.Load()-before)
		}
	})
}

// Case transport-4.
// Case transport-5.
// Case L1-13.
// Case lease-6.
func TestLargeValues(t *testing.T) {
	c := testcluster.Loopback(t, 3, testcluster.PeerTimeout(10*time.Second))
	var loads atomic.Int64
	value := func(key string) []byte {
		var n int
		_, _ = fmt.Sscanf(key[strings.LastIndex(key, "=")+1:], "%d", &n)
		b := make([]byte, n)
		copy(b, key)
		return b
	}
	caches := open(t, c, "ks", nearcache.Config[[]byte]{MaxValueBytes: 8 << 20, Load: func(_ context.Context, key string) ([]byte, error) {
		loads.Add(1)
		return value(key), nil
	}})
	for _, size := range []int{0, 1, 4 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 4 << 20, 4<<20 + 1, 8 << 20, 8<<20 + 1, 17 << 20} {
		for _, owner := range []string{"n0", "n1"} {
			key := testcluster.Key(c.Nodes[0], "ks", owner, size) + fmt.Sprint("=", size)
			loads.Store(0)
			for i, cache := range caches {
				got, err := cache.Get(t.Context(), key)
				if err != nil || len(got) != size || !strings.HasPrefix(string(got), key[:min(size, len(key))]) {
					t.Fatalf("%d bytes owned by %s, node %d: got %d bytes, %v", size, owner, i, len(got), err)
				}
			}
			want := int64(1)
			if size > 8<<20 {
				want = 3 // returned, not cached
			}
			if got := loads.Load(); got != want {
				t.Errorf("%d bytes owned by %s: got %d loads, want %d", size, owner, got, want)
			}
		}
	}
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf("batch-%d=%d", i, 200<<10))
	}
	for range 2 {
		got, err := caches[2].GetMany(t.Context(), keys)
		if err != nil || len(got) != len(keys) {
			t.Fatalf("got %d values, %v, want %d", len(got), err, len(keys))
		}
		for k, v := range got {
			if string(v[:len(k)]) != k {
				t.Fatalf("%s got the value of another key", k)
			}
		}
	}
}

func TestSetAndPeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var loads atomic.Int64
		type price struct {
			Cents   int
			Version uint64
		}
		caches := open(t, c, "ks", nearcache.Config[price]{
			VersionOf:     func(p price) uint64 { return p.Version },
			NearTTL:       time.Minute,
			MaxValueBytes: 1 << 10,
			Load: func(context.Context, string) (price, error) {
				loads.Add(1)
				return price{Cents: 100, Version: 1}, nil
			},
		})
		ctx := t.Context()
		set := func(i int, p price, want bool, opts ...nearcache.SetOption) {
			t.Helper()
			if stored, err := caches[i].Set(ctx, "k", p, opts...); stored != want || err != nil {
				t.Errorf("Set(%+v): got %v, %v, want %v", p, stored, err, want)
			}
			synctest.Wait()
		}
		all := func(want int) {
			t.Helper()
			for i, cache := range caches {
				if got, err := cache.Get(ctx, "k"); got.Cents != want || err != nil {
					t.Errorf("node %d: got %+v, %v, want %d", i, got, err, want)
				}
				if got, ok, err := cache.Peek(ctx, "k"); got.Cents != want || !ok || err != nil {
					t.Errorf("node %d: Peek got %+v, %v, %v, want %d", i, got, ok, err, want)
				}
			}
		}
		if _, ok, err := caches[0].Peek(ctx, "k"); ok || err != nil {
			t.Errorf("Peek of nothing: got %v, %v", ok, err)
		}
		set(0, price{50, 1}, false, nearcache.IfPresent())
		all(100)
		set(1, price{200, 2}, true)
		all(200)
		set(2, price{150, 1}, false)
		set(2, price{150, 3}, false, nearcache.IfAbsent())
		all(200)
		set(2, price{300, 3}, true, nearcache.IfPresent())
		all(300)
		set(0, price{400, 0}, true, nearcache.WithVersion(4), nearcache.WithTTL(time.Second))
		all(400)
		time.Sleep(2 * time.Second)
		all(100) // the short lifetime is over
		if loads.Load() != 2 {
			t.Errorf("got %d loads, want 2", loads.Load())
		}
		var ce *nearcache.ConfigError
		if _, err := caches[0].Set(ctx, "k", price{}, nearcache.WithTTL(-1)); !errors.As(err, &ce) {
			t.Errorf("a negative lifetime: got %v, want a *ConfigError", err)
		}
		if _, err := caches[0].Set(ctx, "", price{}); !errors.Is(err, nearcache.ErrInvalidKey) {
			t.Errorf("an empty key: got %v, want ErrInvalidKey", err)
		}
		big, err := nearcache.New(c.Nodes[0], "big", nearcache.Config[[]byte]{MaxValueBytes: 10, Load: func(context.Context, string) ([]byte, error) { return nil, nil }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := big.Set(ctx, "k", make([]byte, 11)); !errors.Is(err, nearcache.ErrValueTooLarge) {
			t.Errorf("a large value: got %v, want ErrValueTooLarge", err)
		}
	})
}

func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		db := newDatabase(func() time.Duration { return 10 * time.Millisecond })
		caches := open(t, c, "ks", nearcache.Config[int]{Load: db.load, NearTTL: -1})
		db.write("k", 1)
		for _, cache := range caches {
			if v, err := cache.Get(t.Context(), "k"); v != 1 || err != nil {
				t.Fatal(v, err)
			}
		}
		db.write("k", 2)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if v, err := caches[1].Refresh(t.Context(), "k"); v != 2 || err != nil {
					t.Errorf("Refresh: got %d, %v, want the new value", v, err)
				}
			})
		}
		wg.Wait()
		for i, cache := range caches {
			if v, err := cache.Get(t.Context(), "k"); v != 2 || err != nil {
				t.Errorf("node %d: got %d, %v, want the new value", i, v, err)
			}
		}
		if got := db.loads.Load(); got != 2 {
			t.Errorf("got %d loads, want 2", got)
		}
	})
}

// Case stats-1.
func TestCountersAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		var loads atomic.Int64
		caches := open(t, c, "ks", nearcache.Config[string]{MaxLoads: 2, LoadQueueTimeout: -1, MaxValueBytes: 100, Load: func(_ context.Context, key string) (string, error) {
			loads.Add(1)
			time.Sleep(10 * time.Millisecond)
			switch key[0] {
			case 'a':
				return "", nearcache.ErrNotFound
			case 'e':
				return "", errOwn
			case 'p':
				panic("p")
			case 'b':
				return strings.Repeat("b", 200), nil
			}
			return "v", nil
		}})
		var gets [3]atomic.Uint64
		var wg sync.WaitGroup
		for g := range 30 {
			wg.Go(func() {
				for i := range 200 {
					n := (g + i) % 3
					key := fmt.Sprintf("%c%d", "vvvvvaepb"[(g*7+i)%9], i%20)
					ctx, cancel := t.Context(), func() {}
					if i%10 == 0 {
						ctx, cancel = context.WithTimeout(ctx, 5*time.Millisecond)
					}
					gets[n].Add(1)
					_, _ = caches[n].Get(ctx, key)
					cancel()
					if i%50 == 0 {
						time.Sleep(300 * time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		var sum nearcache.KeyspaceStats
		for i, cache := range caches {
			s := cache.Stats()
			if s.Gets != gets[i].Load() || s.Gets != s.NearHits+s.OwnerHits+s.OriginGets+s.NotFound+s.Failed {
				t.Errorf("node %d: got %+v, want %d gets, each in one class", i, s, gets[i].Load())
			}
			if s.Flights != 0 || s.Leases != 0 || s.LoadsRunning != 0 {
				t.Errorf("node %d: left over: %+v", i, s)
			}
			sum.Loads += s.Loads
			sum.NearHits += s.NearHits
			sum.OwnerHits += s.OwnerHits
			sum.OriginGets += s.OriginGets
			sum.NotFound += s.NotFound
			sum.Failed += s.Failed
			sum.Shared += s.Shared
			sum.LoadErrors += s.LoadErrors
			sum.TooLarge += s.TooLarge
			sum.Shed += s.Shed
		}
		if s := sum; s.NearHits*s.OwnerHits*s.OriginGets*s.NotFound*s.Failed == 0 || s.Shared*s.LoadErrors*s.TooLarge*s.Shed == 0 {
			t.Errorf("a class did not occur: %+v", sum)
		}
		if got := uint64(loads.Load()); sum.Loads != got {
			t.Errorf("got %d loads counted, want %d", sum.Loads, got)
		}
	})
}

// Case L1-7.
// Case transport-11.
func TestCloseLeavesNothing(t *testing.T) {
	for range 3 {
		c := testcluster.Loopback(t, 7)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) { return key, nil }})
		for i, cache := range caches {
			if _, err := cache.Get(t.Context(), fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		}
		var wg sync.WaitGroup
		for _, n := range c.Nodes {
			for range 2 { // twice, at once
				wg.Go(func() {
					if err := n.Close(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		for _, cache := range caches {
			if _, err := cache.Get(t.Context(), "0"); !errors.Is(err, nearcache.ErrClosed) {
				t.Errorf("Get on a closed node: got %v, want ErrClosed", err)
			}
			if err := cache.Invalidate(t.Context(), "0"); !errors.Is(err, nearcache.ErrClosed) {
				t.Errorf("Invalidate on a closed node: got %v, want ErrClosed", err)
			}
		}
		if err := goleak.Find(); err != nil {
			t.Fatal(err)
		}
	}
}

// Case L1-19.
// Case transport-10.
func TestCloseUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for round := range 10 {
			c := testcluster.Bubble(t, 3)
			caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: time.Millisecond, Load: func(ctx context.Context, key string) (string, error) {
				if key == "stuck" {
					<-ctx.Done()
					return "", ctx.Err()
				}
				time.Sleep(time.Millisecond)
				return key, nil
			}})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i, cache := range caches {
				for g := range 5 {
					wg.Go(func() {
						for k := g; ctx.Err() == nil; k++ {
							key := fmt.Sprint(k % 50)
							if g == 0 {
								key = "stuck"
							}
							time.Sleep(time.Millisecond) // a bubble's time stands still while somebody runs
							v, err := cache.Get(ctx, key)
							switch {
							case err == nil && v != key:
								t.Errorf("got %q for %q", v, key)
							case err != nil && !errors.Is(err, nearcache.ErrClosed) && !errors.Is(err, context.Canceled) && !(i == 0 && key == "stuck"):
								if key != "stuck" || !errors.Is(err, nearcache.ErrLoadTimeout) {
									t.Errorf("node %d, %s: got %v", i, key, err)
								}
							case errors.Is(err, nearcache.ErrClosed):
								return
							}
							_ = c.Nodes[i].Stats()
						}
					})
				}
			}
			time.Sleep(time.Duration(round) * time.Millisecond)
			start := time.Now()
			limit := []time.Duration{0, 200 * time.Millisecond, time.Minute}[round%3]
			closing, cancelClosing := context.WithTimeout(t.Context(), limit)
			if err := c.Nodes[0].Close(closing); err != nil && (limit > time.Second || !errors.Is(err, context.DeadlineExceeded)) {
				t.Errorf("Close with %v: got %v", limit, err)
			}
			cancelClosing()
			if took, most := time.Since(start), min(limit, 2*time.Second)+500*time.Millisecond; took > most {
				t.Errorf("Close with %v took %v with a loader that is stuck, want at most %v", limit, took, most)
			}
			time.Sleep(10 * time.Millisecond)
			cancel()
			wg.Wait()
			for _, n := range c.Nodes {
				if err := n.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// Closing a keyspace ends the calls under way, and the places that they have in queues elsewhere hold nobody up.
func TestClosingAKeyspaceEndsItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		g := newGated()
		caches := open(t, c, "ks", nearcache.Config[string]{Load: g.load, LoadTimeout: -1})
		key := testcluster.Key(c.Nodes[0], "ks", "n0", 0)
		// n0 loads; n1, and behind it n2, wait for that.
		loading, leave := context.WithCancel(t.Context())
		errs := make([]error, 3)
		began := time.Now()
		var wg sync.WaitGroup
		for i, ctx := range []context.Context{loading, t.Context(), t.Context()} {
			wg.Go(func() { _, errs[i] = caches[i].Get(ctx, key) })
			time.Sleep(time.Millisecond)
		}
		<-g.started
		// A load of n1's own, for another key.
		own := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		wg.Go(func() {
			if _, err := caches[1].Get(t.Context(), own); !errors.Is(err, nearcache.ErrClosed) {
				t.Errorf("the caller of a load: got %v, want ErrClosed", err)
			}
		})
		<-g.started
		if err := caches[1].Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
		leave() // the lease passes to whoever has waited longest
		<-g.started
		g.end <- func() (string, error) { return "v", nil }
		wg.Wait()
		if !errors.Is(errs[1], nearcache.ErrClosed) || errs[2] != nil {
			t.Errorf("got %v on the node that closed its keyspace and %v on the other, want ErrClosed and the value", errs[1], errs[2])
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the calls took %v, want the 2 s of Close and a little", took)
		}
	})
}

// Case API-1.
func TestKeyspacesAndClustersAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := func(_ context.Context, key string) (string, error) { return key, nil }
		n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close(t.Context())
		a, err := nearcache.New(n, "a", nearcache.Config[string]{Load: load})
		if err != nil {
			t.Fatal(err)
		}
		var ce *nearcache.ConfigError
		for _, name := range []string{"a", "", strings.Repeat("n", 256)} {
			if _, err := nearcache.New(n, name, nearcache.Config[string]{Load: load}); !errors.As(err, &ce) {
				t.Errorf("keyspace %.20q: got %v, want a *ConfigError", name, err)
			}
		}
		if _, err := a.Get(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		b, err := nearcache.New(n, "b", nearcache.Config[string]{Load: load})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := b.Peek(t.Context(), "k"); ok || err != nil {
			t.Errorf("keyspace b has a's key: %v, %v", ok, err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Get(t.Context(), "k"); !errors.Is(err, nearcache.ErrClosed) {
			t.Errorf("a closed keyspace: got %v, want ErrClosed", err)
		}
		again, err := nearcache.New(n, "a", nearcache.Config[string]{Load: load})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, _ := again.Peek(t.Context(), "k"); ok {
			t.Error("the keyspace opened again has the old one's entries")
		}
	})
}

func TestTheCacheOfOneProcess(t *testing.T) {
	type product struct{ Name string }
	c, err := nearcache.New(nil, "product", nearcache.Config[*product]{Load: func(_ context.Context, key string) (*product, error) {
		return &product{Name: "p" + key}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p, err := c.Get(t.Context(), "1")
		if err != nil || p.Name != "p1" {
			t.Errorf("got %+v, %v", p, err)
		}
	}
	if s := c.Stats(); s.Loads != 1 || s.NearHits != 2 {
		t.Errorf("got %+v, want 1 load and 2 near hits", s)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), "1"); !errors.Is(err, nearcache.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

// Case stats-5.
func TestHandler(t *testing.T) {
	c := testcluster.Loopback(t, 2)
	caches := open(t, c, `ks<script>"`, nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) { return key, nil }})
	hostile := "customer:<script>alert(1)</script>\"\xff"
	for _, cache := range caches {
		if _, err := cache.Get(t.Context(), hostile); err != nil {
			t.Fatal(err)
		}
	}
	h := http.StripPrefix("/debug/nearcache", c.Nodes[0].Handler())
	get := func(method, target, remote, host string) *http.Response {
		r := httptest.NewRequest(method, target, nil)
		r.RemoteAddr, r.Host = remote, host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	body := func(r *http.Response) string {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const local, localhost = "127.0.0.1:5", "localhost:8080"

	r := get("GET", "/debug/nearcache/", local, localhost)
	page := body(r)
	if r.StatusCode != 200 || !strings.Contains(page, "n0") || strings.Contains(page, "<script") {
		t.Errorf("page: got %d, want a page without a script:\n%s", r.StatusCode, page)
	}
	if !strings.Contains(r.Header.Get("Content-Security-Policy"), "default-src 'none'") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("page: got headers %v", r.Header)
	}
	var st nearcache.Stats
	if err := json.Unmarshal([]byte(body(get("GET", "/debug/nearcache/stats.json", local, localhost))), &st); err != nil || st.Node != "n0" || len(st.Members) != 2 {
		t.Errorf("stats.json: got %+v, %v", st, err)
	}
	if b := body(get("HEAD", "/debug/nearcache/stats.json", local, localhost)); b != "" {
		t.Errorf("HEAD has a body: %q", b)
	}
	for _, m := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		if r := get(m, "/debug/nearcache/", local, localhost); r.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: got %d, want 405", m, r.StatusCode)
		}
	}
	key := "/debug/nearcache/key?keyspace=ks%3Cscript%3E%22&key=customer:%3Cscript%3Ealert(1)%3C/script%3E%22%ff"
	var v nearcache.KeyView
	if err := json.Unmarshal([]byte(body(get("GET", key, local, localhost))), &v); err != nil || !strings.Contains(v.Key, "script") || v.Owner == "" || v.Near == nil {
		t.Errorf("key: got %+v, %v, want the whole key and its near copy", v, err)
	}
	for _, from := range [][2]string{{"10.0.0.9:5", localhost}, {local, "evil.example:80"}} {
		b := body(get("GET", key, from[0], from[1]))
		if strings.Contains(b, "alert") || !strings.Contains(b, "customer#") {
			t.Errorf("key from %s for %s: got %s, want it shortened", from[0], from[1], b)
		}
	}
	for target, want := range map[string]int{
		"/debug/nearcache/key?keyspace=none&key=k":                404,
		"/debug/nearcache/key?keyspace=ks%3Cscript%3E%22&key=":    400,
		"/debug/nearcache/nothing":                                404,
		"/debug/nearcache/key?keyspace=ks%3Cscript%3E%22&key=xyz": 200,
	} {
		if r := get("GET", target, local, localhost); r.StatusCode != want {
			t.Errorf("%s: got %d, want %d", target, r.StatusCode, want)
		}
	}
}

// Ages are measured by a coarse clock against times of the exact one.
func TestAgesAreNotNegative(t *testing.T) {
	c, err := nearcache.New(nil, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	for i := range 2000 {
		for range 2 {
			if _, info, err := c.GetInfo(t.Context(), fmt.Sprint("k", i)); info.Age < 0 || err != nil {
				t.Fatalf("got %+v, %v, want an age that is not negative", info, err)
			}
		}
	}
}

// invertingCodec is a codec of an application for bytes, which leaves room behind what it decodes.
type invertingCodec struct{}

func (invertingCodec) Append(dst, v []byte) ([]byte, error) {
	for _, b := range v {
		dst = append(dst, ^b)
	}
	return dst, nil
}

func (c invertingCodec) Decode(b []byte) ([]byte, error) { return c.Append(make([]byte, 0, 100), b) }

// Bytes that a loader returned may be reused by it, and bytes that come out have no room for an append, whatever the codec.
func TestBytesOfAnyCodecAreTheCachesOwn(t *testing.T) {
	for name, cfg := range map[string]nearcache.Config[[]byte]{
		"default codec, near copy": {},
		"own codec, near copy":     {Codec: invertingCodec{}},
		"own codec, owner's entry": {Codec: invertingCodec{}, NearTTL: -1},
	} {
		t.Run(name, func(t *testing.T) {
			buffer := []byte("abc")
			cfg.Load = func(context.Context, string) ([]byte, error) { return buffer[:2], nil }
			c, err := nearcache.New(nil, "ks", cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			for range 2 {
				if v, err := c.Get(t.Context(), "k"); string(v) != "ab" || cap(v) != 2 || err != nil {
					t.Errorf("got %q with capacity %d, %v, want ab and 2", v, cap(v), err)
				}
				copy(buffer, "xyz")
			}
		})
	}
}

func TestNoDefaultCodec(t *testing.T) {
	refused := func(name string, err error) {
		t.Helper()
		if _, ok := errors.AsType[*nearcache.ConfigError](err); !ok {
			t.Errorf("%s: got %v, want a *ConfigError", name, err)
		}
	}
	_, err := nearcache.New(nil, "ks", nearcache.Config[proto.Message]{Load: func(context.Context, string) (proto.Message, error) { return nil, nil }})
	refused("proto.Message", err)
	_, err = nearcache.New(nil, "ks", nearcache.Config[fmt.Stringer]{Load: func(context.Context, string) (fmt.Stringer, error) { return nil, nil }})
	refused("fmt.Stringer", err)
	_, err = nearcache.New(nil, "ks", nearcache.Config[chan int]{Load: func(context.Context, string) (chan int, error) { return nil, nil }})
	refused("chan int", err)
}

// An entry that cannot be decoded is a miss, counted once, whether it is read alone or with others.
func TestUndecodableEntriesCountOnce(t *testing.T) {
	n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{NearBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	codec := &failingCodec{}
	c, err := nearcache.New(n, "ks", nearcache.Config[string]{
		Codec: codec, Load: func(context.Context, string) (string, error) { return "v", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	get := func() {
		t.Helper()
		if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil {
			t.Errorf("Get: got %q, %v, want the value", v, err)
		}
	}
	getMany := func() {
		t.Helper()
		if m, err := c.GetMany(t.Context(), []string{"k"}); m["k"] != "v" || err != nil {
			t.Errorf("GetMany: got %v, %v, want the value", m, err)
		}
	}
	get()
	for i, read := range []func(){get, getMany} {
		codec.fail.Store(true)
		read()
		codec.fail.Store(false)
		if got := c.Stats().Undecodable; got != uint64(i+1) {
			t.Errorf("read %d: got %d undecodable entries, want one more", i, got)
		}
	}
}

// failingCodec fails to decode while fail is set.
type failingCodec struct{ fail atomic.Bool }

func (*failingCodec) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }

func (c *failingCodec) Decode(b []byte) (string, error) {
	if c.fail.Load() {
		return "", errors.New("of another version")
	}
	return string(b), nil
}

// Without a near cache, of the node or the keyspace, nothing is kept, no owner is asked to announce anything, and a keyspace without one
// takes nothing from the others' share.
func TestNoNearCache(t *testing.T) {
	for name, tt := range map[string]struct {
		node     int64
		keyspace nearcache.Config[string]
	}{
		"NearBytes of the node":     {node: -1},
		"NearBytes of the keyspace": {keyspace: nearcache.Config[string]{NearBytes: -1}},
		"NearTTL":                   {keyspace: nearcache.Config[string]{NearTTL: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 2, func(_ int, cfg *nearcache.NodeConfig) { cfg.NearBytes = tt.node })
				tt.keyspace.Load = func(_ context.Context, key string) (string, error) { return "v", nil }
				caches := open(t, c, "ks", tt.keyspace)
				key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
				for range 2 {
					if _, info, err := caches[0].GetInfo(t.Context(), key); info.Tier == nearcache.TierNear || err != nil {
						t.Errorf("got tier %v, %v, want no near copy", info.Tier, err)
					}
				}
				if s := caches[0].Stats(); s.NearEntries != 0 || s.NotInstalled != 0 {
					t.Errorf("got %d near copies and %d that were not kept, want none wanted", s.NearEntries, s.NotInstalled)
				}
			})
		})
	}
}

func TestBudgetsOfKeyspaces(t *testing.T) {
	n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{MaxBytes: 10 << 20, NearBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(t.Context())
	open := func(name string, maxBytes, nearBytes int64) error {
		_, err := nearcache.New(n, name, nearcache.Config[string]{MaxBytes: maxBytes, NearBytes: nearBytes, Load: func(context.Context, string) (string, error) { return "v", nil }})
		return err
	}
	for _, tt := range []struct {
		name                string
		maxBytes, nearBytes int64
		ok                  bool
	}{
		{"half", 5 << 20, 2 << 20, true},
		{"too much", 6 << 20, 0, false},
		{"too much near", 0, 3 << 20, false},
		{"a share", 0, 0, true},
		{"nothing left for a share", 5 << 20, 0, false},
		{"near off", 1 << 20, -1, true},
	} {
		var config *nearcache.ConfigError
		if err := open(tt.name, tt.maxBytes, tt.nearBytes); (err == nil) != tt.ok || err != nil && !errors.As(err, &config) {
			t.Errorf("%s: got %v, want ok %v", tt.name, err, tt.ok)
		}
	}
	large, err := nearcache.New(nil, "ks", nearcache.Config[string]{MaxBytes: 1 << 30, NearBytes: 1 << 30, Load: func(context.Context, string) (string, error) { return "v", nil }})
	if err != nil {
		t.Fatalf("a cache of its own with large budgets: %v", err)
	}
	if err := large.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
