// Package store is the one engine of both tiers: a sharded, byte-accounted cache of immutable entries that is read
// without locks. near keeps decoded values in it, internal/shard encoded ones.
//
// Reads: an index of tagged slots is read with atomic loads; a hit raises a saturating counter in the entry and, once
// that is full, writes nothing at all. Get and Find neither lock nor allocate.
//
// Writes: one mutex per shard covers the index, the policy, the deadlines, and whatever side tables the caller keeps
// for the shard. A write is a transaction, Begin to End, so that the caller can check a condition and act on it in
// one critical section. Eviction happens inside it: the budget is exact.
//
// Policy: new entries begin in a window, and move on to main while there is room. Both are CLOCKs: a hand turns from
// the oldest entry on, gives one that was used another round, and stops at one that was not. When there is no room,
// the entry under the window's hand must have been asked for more often lately than the one under main's (TinyLFU's
// duel on a small sketch): the loser goes. A key that the window lost and that is fetched again soon enters main
// without a duel. An expired entry loses every duel. The window has a fifth of the budget to begin with; it grows
// when keys come back that it lost, and shrinks when keys come back that main lost (as ARC's lists do: Megiddo,
// Modha, FAST'03). Config.Policy has others, for those who know their load: LRU, LFU and Random have no window and let everybody in.
//
// What the caller wants to have kept (Tx.Kept) is in a third queue, which no hand passes, up to half of the budget.
//
// Expiry: Get does not return an entry whose deadline has passed; Sweep frees those that nobody asks for, in the
// order of their deadlines.
//
// The package is passive: it has no goroutine, clock or I/O. Time is an argument: nanoseconds on the node's own
// monotonic clock.
package store
