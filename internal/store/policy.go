package store

const (
	windowPart = 5  // the window is this part of the budget; 1/100 loses up to 31 points where keys are read again soon or never
	handSteps  = 64 // entries in use that the hand passes before it takes one all the same
	// A shard with fewer entries than crowd gives every newcomer a turn in the window, however large it is: two or three
	// entries are no statistics to reject it by.
	crowd = 32
	// A candidate that is about as frequent as the victim is admitted now and then, so that nobody can hold the
	// cache by making the resident keys look frequent.
	frequent   = 6
	luckyDraws = 128
)

// entrance returns the queue in which the newcomer e begins, or false: it must stay out, because it is larger than
// the window and rarer than main's victim. Were it to pass through the window, it would throw everybody else out of it.
func (sh *shard[V]) entrance(e *Entry[V], now int64) (*queue[V], bool) {
	if sh.windowEntries < sh.maxEntries && sh.ghosts.recall(e.hash, uint32(sh.entries()*(windowPart-1)/windowPart)) {
		return &sh.main, true
	}
	if int64(e.cost) <= sh.windowBytes || sh.entries() < crowd || sh.main.n == 0 || sh.bytes()+int64(e.cost) <= sh.maxBytes {
		return &sh.window, true
	}
	v := sh.victim(now)
	return &sh.main, v.Deadline <= now || sh.wins(e, v)
}

// settle evicts until the budget holds, then fills main from the window.
func (sh *shard[V]) settle(now int64) {
	for sh.over() {
		sh.evict(now)
	}
	for sh.windowOver() && sh.main.bytes < sh.maxBytes-sh.windowBytes && int64(sh.main.n) < sh.maxEntries-sh.windowEntries {
		sh.promote(sh.window.oldest())
	}
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
	if sh.window.n == 0 || sh.main.n > 0 && !sh.windowOver() {
		sh.drop(sh.victim(now), now)
		return
	}
	cand := sh.window.oldest()
	if cand.Deadline <= now || sh.main.n == 0 {
		sh.drop(cand, now)
		return
	}
	sh.note(cand)
	victim := sh.victim(now)
	switch {
	case victim.Deadline <= now:
		sh.drop(victim, now)
	case sh.wins(cand, victim):
		sh.drop(victim, now)
		sh.promote(cand)
	default:
		sh.ghosts.remember(cand.hash)
		sh.drop(cand, now)
	}
}

func (sh *shard[V]) drop(e *Entry[V], now int64) {
	if e.Deadline <= now {
		sh.expirations++
	} else {
		sh.evictions++
	}
	sh.unlink(e)
}

// promote moves e from the window to main.
func (sh *shard[V]) promote(e *Entry[V]) {
	sh.note(e)
	sh.window.remove(e)
	e.main = true
	sh.main.push(e)
}

// victim turns main's hand to an entry that was not used since the hand last passed it, or that has expired. Main is not empty.
func (sh *shard[V]) victim(now int64) *Entry[V] {
	for range handSteps {
		e := sh.main.oldest()
		if e.Deadline <= now || e.uses.Load()&usesMax == 0 {
			return e
		}
		sh.note(e)
		sh.main.remove(e)
		sh.main.push(e)
	}
	return sh.main.oldest()
}

// note moves the uses counted in e to the sketch.
func (sh *shard[V]) note(e *Entry[V]) {
	if n := e.uses.Load() & usesMax; n > 0 {
		e.uses.And(^uint32(usesMax))
		sh.sketch.add(e.hash, uint64(n), sh.entries())
	}
}

// wins decides the duel of a candidate with main's victim.
func (sh *shard[V]) wins(cand, victim *Entry[V]) bool {
	c, v := sh.sketch.estimate(cand.hash), sh.sketch.estimate(victim.hash)
	if c > v || c < frequent {
		return c > v
	}
	sh.random ^= sh.random << 13
	sh.random ^= sh.random >> 7
	sh.random ^= sh.random << 17
	return sh.random%luckyDraws == 0
}

// fitStatistics grows sketch and ghosts to the number of entries, which a budget in bytes does not tell beforehand.
func (sh *shard[V]) fitStatistics() {
	sh.sketch.fit(sh.entries())
	sh.ghosts.fit(sh.entries())
}
