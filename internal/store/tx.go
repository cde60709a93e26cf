package store

import "strings"

// Tx is a critical section on the shard of one key. It is a small value, made by Begin, for one goroutine; it must be
// ended.
type Tx[V any] struct {
	shard  *shard[V]
	number int
	key    string
	hash   uint32

	// Kept makes what Put stores an entry that no other one displaces, as long as no more than half of the shard's budget is of that
	// kind: beyond it the entry is one like others. It goes by its deadline, by Delete, and when a Put without Kept replaces it.
	Kept bool
}

// Entry returns the key's entry, expired or not, or nil.
func (t *Tx[V]) Entry() *Entry[V] { return t.shard.find(t.hash, t.key) }

// Put stores v under the key in place of what was there, and evicts what exceeds the budget then. The value counts
// bytes, the key and EntryOverhead. The key is copied; v is kept as it is.
//
// It returns false, and the key's old entry is gone, when that is more than a shard's share of the budget. The new
// entry itself may be among the evicted: the result then says true all the same.
//
// The swap is visible to readers before Put returns: nothing the caller does later in the critical section can be
// seen by someone who then still gets the old entry. The same holds for Delete.
func (t *Tx[V]) Put(v V, bytes, deadline, now int64) (*Entry[V], bool) {
	cost := int64(len(t.key)) + max(bytes, 0) + EntryOverhead
	if !t.shard.fits(cost) {
		t.Delete()
		t.shard.tooLarge++
		return nil, false
	}
	old := t.Entry()
	e := &Entry[V]{Deadline: deadline, Value: v, hash: t.hash, cost: uint32(cost), kept: t.Kept && t.shard.mayKeep(cost, old)}
	if old != nil {
		e.Key = old.Key
		t.shard.replace(old, e, now)
	} else {
		e.Key = strings.Clone(t.key)
		t.shard.insert(e, now)
	}
	t.shard.settle(now)
	return e, true
}

// Keep makes the key's entry, if there is one, kept or not, as Kept does with a Put.
func (t *Tx[V]) Keep(keep bool) {
	e := t.Entry()
	if e == nil || e.kept == keep || keep && !t.shard.mayKeep(int64(e.cost), nil) {
		return
	}
	x := t.shard.index.Load()
	at := t.shard.queueOf(e).remove(x, e)
	e.kept, e.main = keep, true
	t.shard.queueOf(e).push(x, e, at)
}

// Delete removes the key's entry and returns it, or nil when there is none.
func (t *Tx[V]) Delete() *Entry[V] {
	e := t.Entry()
	if e != nil {
		t.shard.unlink(e)
		t.shard.shrink()
	}
	return e
}

// Room is what the shard's share of the budget has left.
func (t *Tx[V]) Room() int64 { return t.shard.maxBytes - t.shard.bytes() }

// Shard is the number of the locked shard: the caller's side tables of that number are guarded by its lock.
func (t *Tx[V]) Shard() int { return t.number }

// End unlocks the shard. It is called once.
func (t *Tx[V]) End() { t.shard.mu.Unlock() }
