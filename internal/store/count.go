package store

// The word of an entry has three parts, changed together by compare-and-swap:
//
//	bits 0-1    uses since the policy's hand last passed, up to usesMax
//	bits 2-13   hits in the window of bits 14-31, up to hitsMax, and those before it that were not reported
//	bits 14-31  the window: time in units of 2^30 ns (1.07 s), modulo 2^18
//
// Where nobody wants to hear of hits only the uses are counted. In both cases the word of an entry in heavy use is written no more, until the
// window ends or the hand passes: readers on many cores do not fight for it. Every batch of hits is reported as it is full, and what is left
// of one when the entry is replaced or goes, so that a reader pays for a report with one hit in 64.
const (
	usesMax     = 3 // more makes hit ratios slightly worse
	hitsShift   = 2
	hitsMax     = 1<<12 - 1
	batch       = 64
	windowShift = 14
	windowBits  = 30
)

// used notes a use. A lost race loses a count.
func (e *Entry[V]) used() {
	if w := e.word.Load(); w&usesMax != usesMax {
		e.word.CompareAndSwap(w, w+1)
	}
}

// full is the word of an entry that is written no more at now.
func full(now int64) uint32 {
	return uint32(now>>windowBits)<<windowShift | hitsMax<<hitsShift | usesMax
}

// hit counts a hit at now of an entry whose word was old, and not full. A lost race loses a count.
func (s *Store[V]) hit(e *Entry[V], old uint32, now int64) {
	w := old
	if w&usesMax != usesMax {
		w++
	}
	window := uint32(now >> windowBits)
	if w>>windowShift != window&(1<<(32-windowShift)-1) {
		w = window<<windowShift | unreported(w)<<hitsShift | w&usesMax
	}
	counted := w>>hitsShift&hitsMax != hitsMax
	if counted {
		w += 1 << hitsShift
	}
	if !e.word.CompareAndSwap(old, w) || !counted {
		return
	}
	switch hits := w >> hitsShift & hitsMax; {
	case hits%batch == 0:
		s.hits(e.Key, batch)
	case hits == hitsMax:
		const length, least = int64(1) << windowBits, int64(1) << (windowBits - 8) // the clock is no better than 4 ms
		passed := max(now&(length-1), least)
		s.hits(e.Key, uint32(hitsMax*(length-passed)/passed)) // the rest of the window is taken to be like this part of it
	}
}

// unreported is the number of hits in a word that were not reported.
func unreported(word uint32) uint32 { return word >> hitsShift % batch }

// report tells of the hits of e that were not reported yet.
func (sh *shard[V]) report(e *Entry[V]) {
	if n := unreported(e.word.Load()); n > 0 && sh.hits != nil {
		sh.hits(e.Key, n)
	}
}
