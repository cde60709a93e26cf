package store

import "math"

// Policy is what makes room.
type Policy uint8

// The policies. Expired entries go first with all of them, where they are met.
const (
	Adaptive Policy = iota // window, duel and ghosts, as doc.go has it
	LRU                    // a CLOCK: who was not used since the hand passed last
	LFU                    // of lfuSample entries drawn at random the one that the sketch, which ages, has seen least
	TinyLFU                // the duel, behind a window of a hundredth, without ghosts
	Random                 // any entry
)

// plain tells that main is all there is: whoever comes gets in.
func (p Policy) plain() bool { return p == LRU || p == LFU || p == Random }

const (
	// The window's part of the budget. Where a key is read again soon or never, a small one loses up to 30 points of
	// hit ratio to LRU; where some keys are always popular, a large one loses a few. So it starts small, and grows or
	// shrinks while that pays.
	startWindow = 0.2
	minWindow   = 0.1
	maxWindow   = 0.9
	// TinyLFU's, as it was published. It never moves.
	tinyWindow = 0.01
	// Fewer let some frequent entries go, more cost time: with 8 the victim is among the rarest eighth of all, as a rule.
	lfuSample = 8
	// By how many entries' worth of the budget the window changes when a key is fetched again that it, or main, lost
	// a short while ago. Main needs the stronger voice: a popular key that it loses costs more than one hit. Larger
	// steps make the window wander.
	growStep   = 0.25
	shrinkStep = 1
	// ghostLife is how long an evicted key is remembered: evictions per resident entry.
	ghostLife = 0.4
	// handSteps is how many entries in use a hand passes before it takes one all the same.
	handSteps = 64
	// A shard with fewer entries than crowd gives every newcomer a turn in the window, however large it is: a handful
	// of entries is no statistics to reject it by.
	crowd = 32
	// A candidate that is at least this frequent is admitted against a victim as frequent once in so many draws, so
	// that nobody can hold the cache by making the resident keys look frequent.
	frequent   = 6
	luckyDraws = 128
	// keptPart of the budget at most is for entries that no hand passes: the cache stays one for all others.
	keptPart = 0.5
)

// entrance returns the queue in which the newcomer e begins, or false: it must stay out, because it is larger than
// the window and rarer than main's victim. Were it to pass through the window, it would throw everybody else out of it.
func (sh *shard[V]) entrance(e *Entry[V], now int64) (*queue[V], bool) {
	if e.kept {
		return &sh.kept, true
	}
	if sh.policy.plain() {
		return &sh.main, true
	}
	switch sh.recall(e) {
	case fromWindow:
		sh.moveWindow(growStep)
		if sh.windowEntries < sh.maxEntries { // there is a main
			return &sh.main, true
		}
	case fromMain:
		sh.moveWindow(-shrinkStep)
	case nowhere:
	}
	if int64(e.cost) <= sh.windowBytes || sh.entries() < crowd || sh.main.n == 0 || sh.bytes()+int64(e.cost) <= sh.maxBytes {
		return &sh.window, true
	}
	v := sh.victim(now)
	return &sh.main, v.Deadline <= now || sh.wins(e, v)
}

// recall tells where e was when it was evicted lately, to those who take that into account.
func (sh *shard[V]) recall(e *Entry[V]) origin {
	if sh.policy != Adaptive {
		return nowhere
	}
	return sh.ghosts.recall(e.hash, uint32(ghostLife*float64(sh.entries())))
}

// moveWindow makes the window larger by the budget of some entries.
func (sh *shard[V]) moveWindow(entries float64) {
	sh.windowPart = min(maxWindow, max(minWindow, sh.windowPart+entries/float64(sh.entries()+1)))
	sh.fitWindow()
}

// fitWindow derives the window's limits from its part of the budget.
func (sh *shard[V]) fitWindow() {
	sh.windowBytes = int64(sh.windowPart * float64(sh.maxBytes))
	sh.windowEntries = max(1, int64(sh.windowPart*float64(sh.maxEntries)))
}

// settle evicts until the budget holds, then fills main from the window.
func (sh *shard[V]) settle(now int64) {
	for sh.over() {
		sh.evict(now)
	}
	for sh.windowOver() && sh.main.bytes < sh.maxBytes-sh.windowBytes && int64(sh.main.n) < sh.maxEntries-sh.windowEntries {
		sh.promote(sh.window.oldest(sh.index.Load()))
	}
}

