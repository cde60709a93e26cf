package near

import (
	"math"
	"sync/atomic"

	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/tag"
)

// Source is what a member knows about its hold on another member's stream of invalidations. There is one per peer;
// whoever follows the stream writes it, and every near copy from that peer refers to it. The zero Source has
// generation 0 and no lease.
type Source struct {
	Incarnation atomic.Uint64 // of the peer that is followed; 0: none heard of yet
	Gen         atomic.Uint64 // bumped when invalidations may have been missed: copies of another generation are dead
	LeaseUntil  atomic.Int64  // sending of the last renewal that was answered, plus the lease's length
}

// Item is a value that is to be kept, and what must hold for it to be served.
type Item[V any] struct {
	Value    V
	Absent   bool    // the key does not exist at the origin; Value is zero
	Source   *Source // of the member that the value came from; nil: this process' own shard, and Gen, Seq and Free mean nothing
	Gen      uint64  // of Source when the request was sent
	Seq      uint64  // number of the owner's last event when it read the value: later ones of the key drop the copy
	Free     int64   // until then the copy needs no lease: sending of the request plus the lease's length
	LoadedAt int64   // start of the load
	Version  uint64  // at the origin; 0: none
	// Mark has the value's tags and the position, from TagPos, before the request was sent (R15).
	Mark  tag.Mark
	Stale int64 // ns after its deadline for which it is kept as a stale copy
	// Inherits says that this process loaded it because it does not reach the owner. Nobody will tell of it; but as a stale copy it may
	// take the place of an older one from the owner, for as long as that could be one, and ends with what ends that.
	Inherits bool
	Kept     bool // no other copy displaces it (store.Tx.Kept)
}

// Copy is a value that is held. It is immutable and shared between callers. What a reader checks comes first: it shares a cache line with the
// key and deadline of its entry.
type Copy[V any] struct {
	terms *terms
	free  int64 // Item.Free
	Value V
	seq   uint32 // the lower half of Item.Seq; the upper one is in terms
	aged  int32  // ticks from the start of the load to free
}

// A tick is as short as the readings of the coarse clock are apart. With 32 bits of them a value may be 100 days old.
const tickBits = 22

func newCopy[V any](it *Item[V], t *terms) Copy[V] {
	ticks := (it.Free - it.LoadedAt + 1<<tickBits - 1) >> tickBits
	return Copy[V]{
		terms: t, free: it.Free, Value: it.Value,
		seq: uint32(it.Seq), aged: int32(max(math.MinInt32, min(ticks, math.MaxInt32))),
	}
}

// LoadedAt is the start of the value's load, or up to 4.2 ms before it; of one that is older than 100 days it is later.
func (c *Copy[V]) LoadedAt() int64 { return c.free - int64(c.aged)<<tickBits }

// number is Item.Seq.
func (c *Copy[V]) number() uint64 { return uint64(c.terms.seqHigh)<<32 | uint64(c.seq) }

// Absent says that the key does not exist at the origin; Value is zero.
func (c *Copy[V]) Absent() bool { return c.terms.absent }

// Version is that of the value at the origin; 0: it has none.
func (c *Copy[V]) Version() uint64 { return c.terms.version }

// follows tells whether the copy's number is one of src's in its present generation.
func (c *Copy[V]) follows(src *Source) bool {
	return c.terms.source == src && c.terms.gen == src.Gen.Load()
}

// Cache is the L1 of one keyspace. All methods are safe for concurrent use. A Cache must be made by New.
type Cache[V any] struct {
	store *store.Store[Copy[V]]
	tags  tag.Table
	terms shared

	unsure, tagged atomic.Uint64
}

// New returns an empty cache. cfg.Hits hears of hits of copies that may not be served any more, too.
func New[V any](cfg store.Config) *Cache[V] {
	return &Cache[V]{store: store.New[Copy[V]](cfg)}
}

// Get returns what is held of key and may be served at now, or nil. It takes no lock, does not allocate, and does not
// retain key.
func (c *Cache[V]) Get(key string, now int64) *Copy[V] {
	e := c.store.Get(key, now)
	if e == nil {
		return nil
	}
	t := e.Value.terms
	if now >= e.Deadline-t.stale {
		return nil
	}
	if !t.sure(e.Value.free, now) {
		c.unsure.Add(1)
		return nil
	}
	if !c.tags.Alive(&t.mark) {
		c.tagged.Add(1)
		return nil
	}
	return &e.Value
}

// Peeked is a near copy as somebody sees it who only looks.
type Peeked[V any] struct {
	*Copy[V]
	Deadline int64
	Bytes    int64 // of the budget
}

// Peek is Get for those who only look: it counts as no use. False: nothing may be served.
func (c *Cache[V]) Peek(key string, now int64) (Peeked[V], bool) {
	e := c.store.Find(key)
	if e == nil {
		return Peeked[V]{}, false
	}
	t := e.Value.terms
	end := e.Deadline - t.stale
	if now >= end || !t.sure(e.Value.free, now) || !c.tags.Alive(&t.mark) {
		return Peeked[V]{}, false
	}
	return Peeked[V]{Copy: &e.Value, Deadline: end, Bytes: e.Bytes()}, true
}

