package store

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"
)

// EntryOverhead is what an entry counts in bytes besides its key and the bytes passed to Put: the entry itself, its slot in the index, its places
// in the queues and the deadline buckets, and its part of the sketch and the ghosts (with a million entries of 24-byte keys and 100-byte
// values 134 were measured in a shard, 135 in near, and 12 more that the heap rounds up for the value).
const EntryOverhead = 160

const (
	maxShards       = 256
	minShardBytes   = 1 << 20 // of a shard by default: a store of 1 MiB has one and holds a value of hundreds of KiB
	minShardEntries = 128     // of a shard by default: fewer make poor statistics
)

// Config says how much a Store holds.
type Config struct {
	MaxBytes   int64  // keys, values and EntryOverhead each; 0 or less: the store holds nothing
	MaxEntries int64  // 0: no limit on the number
	Policy     Policy // what makes room; the zero one is Adaptive
	Shards     int    // rounded up to a power of two, 256 at most; 0: by MaxBytes, MaxEntries and GOMAXPROCS, 16 at most
	// Hits is told how often Get has returned the entry of a key: of up to 63 hits late, when the entry is replaced or goes at the latest, and of
	// what is beyond 4,095 in a window of 1.07 s by an estimate: as if the rest of the window were like its part before that. It is called by whoever calls Get, and with a shard's lock held: it must be quick
	// and must not use the store. Nil: nobody wants to hear of them.
	Hits func(key string, n uint32)

	hash func(string) uint64 // tests; nil: maphash with a seed of the store's own
}

// Entry is a key and its value. It is immutable: a later Put of the key makes a new Entry, and whoever
// holds the old one goes on reading the old value.
type Entry[V any] struct {
	Key      string
	Deadline int64         // the first instant at which Get does not return the entry; math.MaxInt64: never
	word     atomic.Uint32 // counts uses and hits (count.go)
	hash     uint32        // of the key: chooses the bucket of the index, makes the tag, and is what the statistics know of the key
	Value    V

	// Guarded by the shard's mutex, but for cost, which does not change.

	cost      uint32 // bytes it counts
	pos       uint32 // in its queue
	bucketPos uint32 // in its deadline bucket
	bucket    uint16 // its deadline bucket
	main      bool   // in main, else in the window
	kept      bool   // in kept, else in one of those
}

// Bytes is what the entry counts of the budget.
func (e *Entry[V]) Bytes() int64 { return int64(e.cost) }

// Store is a sharded cache. All methods are safe for concurrent use. A Store must be made by New.
type Store[V any] struct {
	seed   maphash.Seed
	hashFn func(string) uint64 // nil outside of tests
	mask   uint64              // of the shard's number
	shards []shard[V]
	hits   func(key string, n uint32) // Config.Hits
}

// New returns an empty store.
func New[V any](cfg Config) *Store[V] {
	n := shardCount(cfg)
	s := &Store[V]{seed: maphash.MakeSeed(), hashFn: cfg.hash, mask: uint64(n - 1), shards: make([]shard[V], n), hits: cfg.Hits}
	for i := range s.shards {
		s.shards[i].hits = cfg.Hits
		s.shards[i].init(cfg.Policy, cfg.MaxBytes/int64(n), cfg.MaxEntries/int64(n))
	}
	return s
}

// shardCount returns a power of two.
func shardCount(cfg Config) int {
	want := int64(cfg.Shards)
	if want <= 0 {
		want = min(16, 4*int64(runtime.GOMAXPROCS(0)), max(1, cfg.MaxBytes/minShardBytes))
		if cfg.MaxEntries > 0 {
			want = min(want, max(1, cfg.MaxEntries/minShardEntries))
		}
		return 1 << (bits.Len64(uint64(want)) - 1)
	}
	n := 1 << bits.Len64(uint64(min(want, maxShards)-1))
	for cfg.MaxEntries > 0 && int64(n) > cfg.MaxEntries {
		n /= 2 // every shard holds an entry
	}
	return n
}

// Get returns the entry of key, or nil when there is none or its deadline has passed at now, and counts the use. It
// takes no lock, does not allocate, and does not retain key.
func (s *Store[V]) Get(key string, now int64) *Entry[V] {
	// hash and find by hand, as far as the usual case needs them: the calls would cost a quarter of a hit.
	var h uint64
	if s.hashFn == nil {
		h = maphash.String(s.seed, key)
	} else {
		h = s.hashFn(key)
	}
	x := s.of(h).index.Load()
	b := &x.buckets[h&uint64(len(x.buckets)-1)]
	tags := b.tags.Load()
	m := matches(tags, tagOf(uint32(h)))
	if m == 0 && tags < passedOne {
		return nil
	}
	var e *Entry[V]
	if m != 0 {
		e = b.slots[slotIn(m)].Load()
	}
	if e == nil || e.Key != key {
		if e = x.find(uint32(h), key); e == nil {
			return nil
		}
	}
	if e.Deadline <= now {
		return nil
	}
	if s.hits == nil {
		e.used()
	} else if w := e.word.Load(); w != full(now) {
		s.hit(e, w, now)
	}
	return e
}

// Find is Get for those who only look: the use is not counted, and an entry that is past its deadline is returned like
// any other.
func (s *Store[V]) Find(key string) *Entry[V] {
	h := s.hash(key)
	return s.of(h).index.Load().find(uint32(h), key)
}

