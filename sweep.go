package nearcache

import "time"

// minSweep is the shortest pause between two sweeps. Expired entries are held for it and a bucket of deadlines (internal/store), 17 ms in
// all, which is less than 2 % of a lifetime of a second (docs/design.md section 13). Shorter: what lives less is held as exactly, at more
// wake-ups.
const minSweep = tick / 8

// sweep frees what has expired and returns the pause until the next time.
func sweep(all map[string]*keyspace, now int64, pause time.Duration) time.Duration {
	var freed, held int64
	for _, ks := range all {
		f, h := ks.sweep(now)
		freed += f
		held += h
	}
	return nextSweep(pause, freed, held)
}

// nextSweep is the pause after a sweep that freed some of what was held. Where that was more than a hundredth, it was held for more than a
// hundredth of its lifetime, so that the pause becomes shorter. An idle process, and one whose entries live long, gets the longest.
func nextSweep(pause time.Duration, freed, held int64) time.Duration {
	const few = 30 // they are not worth a wake-up
	switch {
	case freed > few && freed*100 > held:
		return max(pause/2, minSweep)
	case freed*300 <= held:
		return min(2*pause, tick)
	}
	return pause
}
