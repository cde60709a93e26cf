package benchmarks

import (
	"hash/maphash"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/Yiling-J/theine-go"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/dgryski/go-tinylfu"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/maypok86/otter/v2"
	"github.com/puzpuzpuz/xsync/v4"

	"github.com/nearcache/nearcache/internal/clock"
	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/near"
)

// lifetime is longer than a run: entries have one where the library knows such a thing, so that a hit compares clocks, and none expires.
const lifetime = time.Hour

// local is a cache in this process.
type local struct {
	name string
	// hits gets keys[i&(len(keys)-1)] for n values of i from at on and returns how many were there. The loop is the system's own, so
	// that no call through a function value adds to what is measured. It calls peek.
	hits func(keys []string, at, n int) int
	peek func(key string) bool
	set  func(key string, value []byte)
	// settle waits for what set left to do in the background. Nil: nothing.
	settle func()
	// shared says that goroutines may set while others get.
	shared bool
}

// maker makes a system with room for that many entries.
type maker struct {
	name string
	make func(tb testing.TB, entries int) local
}

// locals are the engine of the near copies, without the library around it, stores that never evict, and caches.
func locals() []maker {
	return []maker{
		{"nearcache", localEngine},
		{"map", localMap},
		{"sync.Map", localSyncMap},
		{"xsync.Map", localXsync},
		{"otter", localOtter},
		{"theine", localTheine},
		{"ristretto", localRistretto},
		{"golang-lru", localLRU},
		{"go-tinylfu", localTinyLFU},
	}
}

// evicts tells which of them do.
func (m maker) evicts() bool { return m.name != "map" && m.name != "sync.Map" && m.name != "xsync.Map" }

// makeLocals makes those that -only allows.
func makeLocals(tb testing.TB, makers []maker, entries int) (out []local) {
	tb.Helper()
	for _, m := range makers {
		if chosen(m.name) {
			l := m.make(tb, entries)
			l.name = m.name
			out = append(out, l)
		}
	}
	return out
}

// fill sets every key, and waits until it is there.
func (l *local) fill(keys []string, value []byte) {
	for _, k := range keys {
		l.set(k, value)
	}
	if l.settle != nil {
		l.settle()
	}
}

// loopOver is hits for a system whose get is too slow for a call through a function value to matter.
func loopOver(peek func(string) bool) func([]string, int, int) int {
	return func(keys []string, at, n int) (hits int) {
		for i := at; i < at+n; i++ {
			if peek(keys[i&(len(keys)-1)]) {
				hits++
			}
		}
		return hits
	}
}

func localEngine(tb testing.TB, entries int) local {
	tb.Helper()
	clk := clock.New()
	tb.Cleanup(clk.Close)
	c := near.New[[]byte](store.Config{MaxBytes: 1 << 40, MaxEntries: int64(entries)})
	src := new(near.Source)
	src.LeaseUntil.Store(math.MaxInt64)
	return local{
		shared: true,
		hits: func(keys []string, at, n int) (hits int) {
			for i := at; i < at+n; i++ {
				if c.Get(keys[i&(len(keys)-1)], clk.Now()) != nil {
					hits++
				}
			}
			return hits
		},
		peek: func(key string) bool { return c.Get(key, clk.Now()) != nil },
		set: func(key string, value []byte) {
			c.Install(key, near.Item[[]byte]{Value: value, Source: src}, int64(len(value)), int64(lifetime), clk.Now(), func() bool { return true })
		},
	}
}

// localMap is a map without a lock: the limit. It never evicts.
func localMap(_ testing.TB, entries int) local {
	m := make(map[string][]byte, entries)
	return local{
		hits: func(keys []string, at, n int) (hits int) {
			for i := at; i < at+n; i++ {
				if _, ok := m[keys[i&(len(keys)-1)]]; ok {
					hits++
				}
			}
			return hits
		},
		peek: func(key string) bool { _, ok := m[key]; return ok },
		set:  func(key string, value []byte) { m[key] = value },
	}
}

