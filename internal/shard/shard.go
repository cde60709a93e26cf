// Package shard is what a member keeps of one keyspace as its owner: encoded values and negative entries, at most one
// fill lease per key, those who wait behind it, and for a while what was invalidated last (docs/design.md section 8,
// docs/protocol.md R1, R2 and R6).
//
// The package is passive: it starts no goroutine, reads no clock and does no I/O. Time is an argument, in nanoseconds on
// the member's own monotonic clock. A call never blocks on anything but a short mutex; what has to happen because of it
// (answers to those who waited, notices to holders that lost their lease) comes back in its Effect, for the caller to
// carry out after the call. All methods are safe for concurrent use.
//
// Lock order: a shard lock of the store, then whatever leaf lock Config.Dropped takes. One shard lock at a time.
package shard

import (
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/tag"
)

// Config of a Shard.
type Config struct {
	// Incarnation of this member: part of every token, so that a token of an earlier life is never live.
	Incarnation uint64
	// Tokens numbers the leases. Shards that may follow each other under one name within one incarnation (a keyspace
	// closed and opened again) share it. Nil: a counter of the shard's own.
	Tokens *atomic.Uint64
	// MaxBytes is the budget for entries: keys, values and the store's overhead. It may be changed by Resize.
	MaxBytes int64
	// Policy is what makes room for a new entry.
	Policy store.Policy
	// MaxLeases bounds the live leases; above it Acquire answers Busy. The bound is kept per part of the key space, so
	// an uneven load meets it a little early. 0: 65,536.
	MaxLeases int
	// MaxWaiters bounds the asks queued behind all leases; above it Acquire answers Busy. 0: 262,144.
	MaxWaiters int
	// MaxTombstones bounds the keys whose last invalidation is remembered one by one. 0: 16,384.
	MaxTombstones int
	// Dropped is called when key has changed at the origin: after its entry was unlinked or replaced and before the
	// operation returns, with a shard lock held. It numbers the change in the invalidation log, and may take that log's
	// leaf lock and no other. key may alias the caller's buffer. Not called for fills, evictions, expiries, Clear and
	// Move. Nil: nothing to tell.
	Dropped func(key string)
	// Lag is how far behind the origin a load may read: what was loaded less than it after the last invalidation of the key may be what was
	// invalidated, and is fresh until then only (R11). 0: not at all.
	Lag int64
	// Cap returns how long what is loaded for key from now on may live; 0: as long as its filler says. It is asked when a lease is granted,
	// as whoever may not hear of invalidations when a load begins may be sure of itself again when it ends (docs/protocol.md R7); and when
	// somebody is to wait for a load, which does for half of it. It is called with a shard lock held and takes none. Nil: 0.
	Cap func(key string, now int64) time.Duration
	// Held tells whether somebody changes key at the origin now (R13): no lease is given and no value kept meanwhile. An Invalidate follows
	// when that begins. It is called with a shard lock held and takes a leaf lock at most. Nil: no key ever is.
	Held func(key string) bool
	// Limits are what the Limits of this member are, for all its shards. Nil, or holding nil: none.
	Limits *atomic.Pointer[Limits]
	// Patience is how long somebody who could have a stale copy waits for the load that replaces it, counted from the lease, in ns. What
	// Expire and ExpireAll left is not waited for. 0: nobody waits.
	Patience int64
	// Retry is the pause after a failed load of a key that has a stale copy, which is served meanwhile without another load, in ns.
	Retry int64
	// Refreshes bounds the loads a second that replace what ExpireAll left. 0: no bound.
	Refreshes int
	// Seq is the number of the log's last event. It may be called with a shard lock held and takes no lock. Nil: always 0.
	Seq func() uint64
}

const (
	defaultMaxLeases     = 1 << 16
	defaultMaxWaiters    = 1 << 18
	defaultMaxTombstones = 1 << 14
)

// Shard is the owner's part of one keyspace.
type Shard struct {
	cfg    Config
	tokens *atomic.Uint64
	store  *store.Store[packed]
	tables []table // one per shard of the store, guarded by that shard's lock
	tags   tag.Table

	leases        atomic.Int64
	waiters       atomic.Int64
	refused       struct{ lease, tag, version atomic.Uint64 } // fills
	expired       atomic.Uint64
	invalidations atomic.Uint64
	outdated      atomic.Int64 // what was loaded before it is a stale copy at best (ExpireAll)
	refresh       atomic.Int64 // the next lease that replaces such a copy is granted from then on
}

