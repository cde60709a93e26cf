package invalidation

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// Sizes of an Interest, in keys of one generation, at 12 bits a key: 96 KiB to 12 MiB. Two generations exist.
const (
	minInterestKeys = 1 << 16
	maxInterestKeys = 1 << 23
	bitsPerKey      = 12
	bitsSet         = 6 // of a key, all in one block
	blockWords      = 8 // 512 bits, a cache line
)

// interestSlack is added to every grant, with 1/64 of it: clock rates that differ, coarse clocks.
const interestSlack = 250 * time.Millisecond

// Interest remembers which keys any other member can hold a near copy or a lease of (R14): what was granted and is not over. It may
// take a key for granted that is not (about 1 % of the others while it is not overfull, at least until a grant made at the same time is over),
// which costs a message; it never forgets a grant too early.
//
// It is two Bloom filters. Grants go to the current one; when the last grant in the previous one is over, the current one becomes the
// previous one and an empty one, sized after the keys of both, takes its place.
//
// A member's grants to itself are no interest. All methods are safe for concurrent use and do not block.
type Interest struct {
	pair atomic.Pointer[pair]
}

// pair is immutable: a rotation replaces it.
type pair struct{ cur, prev *generation }

// generation is a blocked Bloom filter (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007).
type generation struct {
	until atomic.Int64 // the end of the last grant in it; sealed: no grant goes in any more
	keys  atomic.Int64 // keys that set a bit, about the number of different keys
	words []atomic.Uint64
}

const sealed = math.MaxInt64

// NewInterest returns one that nothing was granted of.
func NewInterest() *Interest {
	in := &Interest{}
	in.pair.Store(&pair{cur: newGeneration(minInterestKeys), prev: &generation{}})
	return in
}

// Grant notes that another member may hold the key with this hash for d from now on. It must be called before the value is read or
// stored, or the lease given, that the grant is for; d covers all that follows from it: the near lifetime granted (which
// counts from the request's sending, so that waiting needs no more), and for a lease its life. hash is any well-mixed 64-bit hash of keyspace and
// key, the one that Granted is asked for.
//
// Why before the value: 1. A reads the old value. 2. B drops it, asks Granted: no. 3. A calls Grant and sends the value: a copy
// whose invalidation was never sent. The other way round B's drop comes before A's read, or B sees the bit.
func (in *Interest) Grant(hash uint64, d time.Duration, now int64) {
	end := now + int64(d) + int64(d)/64 + int64(interestSlack)
	end |= 1<<26 - 1 // in steps of 67 ms, so that until is seldom written
	for {
		p := in.pair.Load()
		if p.cur.keys.Load() > 0 && p.prev.seal(now) {
			p = in.rotate(p)
		}
		if p.cur.extend(end) {
			p.cur.set(hash)
			return
		}
		// p is old: its current generation has become the previous one and is over. The next pair has another.
	}
}

// Granted reports whether another member may hold the key. After false, no event is needed for it: ask inside the critical section that
// made the old value unreachable. Events of whole keyspaces always are needed.
func (in *Interest) Granted(hash uint64) bool {
	p := in.pair.Load()
	return p.cur.has(hash) || p.prev.has(hash)
}

// rotate is called by the one who sealed p.prev: p is the pair in use until it returns.
//
// Invariant: a generation is dropped only when all grants in it are over. A grant that raised until, or found it high enough, is over before
// seal can succeed, even if it sets its bits only afterwards.
func (in *Interest) rotate(p *pair) *pair {
	keys := 2 * max(p.cur.keys.Load(), p.prev.keys.Load())
	keys = min(max(keys, minInterestKeys), maxInterestKeys)
	next := &pair{cur: newGeneration(keys), prev: p.cur}
	in.pair.Store(next)
	return next
}

func newGeneration(keys int64) *generation {
	blocks := keys * bitsPerKey / (64 * blockWords)
	return &generation{words: make([]atomic.Uint64, blocks*blockWords)}
}

// seal closes g if its last grant is over. Only one caller ever gets true.
func (g *generation) seal(now int64) bool {
	until := g.until.Load()
	return until <= now && g.until.CompareAndSwap(until, sealed)
}

// extend keeps g until end at least; false if it is sealed.
func (g *generation) extend(end int64) bool {
	for {
		until := g.until.Load()
		switch {
		case until == sealed:
			return false
		case until >= end || g.until.CompareAndSwap(until, end):
			return true
		}
	}
}

func (g *generation) set(hash uint64) {
	block, probe := g.block(hash)
	isNew := false
	for range bitsSet {
		w, bit := &block[probe>>6&(blockWords-1)], uint64(1)<<(probe&63)
		if w.Load()&bit == 0 {
			w.Or(bit)
			isNew = true
		}
		probe >>= 9
	}
	if isNew {
		g.keys.Add(1)
	}
}

func (g *generation) has(hash uint64) bool {
	if len(g.words) == 0 {
		return false
	}
	block, probe := g.block(hash)
	for range bitsSet {
		if block[probe>>6&(blockWords-1)].Load()&(1<<(probe&63)) == 0 {
			return false
		}
		probe >>= 9
	}
	return true
}

// block returns the block of a hash and bitsSet times 9 bits that choose the bits in it.
func (g *generation) block(hash uint64) ([]atomic.Uint64, uint64) {
	i, _ := bits.Mul64(hash, uint64(len(g.words)/blockWords))
	return g.words[i*blockWords : (i+1)*blockWords], hash * 0x9e3779b97f4a7c15 >> 10
}