func localSyncMap(testing.TB, int) local {
	m := new(sync.Map)
	get := func(key string) bool { _, ok := m.Load(key); return ok }
	return local{hits: loopOver(get), peek: get, set: func(key string, value []byte) { m.Store(key, value) }, shared: true}
}

// localXsync is the bare concurrent map that the goals speak of. It never evicts.
func localXsync(testing.TB, int) local {
	type item struct {
		value    []byte
		deadline int64
	}
	m := xsync.NewMap[string, *item]()
	get := func(key string) bool { _, ok := m.Load(key); return ok }
	return local{
		shared: true, hits: loopOver(get), peek: get,
		set: func(key string, value []byte) { m.Store(key, &item{value, math.MaxInt64}) },
	}
}

func localOtter(tb testing.TB, entries int) local {
	tb.Helper()
	clk := otter.NewCoarseClock(5 * time.Millisecond)
	tb.Cleanup(clk.Stop)
	c, err := otter.New(&otter.Options[string, []byte]{
		MaximumSize: entries, Clock: clk, ExpiryCalculator: otter.ExpiryWriting[string, []byte](lifetime),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.StopAllGoroutines() })
	return local{
		shared: true,
		hits: func(keys []string, at, n int) (hits int) {
			for i := at; i < at+n; i++ {
				if _, ok := c.GetIfPresent(keys[i&(len(keys)-1)]); ok {
					hits++
				}
			}
			return hits
		},
		peek:   func(key string) bool { _, ok := c.GetIfPresent(key); return ok },
		set:    func(key string, value []byte) { c.Set(key, value) },
		settle: c.CleanUp,
	}
}

// localWithCosts is a cache whose entries have costs, all 1 here, and which takes them in later.
func localWithCosts(c interface {
	Get(key string) ([]byte, bool)
	SetWithTTL(key string, value []byte, cost int64, ttl time.Duration) bool
	Wait()
},
) local {
	get := func(key string) bool { _, ok := c.Get(key); return ok }
	return local{
		shared: true, hits: loopOver(get), peek: get,
		set:    func(key string, value []byte) { c.SetWithTTL(key, value, 1, lifetime) },
		settle: c.Wait,
	}
}

func localTheine(tb testing.TB, entries int) local {
	tb.Helper()
	c, err := theine.NewBuilder[string, []byte](int64(entries)).Build()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return localWithCosts(c)
}

func localRistretto(tb testing.TB, entries int) local {
	tb.Helper()
	c, err := ristretto.NewCache(&ristretto.Config[string, []byte]{
		NumCounters: 10 * int64(entries), MaxCost: int64(entries), BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return localWithCosts(c)
}

func localLRU(tb testing.TB, entries int) local {
	tb.Helper()
	c, err := lru.New[string, []byte](entries)
	if err != nil {
		tb.Fatal(err)
	}
	get := func(key string) bool { _, ok := c.Get(key); return ok }
	return local{shared: true, hits: loopOver(get), peek: get, set: func(key string, value []byte) { c.Add(key, value) }}
}

// localTinyLFU shards go-tinylfu, which has no locks of its own, over 64 mutexes, or fewer where a shard would hold next to nothing.
func localTinyLFU(_ testing.TB, entries int) local {
	type shard struct {
		mu sync.Mutex
		c  *tinylfu.T
	}
	n := 64
	for n > 1 && entries/n < 128 {
		n /= 2
	}
	shards, seed := make([]shard, n), maphash.MakeSeed()
	for i := range shards {
		shards[i].c = tinylfu.New(entries/n, 10*entries/n)
	}
	get := func(key string) bool {
		s := &shards[maphash.String(seed, key)&uint64(n-1)]
		s.mu.Lock()
		defer s.mu.Unlock()
		_, ok := s.c.Get(key)
		return ok
	}
	return local{
		shared: true, hits: loopOver(get), peek: get,
		set: func(key string, value []byte) {
			s := &shards[maphash.String(seed, key)&uint64(n-1)]
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, ok := s.c.Get(key); !ok { // to add one that is present corrupts it
				s.c.Add(key, value)
			}
		},
	}
}
