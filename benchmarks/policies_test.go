package benchmarks

import (
	"fmt"
	"math"
	"testing"

	"github.com/Yiling-J/theine-go"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/dgryski/go-tinylfu"
	"github.com/hashicorp/golang-lru/arc/v2"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	s3fifo "github.com/maypok86/otter"
	"github.com/maypok86/otter/v2"

	"github.com/nearcache/nearcache/internal/store"
)

// policy makes a cache of that many entries, for one goroutine. request tells whether the key is there, and puts it there if it is not.
type policy struct {
	name  string
	cache func(tb testing.TB, entries int) (request func(key string) bool)
}

func policies() []policy {
	return []policy{
		{"engine", policyEngine},
		{"go-tinylfu", policyTinyLFU},
		{"LRU", policyLRU},
		{"2Q", policy2Q},
		{"ARC", policyARC},
		{"S3-FIFO", policyS3FIFO},
		{"otter", policyOtter},
		{"theine", policyTheine},
		{"ristretto", policyRistretto},
	}
}

// requestOf is read-through over get and set. settle, if there is any, waits for what set left to do in the background; it is called after every
// so many sets: a cache that decides later would decide otherwise.
func requestOf(get func(string) bool, set func(string), settle func(), every int) func(string) bool {
	sets := 0
	return func(key string) bool {
		if get(key) {
			return true
		}
		set(key)
		if sets++; settle != nil && sets%every == 0 {
			settle()
		}
		return false
	}
}

// policyEngine is that of both tiers.
func policyEngine(_ testing.TB, entries int) func(string) bool {
	s := store.New[struct{}](store.Config{MaxBytes: 1 << 50, MaxEntries: int64(entries), Shards: 1})
	return requestOf(func(key string) bool { return s.Get(key, 0) != nil }, func(key string) {
		tx := s.Begin(key)
		defer tx.End()
		tx.Put(struct{}{}, 0, math.MaxInt64, 0)
	}, nil, 0)
}

func policyTinyLFU(_ testing.TB, entries int) func(string) bool {
	c := tinylfu.New(entries, 10*entries)
	return requestOf(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, nil) }, nil, 0)
}

func policyLRU(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := simplelru.NewLRU[string, struct{}](entries, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return requestOf(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, struct{}{}) }, nil, 0)
}

func policy2Q(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := lru.New2Q[string, struct{}](entries)
	if err != nil {
		tb.Fatal(err)
	}
	return requestOf(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, struct{}{}) }, nil, 0)
}

func policyARC(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := arc.NewARC[string, struct{}](entries)
	if err != nil {
		tb.Fatal(err)
	}
	return requestOf(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, struct{}{}) }, nil, 0)
}

// policyS3FIFO is otter's first version, whose policy it was.
func policyS3FIFO(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := s3fifo.MustBuilder[string, struct{}](entries).Build()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return requestOf(c.Has, func(key string) { c.Set(key, struct{}{}) }, nil, 0)
}

func policyOtter(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := otter.New(&otter.Options[string, struct{}]{MaximumSize: entries, Executor: func(f func()) { f() }})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.StopAllGoroutines() })
	return requestOf(func(key string) bool { _, ok := c.GetIfPresent(key); return ok }, func(key string) { c.Set(key, struct{}{}) }, c.CleanUp, 16)
}

func policyTheine(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := theine.NewBuilder[string, struct{}](int64(entries)).Build()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return requestOf(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Set(key, struct{}{}, 1) }, c.Wait, 16)
}

func policyRistretto(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := ristretto.NewCache(&ristretto.Config[string, struct{}]{
		NumCounters: 10 * int64(entries), MaxCost: int64(entries), BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return requestOf(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Set(key, struct{}{}, 1) }, c.Wait, 16)
}

// hitRatio is the share of keys, in percent, that the policy finds resident.
func hitRatio(tb testing.TB, p policy, keys []string, entries int) float64 {
	tb.Helper()
	request, hits := p.cache(tb, entries), 0
	for _, k := range keys {
		if request(k) {
			hits++
		}
	}
	return 100 * float64(hits) / float64(len(keys))
}

// driftingZipf draws n keys of ids with the popularity of Zipf 1.0, whose ranks move on by a hundredth of ids every 100,000 requests: what counted
// once has to be forgotten.
func driftingZipf(ids, n int) []string {
	const every = 100_000
	rank := make(map[string]int, ids)
	for i := range ids {
		rank[zipfKey(i)] = i
	}
	keys := zipf(3, ids, n, 1)
	for i, k := range keys {
		keys[i] = fmt.Sprint((rank[k] + i/every*ids/100) % ids)
	}
	return keys
}

// scannedZipf is Zipf 1.0 with a pass over as many keys that are never asked for again as a tenth of ids, every 20,000 requests.
func scannedZipf(ids, n int) (keys []string) {
	for i, k := range zipf(4, ids, n, 1) {
		if i%20_000 == 0 {
			for j := range ids / 10 {
				keys = append(keys, fmt.Sprintf("scan:%d:%d", i, j))
			}
		}
		keys = append(keys, k)
	}
	return keys
}

// loop asks for ids keys in turn: what is larger than a cache and comes back.
func loop(ids, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(i % ids)
	}
	return keys
}