// mayKeep tells whether there is room for an entry that no hand passes, in the place of old or, if that is nil, of none.
func (sh *shard[V]) mayKeep(cost int64, old *Entry[V]) bool {
	if old != nil && old.kept {
		cost -= int64(old.cost)
	}
	return sh.kept.bytes+cost <= int64(keptPart*float64(sh.maxBytes))
}

func (sh *shard[V]) over() bool {
	return sh.bytes() > sh.maxBytes || int64(sh.entries()) > sh.maxEntries
}

// windowOver tells that the window's oldest has to leave it.
func (sh *shard[V]) windowOver() bool {
	return sh.window.n > 1 && (sh.window.bytes > sh.windowBytes || int64(sh.window.n) > sh.windowEntries)
}

// evict drops one entry.
func (sh *shard[V]) evict(now int64) {
	if sh.window.n+sh.main.n == 0 {
		sh.drop(sh.kept.oldest(sh.index.Load()), now)
		return
	}
	if sh.window.n == 0 || sh.main.n > 0 && !sh.windowOver() {
		sh.drop(sh.victim(now), now)
		return
	}
	if sh.main.n == 0 {
		sh.drop(sh.window.oldest(sh.index.Load()), now)
		return
	}
	cand := sh.hand(&sh.window, now)
	if cand.Deadline <= now {
		sh.drop(cand, now)
		return
	}
	victim := sh.victim(now)
	switch {
	case victim.Deadline <= now:
		sh.drop(victim, now)
	case sh.wins(cand, victim):
		sh.drop(victim, now)
		sh.promote(cand)
	default:
		sh.drop(cand, now)
	}
}

func (sh *shard[V]) drop(e *Entry[V], now int64) {
	switch {
	case e.Deadline <= now:
		sh.expirations++
	case e.main:
		sh.evictions++
		sh.ghosts.remember(e.hash, fromMain)
	default:
		sh.evictions++
		sh.ghosts.remember(e.hash, fromWindow)
	}
	sh.unlink(e)
}

// promote moves e from the window to main.
func (sh *shard[V]) promote(e *Entry[V]) {
	sh.note(e)
	x := sh.index.Load()
	at := sh.window.remove(x, e)
	e.main = true
	sh.main.push(x, e, at)
}

// victim is who has to leave main next. main is not empty.
func (sh *shard[V]) victim(now int64) *Entry[V] {
	switch sh.policy {
	case LFU:
		return sh.rarest(now)
	case Random:
		return sh.main.any(sh.index.Load(), sh.draw)
	default:
		return sh.hand(&sh.main, now)
	}
}

// rarest draws some entries of main and returns one that has expired, or the one that was used least.
func (sh *shard[V]) rarest(now int64) (victim *Entry[V]) {
	least := uint64(math.MaxUint64)
	for range lfuSample {
		e := sh.main.any(sh.index.Load(), sh.draw)
		if e.Deadline <= now {
			return e
		}
		sh.note(e)
		if uses := sh.sketch.estimate(e.hash); uses < least {
			victim, least = e, uses
		}
	}
	return victim
}

// hand turns q to an entry that has expired or was not used since the hand last passed it. q is not empty.
func (sh *shard[V]) hand(q *queue[V], now int64) *Entry[V] {
	x := sh.index.Load()
	for range handSteps {
		e := q.oldest(x)
		if e.Deadline <= now || e.word.Load()&usesMax == 0 {
			return e
		}
		sh.note(e)
		q.push(x, e, q.remove(x, e))
	}
	e := q.oldest(x)
	sh.note(e)
	return e
}

// note moves the uses counted in e to the sketch.
func (sh *shard[V]) note(e *Entry[V]) {
	if n := e.word.Load() & usesMax; n > 0 {
		e.word.And(^uint32(usesMax))
		sh.sketch.add(e.hash, uint64(n), sh.entries())
	}
}

// wins decides the duel of a candidate with main's victim.
func (sh *shard[V]) wins(cand, victim *Entry[V]) bool {
	c, v := sh.sketch.estimate(cand.hash), sh.sketch.estimate(victim.hash)
	if c > v || c < frequent {
		return c > v
	}
	return sh.draw()%luckyDraws == 0
}

// draw returns a random number (xorshift: Marsaglia, 2003).
func (sh *shard[V]) draw() uint64 {
	sh.random ^= sh.random << 13
	sh.random ^= sh.random >> 7
	sh.random ^= sh.random << 17
	return sh.random
}

// fitStatistics grows sketch and ghosts to the number of entries, which a budget in bytes does not tell beforehand.
func (sh *shard[V]) fitStatistics() {
	sh.sketch.fit(sh.entries())
	sh.ghosts.fit(sh.entries())
}