// New makes an empty Shard.
func New(cfg Config) *Shard {
	s := &Shard{cfg: cfg, tokens: cfg.Tokens, store: store.New[packed](store.Config{MaxBytes: cfg.MaxBytes, Policy: cfg.Policy})}
	s.store.Count((*packed).absent)
	if s.tokens == nil {
		s.tokens = new(atomic.Uint64)
	}
	if cfg.Seq == nil {
		s.cfg.Seq = func() uint64 { return 0 }
	}
	if cfg.Dropped == nil {
		s.cfg.Dropped = func(string) {}
	}
	if cfg.Cap == nil {
		s.cfg.Cap = func(string, int64) time.Duration { return 0 }
	}
	if cfg.Limits == nil {
		s.cfg.Limits = new(atomic.Pointer[Limits])
	}
	if cfg.MaxLeases <= 0 {
		s.cfg.MaxLeases = defaultMaxLeases
	}
	if cfg.MaxWaiters <= 0 {
		s.cfg.MaxWaiters = defaultMaxWaiters
	}
	if cfg.MaxTombstones <= 0 {
		s.cfg.MaxTombstones = defaultMaxTombstones
	}
	n := s.store.Shards()
	s.tables = make([]table, n)
	for i := range s.tables {
		s.tables[i].init(s, (s.cfg.MaxLeases+n-1)/n, (s.cfg.MaxTombstones+n-1)/n)
	}
	return s
}

// Get returns the fresh value or absence of key, and the number of the log's last event at an instant before it was
// read: whoever keeps a copy under that number drops it on every later event of the key. Nil: nothing fresh, go on to
// Acquire. It takes no lock, and allocates nothing if the Value stays where Get was called: it is small enough to be inlined there. key may alias
// a buffer. The Value's bytes are shared and read-only.
func (s *Shard) Get(key string, now int64) (*Value, uint64) {
	return s.get(new(Value), key, now)
}

func (s *Shard) get(v *Value, key string, now int64) (*Value, uint64) {
	// Why this order: the other way round, (1) this reads the old value, (2) an Invalidate unlinks it, and Dropped numbers
	// that 8, (3) this reads number 8, (4) the near copy of the old value, numbered 8, survives event 8. A number read
	// first is lower than that of every change whose old value can still be read.
	seq := s.cfg.Seq()
	e := s.store.Get(key, now)
	if e == nil {
		return nil, seq
	}
	if v.unpack(e); !s.Fresh(v, now) {
		return nil, seq
	}
	return v, seq
}

// Peek is Get for onlookers: the read does not count as a use of the entry, and what is past its lifetime but not past
// its hard end is returned too (see Fresh).
func (s *Shard) Peek(key string, now int64) (*Value, uint64) {
	seq := s.cfg.Seq()
	v := valueOf(s.store.Find(key))
	if v == nil || now >= v.Hard {
		return nil, seq
	}
	return v, seq
}

// Range calls yield for the resident entries, expired ones that were not swept yet included, until it returns false.
// What is stored or dropped meanwhile may be seen or not. yield runs without a lock and may call the Shard.
func (s *Shard) Range(yield func(key string, v *Value) bool) {
	s.store.Range(func(e *store.Entry[packed]) bool { return yield(e.Key, valueOf(e)) })
}

// Sweep frees expired entries and returns their number; see store.Store.Sweep.
func (s *Shard) Sweep(now int64) int {
	s.eachTable(func(t *table) { t.asides.sweep(now) })
	return s.store.Sweep(now)
}

// Expired returns the number of entries that are past their hard end and were not swept yet; see store.Store.Expired.
func (s *Shard) Expired(now int64) int64 { return s.store.Expired(now) }

// Resize changes the budget and evicts at once what exceeds it.
func (s *Shard) Resize(maxBytes int64) {
	s.store.Resize(maxBytes)
	for i := range s.tables {
		s.withTable(i, func(t *table) { t.asides.fit(s.store.Room(i)) })
	}
}

// bytes is what a value counts, its key and the store's overhead included.
func (s *Shard) bytes(key string, v *Value) int64 {
	return int64(len(key)) + v.cost() + store.EntryOverhead
}

// Stats are the shard's counters.
type Stats struct {
	store.Stats       // Counted: the negative entries
	Aside       int64 // values that are kept for others (see Aside), and their bytes
	AsideBytes  int64
	Leases      int64 // live
	Waiters     int64 // queued behind them
	// Fills refused: the lease was no longer live, a tag of the value was invalidated since it was given, or a higher version is known.
	RefusedLease, RefusedTag, RefusedVersion uint64
	Expired                                  uint64 // leases that ended because their holder did not answer in time
	Invalidations                            uint64 // keys invalidated, resident or not
}

// Stats returns the counters. They are read one after the other: sums over several of them may be off by what happens
// meanwhile.
func (s *Shard) Stats() Stats {
	var values, bytes int64
	s.eachTable(func(t *table) {
		values += int64(len(t.asides.values))
		bytes += t.asides.bytes
	})
	return Stats{
		Aside: values, AsideBytes: bytes,
		Stats:        s.store.Stats(),
		Leases:       s.leases.Load(),
		Waiters:      s.waiters.Load(),
		RefusedLease: s.refused.lease.Load(), RefusedTag: s.refused.tag.Load(), RefusedVersion: s.refused.version.Load(),
		Expired:       s.expired.Load(),
		Invalidations: s.invalidations.Load(),
	}
}