// Begin locks the shard of key until the Tx ends. Only one Tx may be open per goroutine. It retains key until the
// end, not longer.
func (s *Store[V]) Begin(key string) Tx[V] {
	h := s.hash(key)
	i := s.shardIndex(h)
	s.shards[i].mu.Lock()
	return Tx[V]{shard: &s.shards[i], number: i, key: key, hash: uint32(h)}
}

// Shards is the number of shards; it never changes.
func (s *Store[V]) Shards() int { return len(s.shards) }

// ShardOf is the number of key's shard.
func (s *Store[V]) ShardOf(key string) int { return s.shardIndex(s.hash(key)) }

// Lock locks a shard, for work on the caller's own tables of it; no Tx may be begun on it by the same goroutine.
func (s *Store[V]) Lock(shard int) { s.shards[shard].mu.Lock() }

// Room is Tx.Room for a shard that the caller has locked.
func (s *Store[V]) Room(shard int) int64 { return s.shards[shard].maxBytes - s.shards[shard].bytes() }

// Unlock undoes Lock.
func (s *Store[V]) Unlock(shard int) { s.shards[shard].mu.Unlock() }

// Resize changes the budget, and evicts what exceeds the new one before it returns. The number of shards stays: a store
// that was made large and is resized to little holds small values only.
func (s *Store[V]) Resize(maxBytes int64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.resize(maxBytes / int64(len(s.shards)))
		sh.mu.Unlock()
	}
}

const (
	sweepChunk = 256 // entries freed or moved under one hold of a shard's lock, some 20 µs
	sweepMax   = 16 * sweepChunk
)

// Sweep frees entries whose deadline has passed for 4 ms or more, at most 4,096 per shard, and returns their number.
// Called every 12 ms it keeps the memory of a store with lifetimes of a second within 2 % of what is live.
func (s *Store[V]) Sweep(now int64) int {
	total := 0
	for i := range s.shards {
		sh := &s.shards[i]
		for steps := 0; steps < sweepMax; steps += sweepChunk {
			sh.mu.Lock()
			freed, done := sh.sweep(now, sweepChunk)
			sh.mu.Unlock()
			total += freed
			if done {
				break
			}
		}
	}
	return total
}

// Range calls yield for every entry, expired ones included, until it returns false. It works on a copy of the
// pointers of one shard at a time: yield runs without a lock and may use the store; what changes meanwhile may or may
// not be seen.
func (s *Store[V]) Range(yield func(*Entry[V]) bool) {
	var entries []*Entry[V]
	for i := range s.shards {
		sh := &s.shards[i]
		entries = entries[:0]
		sh.mu.Lock()
		for e := range sh.index.Load().all {
			entries = append(entries, e)
		}
		sh.mu.Unlock()
		for _, e := range entries {
			if !yield(e) {
				return
			}
		}
	}
}

// Hottest returns the entries that were used most, the most used first, as many as count maxBytes at most. It looks at all of them, and holds
// one shard's lock at a time.
func (s *Store[V]) Hottest(maxBytes int64) []*Entry[V] {
	type ranked struct {
		e    *Entry[V]
		uses uint32
	}
	var all []ranked
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for e := range sh.index.Load().all {
			all = append(all, ranked{e, uint32(sh.sketch.estimate(e.hash)) + e.word.Load()&usesMax})
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Compare(b.uses, a.uses) })
	var hottest []*Entry[V]
	for _, r := range all {
		if maxBytes -= r.e.Bytes(); maxBytes < 0 {
			break
		}
		hottest = append(hottest, r.e)
	}
	return hottest
}

// DeleteFunc removes the entries for which del returns true, and returns their number. Every shard is held locked
// while its entries are judged: del must be quick, and must neither block nor use the store.
func (s *Store[V]) DeleteFunc(del func(*Entry[V]) bool) int {
	total := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		total += sh.deleteFunc(del)
		sh.mu.Unlock()
	}
	return total
}

// Count lets Stats.Counted be the number of entries for which is returns true, a pure function of the value. It is called before anything else.
func (s *Store[V]) Count(is func(*V) bool) {
	for i := range s.shards {
		s.shards[i].counts = is
	}
}

// Expired returns the number of entries that are past their deadline and still there. Its cost does not depend on the number of
// entries, but on how many are due and were not swept.
func (s *Store[V]) Expired(now int64) (n int64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += int64(sh.due.overdue(sh.index.Load(), now))
		sh.mu.Unlock()
	}
	return n
}

// Stats are a store's gauges and counters.
type Stats struct {
	Entries     int64
	Counted     int64 // of these, the ones that Count is about
	Bytes       int64 // keys, values and overhead of the entries
	MaxBytes    int64
	Evictions   uint64 // entries that left, or did not get in, for want of room
	Expirations uint64 // entries that left after their deadline
	TooLarge    uint64 // values that were refused because they exceed a shard's share
}

// Stats sums the shards, each at its own instant.
func (s *Store[V]) Stats() Stats {
	var t Stats
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		t.Entries += int64(sh.entries())
		t.Counted += sh.counted
		t.Bytes += sh.bytes()
		t.MaxBytes += sh.maxBytes
		t.Evictions += sh.evictions
		t.Expirations += sh.expirations
		t.TooLarge += sh.tooLarge
		sh.mu.Unlock()
	}
	return t
}

func (s *Store[V]) hash(key string) uint64 {
	if s.hashFn != nil {
		return s.hashFn(key)
	}
	return maphash.String(s.seed, key)
}

func (s *Store[V]) of(h uint64) *shard[V] { return &s.shards[s.shardIndex(h)] }

// shardIndex takes bits that are not in Entry.hash.
func (s *Store[V]) shardIndex(h uint64) int { return int(h >> 48 & s.mask) }