// Stale returns what is held of key and may be served as a stale copy, when no fresh value can be had, or nil. It may have missed an
// invalidation (R4).
func (c *Cache[V]) Stale(key string, now int64) *Copy[V] {
	e := c.store.Find(key)
	if e == nil || now >= e.Deadline || e.Value.terms.absent || !c.tags.Alive(&e.Value.terms.mark) {
		return nil
	}
	return &e.Value
}

// Install keeps it under key until deadline, and as a stale copy beyond it, in place of what was there, if still returns true. It tells whether it
// did so: a value that is larger than a shard of the cache is not kept, and neither is the one that it would have
// replaced; and one that may be older than the stale copy that it would inherit from is not, but that one is. The value counts bytes and its tags; key is copied.
//
// still decides whether the copy is as good as when it was asked for (R3). It runs under the lock under which
// Invalidate drops copies: it must be quick, must not block, and must not use the cache. Whoever invalidates marks
// the fetches of the key first and calls Invalidate then, and still looks at the mark. Whatever the order, no copy
// older than the invalidation stays:
//
//  1. mark, Invalidate (nothing to drop), still: sees the mark, nothing is kept.
//  2. mark, still: sees the mark, nothing is kept, Invalidate.
//  3. still (no mark yet), kept, mark, Invalidate: drops the copy.
//  4. still (no mark yet) and mark at once: Invalidate comes after the mark and waits for the lock that Install
//     holds from before still until after the copy is in its place; then it drops it, as in 3.
//
// What would be wrong: to ask before the lock is taken. Then mark and Invalidate fit between the answer and the copy,
// and it stays.
func (c *Cache[V]) Install(key string, it Item[V], bytes, deadline, now int64, still func() bool) bool {
	tx := c.store.Begin(key)
	defer tx.End()
	if !still() {
		return false
	}
	end, single := deadline+it.Stale, it.single()
	old := tx.Entry()
	if it.Inherits && old != nil && old.Value.terms.stale > 0 && max(end, now) < old.Deadline && !old.Value.terms.absent && c.tags.Alive(&old.Value.terms.mark) {
		if it.LoadedAt < old.Value.LoadedAt()+1<<tickBits {
			return false // the owner's is newer, or may be
		}
		it.Source, it.Gen, it.Seq = old.Value.terms.source, old.Value.terms.gen, old.Value.number()
		it.Stale, end, single = old.Deadline-deadline, old.Deadline, true
	}
	tx.Kept = it.Kept
	t := termsOf(&it)
	if bytes += t.mark.Bytes(); single {
		bytes += termsBytes
	}
	_, ok := tx.Put(newCopy(&it, c.terms.of(&t, single)), bytes, end, now)
	return ok
}

// Keep makes the copy of key that is held, if there is one, one that no other copy displaces, or an ordinary one.
func (c *Cache[V]) Keep(key string, keep bool) {
	tx := c.store.Begin(key)
	defer tx.End()
	tx.Keep(keep)
}

// Invalidate applies event seq of src's stream, in its present generation, to key: it drops the copy, unless that came from src in this
// generation, read there after the event. Numbers of other members, and of an earlier life, say nothing about it. It tells whether it dropped one.
func (c *Cache[V]) Invalidate(key string, src *Source, seq uint64) bool {
	tx := c.store.Begin(key)
	defer tx.End()
	e := tx.Entry()
	if e == nil || e.Value.follows(src) && e.Value.number() >= seq {
		return false
	}
	tx.Delete()
	return true
}

// TagPos returns what a request that is about to be sent notes for the Mark of its answer: invalidations of tags that are applied from
// now on end it.
func (c *Cache[V]) TagPos() int64 { return c.tags.Pos() }

// InvalidateTags ends every copy with one of the tags whose request was sent before, those not installed yet too. It takes as long as there
// are tags, however many copies have them: a dead one keeps its place until it expires, is evicted or replaced.
func (c *Cache[V]) InvalidateTags(hashes []uint64, now int64) { c.tags.Invalidate(hashes, now) }

// Delete drops what is held of key, wherever it came from. It tells whether there was anything.
func (c *Cache[V]) Delete(key string) bool {
	tx := c.store.Begin(key)
	defer tx.End()
	return tx.Delete() != nil
}

// Clear drops everything that is held when it is called, and returns the number. A copy whose Install runs meanwhile
// may stay: who clears marks the fetches first, as for Invalidate.
func (c *Cache[V]) Clear() int {
	return c.store.DeleteFunc(func(*store.Entry[Copy[V]]) bool { return true })
}

// Sweep frees copies whose deadline has passed, with bounded work per call, and returns their number (see
// store.Store.Sweep).
func (c *Cache[V]) Sweep(now int64) int { return c.store.Sweep(now) }

// Resize changes the budget; what exceeds a smaller one is evicted before it returns.
func (c *Cache[V]) Resize(maxBytes int64) { c.store.Resize(maxBytes) }

// Expired returns the number of copies that are past their deadline and were not swept yet; see store.Store.Expired.
func (c *Cache[V]) Expired(now int64) int64 { return c.store.Expired(now) }

// Stats are the gauges and counters of the store, and what Get did not return although it was there.
type Stats struct {
	store.Stats
	Unsure uint64 // the member that it came from was not heard in time, or something that it told was missed (R4)
	Tagged uint64 // one of its tags was invalidated
}

// Stats returns a snapshot.
func (c *Cache[V]) Stats() Stats {
	return Stats{Stats: c.store.Stats(), Unsure: c.unsure.Load(), Tagged: c.tagged.Load()}
}
