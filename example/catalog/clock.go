package main

import "time"

// clock tells the time since the run's zero. All processes share the zero and read the same machine's clocks, so their times compare;
// after its start a clock is monotonic, whatever is done to the wall clock.
type clock struct {
	base   time.Time
	offset time.Duration // of base from zero
}

// newClock returns a clock with the given zero, which may come from another process.
func newClock(zero time.Time) clock {
	base := time.Now()
	return clock{base: base, offset: base.Round(0).Sub(zero.Round(0))}
}

func (c clock) now() time.Duration { return c.at(time.Now()) }

// at converts a reading of this process' clock.
func (c clock) at(t time.Time) time.Duration { return t.Sub(c.base) + c.offset }
