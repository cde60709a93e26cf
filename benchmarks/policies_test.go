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

// readsThrough sets what get does not find.
func readsThrough(get func(string) bool, set func(string)) func(string) bool {
	return func(key string) bool {
		if get(key) {
			return true
		}
		set(key)
		return false
	}
}

// settled is set for a cache that evicts in the background: settle waits for that, often enough that no more than a hundredth of the entries are
// there beyond their number.
func settled(set func(string), settle func(), entries int) func(string) {
	sets, every := 0, max(1, entries/100)
	return func(key string) {
		set(key)
		if sets++; sets%every == 0 {
			settle()
		}
	}
}

// policyEngine is that of both tiers.
func policyEngine(_ testing.TB, entries int) func(string) bool {
	s := store.New[struct{}](store.Config{MaxBytes: 1 << 50, MaxEntries: int64(entries), Shards: 1})
	return readsThrough(func(key string) bool { return s.Get(key, 0) != nil }, func(key string) {
		tx := s.Begin(key)
		defer tx.End()
		tx.Put(struct{}{}, 0, math.MaxInt64, 0)
	})
}

func policyTinyLFU(_ testing.TB, entries int) func(string) bool {
	c := tinylfu.New(entries, 10*entries)
	return readsThrough(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, nil) })
}

func policyLRU(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := simplelru.NewLRU[string, struct{}](entries, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return readsThrough(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, struct{}{}) })
}

func policy2Q(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := lru.New2Q[string, struct{}](entries)
	if err != nil {
		tb.Fatal(err)
	}
	return readsThrough(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, struct{}{}) })
}

func policyARC(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := arc.NewARC[string, struct{}](entries)
	if err != nil {
		tb.Fatal(err)
	}
	return readsThrough(func(key string) bool { _, ok := c.Get(key); return ok }, func(key string) { c.Add(key, struct{}{}) })
}

func policyOtter(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := otter.New(&otter.Options[string, struct{}]{MaximumSize: entries, Executor: func(f func()) { f() }})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.StopAllGoroutines() })
	return readsThrough(func(key string) bool { _, ok := c.GetIfPresent(key); return ok }, settled(func(key string) { c.Set(key, struct{}{}) }, c.CleanUp, entries))
}

func policyTheine(tb testing.TB, entries int) func(string) bool {
	tb.Helper()
	c, err := theine.NewBuilder[string, struct{}](int64(entries)).Build()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return readsThrough(func(key string) bool { _, ok := c.Get(key); return ok }, settled(func(key string) { c.Set(key, struct{}{}, 1) }, c.Wait, entries))
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
	return readsThrough(func(key string) bool { _, ok := c.Get(key); return ok }, settled(func(key string) { c.Set(key, struct{}{}, 1) }, c.Wait, entries))
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
