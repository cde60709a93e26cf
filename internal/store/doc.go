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
// Policy: new entries pass through a window, a FIFO of a fifth of the budget. The oldest of a window that
// is too long moves to main, a CLOCK, while there is room; later it must have been asked for more often lately than the entry under main's hand
// (TinyLFU's duel on a small sketch). A key that lost and is fetched again soon enters main without a duel. An expired
// entry loses every duel.
//
// Expiry: Get does not return an entry whose deadline has passed; Sweep frees those that nobody asks for, in
// the order of their deadlines.
//
// The package is passive: it has no goroutine, clock or I/O. Time is an argument: nanoseconds on the node's own monotonic clock.
package store
