package store

import (
	"math"
	"sync"
	"sync/atomic"
)

// shard is one part of a store: an index that readers use, and behind the mutex everything that writers need.
//
// Invariant: an entry is in the index, and its place there in one queue and (if it has a deadline) in one deadline bucket, or it is in none of
// them.
type shard[V any] struct {
	index atomic.Pointer[index[V]] // replaced and written under mu, read without
	_     [56]byte                 // readers do not share a line with the lock

	mu            sync.Mutex // guards all that follows, the inside of the index, and the callers' tables of this shard
	window        queue[V]   // new entries; the oldest is under its hand
	main          queue[V]   // entries that won a duel, or came when there was room
	kept          queue[V]   // entries that no hand passes (Tx.Kept)
	due           wheel[V]
	sketch        sketch
	ghosts        ghosts
	policy        Policy
	maxBytes      int64
	maxEntries    int64 // math.MaxInt64: no limit
	windowPart    float64
	windowBytes   int64 // the window's part of them
	windowEntries int64
	random        uint64
	evictions     uint64
	expirations   uint64
	tooLarge      uint64
	hits          func(key string, n uint32) // Config.Hits
	counts        func(*V) bool              // see Store.Count; nil: none
	counted       int64                      // resident entries for which it is true
	_             [64]byte                   // the next shard's index pointer is on another line
}

func (sh *shard[V]) init(policy Policy, maxBytes, maxEntries int64) {
	sh.policy = policy
	sh.index.Store(newIndex[V](1))
	if sh.maxEntries = maxEntries; maxEntries <= 0 {
		sh.maxEntries = math.MaxInt64
	}
	sh.windowPart = startWindow
	if policy == TinyLFU {
		sh.windowPart = tinyWindow
	}
	sh.random = 88172645463325252 // any seed but 0
	sh.fitStatistics()
	sh.resize(maxBytes)
}

func (sh *shard[V]) entries() int { return sh.window.n + sh.main.n + sh.kept.n }

func (sh *shard[V]) bytes() int64 { return sh.window.bytes + sh.main.bytes + sh.kept.bytes }

// fits tells whether an entry of this cost can be held at all.
func (sh *shard[V]) fits(cost int64) bool { return cost <= sh.maxBytes && cost <= math.MaxUint32 }

func (sh *shard[V]) find(h uint32, key string) *Entry[V] { return sh.index.Load().find(h, key) }

// insert adds e, whose key is not resident. It may be over the budget then: settle follows.
func (sh *shard[V]) insert(e *Entry[V], now int64) {
	sh.fitStatistics()
	sh.sketch.add(e.hash, 1, sh.entries())
	q, admitted := sh.entrance(e, now)
	if !admitted {
		sh.ghosts.remember(e.hash, fromWindow)
		sh.evictions++
		return
	}
	if sh.index.Load().full() {
		sh.reindex()
	}
	e.main = q == &sh.main
	x := sh.index.Load()
	at := x.insert(e)
	q.push(x, e, at)
	sh.due.add(e, at, now)
	sh.count(e, 1)
}

// count notes that e comes, or goes.
func (sh *shard[V]) count(e *Entry[V], n int64) {
	if sh.counts != nil && sh.counts(&e.Value) {
		sh.counted += n
	}
}

// replace puts e in the place of old, which has the same key. An old entry that had expired was missed by a reader:
// that counts as a use.
func (sh *shard[V]) replace(old, e *Entry[V], now int64) {
	e.main = old.main || old.kept
	sh.report(old)
	e.word.Store(old.word.Load() &^ ((batch - 1) << hitsShift))
	if old.Deadline <= now {
		e.used()
	}
	x, from := sh.index.Load(), sh.queueOf(old)
	at := *from.at(old.pos)
	if e.kept == old.kept {
		from.swap(old, e)
	} else {
		from.remove(x, old)
		sh.queueOf(e).push(x, e, at)
	}
	sh.due.remove(x, old)
	x.swap(at, e)
	sh.due.add(e, at, now)
	sh.count(old, -1)
	sh.count(e, 1)
}

// unlink takes e out of everything.
func (sh *shard[V]) unlink(e *Entry[V]) {
	x := sh.index.Load()
	sh.due.remove(x, e)
	x.remove(sh.queueOf(e).remove(x, e))
	sh.count(e, -1)
	sh.report(e)
}

func (sh *shard[V]) queueOf(e *Entry[V]) *queue[V] {
	switch {
	case e.kept:
		return &sh.kept
	case e.main:
		return &sh.main
	}
	return &sh.window
}

// shrink replaces an index that has become much too large.
func (sh *shard[V]) shrink() {
	if sh.index.Load().sparse() {
		sh.reindex()
	}
}

// reindex replaces the index by one of the right size.
func (sh *shard[V]) reindex() {
	sh.index.Store(sh.index.Load().resized(func(e *Entry[V], at place) {
		q := sh.queueOf(e)
		*q.at(e.pos) = at
		sh.due.moved(e, at)
	}))
}

// resize sets the budget and evicts what exceeds it.
func (sh *shard[V]) resize(maxBytes int64) {
	sh.maxBytes = max(0, maxBytes)
	sh.fitWindow()
	sh.settle(math.MinInt64)
	sh.shrink()
}

// sweep frees what is due, in at most steps steps; done tells that nothing is left to do.
func (sh *shard[V]) sweep(now int64, steps int) (freed int, done bool) {
	sh.due.expired(sh.index.Load(), now, &steps, func(e *Entry[V]) {
		sh.note(e)
		sh.unlink(e)
		freed++
	})
	sh.expirations += uint64(freed)
	sh.shrink()
	return freed, steps > 0
}

func (sh *shard[V]) deleteFunc(del func(*Entry[V]) bool) int {
	n := 0
	for e := range sh.index.Load().all {
		if del(e) {
			sh.unlink(e)
			n++
		}
	}
	sh.shrink()
	return n
}
