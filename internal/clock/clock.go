// Package clock is a node's monotonic clock, with a coarse reading that costs a load or two instead of a system call.
package clock

import (
	"sync/atomic"
	"time"
)

const (
	// Tick is the resolution of Now. A finer one wakes the process more often; a coarser one adds to every lifetime
	// and bound.
	Tick = 5 * time.Millisecond
	// idleTicks without a reading, a second, park the ticker: a process that serves nothing does not wake up.
	idleTicks = 200

	// What the coarse reading is where it is none. No clock ever shows these: time starts at 1.
	parked = 0  // the ticker sleeps
	spent  = -1 // the ticker has ticked since the last reading
)

// Clock measures nanoseconds since it was made, counted from 1, so that 0 can mean "never". Steps of the wall clock
// do not move it. It is safe for concurrent use, owns one goroutine, and must be made by New.
//
// While the ticker runs, Now is late by a tick at most on an idle machine and by tens of milliseconds on a saturated
// one; it is never ahead of Exact. Whoever needs a bound adds that, or reads Exact. The first reading after a tick is exact: so
// is that of a process that was stopped, if it had not read the clock in the tick that it was stopped in.
type Clock struct {
	base time.Time

	_ [64]byte // what every reader loads shares no line with anything that is written often
	// now is the coarse reading. The ticker makes it spent, the first reader after that sets it. So the ticker knows that it
	// is wanted, and all but the first reader of a tick only load.
	now atomic.Int64
	_   [56]byte

	wake chan struct{} // cap 1: the ticker is parked and somebody wants it
	stop chan struct{}
	done chan struct{}
	once atomic.Bool // of Close
}

// New starts a clock. Close stops it.
func New() *Clock {
	c := &Clock{base: time.Now(), wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go c.run()
	return c
}

// Now is the coarse time. It does not block or allocate; a reading after a pause is exact.
func (c *Clock) Now() int64 {
	if n := c.now.Load(); n > 0 {
		return n // small enough to be inlined: every hit comes here
	}
	return c.first()
}

// Exact is the time to the nanosecond, at the price of a system clock reading (tens of nanoseconds).
func (c *Clock) Exact() int64 { return int64(time.Since(c.base)) + 1 }

// Close stops the ticker and returns when it has stopped. The clock can be read on: every reading is exact then.
// Close is idempotent.
func (c *Clock) Close() {
	if c.once.CompareAndSwap(false, true) {
		close(c.stop)
	}
	<-c.done
}

// first is the first reading since the ticker last moved, or was parked.
func (c *Clock) first() int64 {
	for {
		n := c.now.Load()
		if n == parked {
			return c.unpark()
		}
		if n > 0 {
			return n
		}
		if n = c.Exact(); c.now.CompareAndSwap(spent, n) {
			return n
		}
	}
}

func (c *Clock) unpark() int64 {
	select {
	case c.wake <- struct{}{}:
	default: // it is on its way
	}
	return c.Exact()
}

// run is the ticker: parked until somebody reads the clock, then ticking until nobody has for a while.
func (c *Clock) run() {
	defer close(c.done)
	for {
		select {
		case <-c.wake:
		case <-c.stop:
			return
		}
		if !c.tick() {
			return
		}
	}
}

// tick keeps now up to date until nobody reads it, and tells whether the clock goes on.
//
// Invariant: now is parked whenever no ticker moves it. A reader that found the last value just before it is parked
// has a reading no older than a tick; the next one wakes the ticker.
func (c *Clock) tick() bool {
	defer c.now.Store(parked)
	ticker := time.NewTicker(Tick)
	defer ticker.Stop()
	for idle := 0; idle < idleTicks; idle++ {
		c.now.Store(spent)
		select {
		case <-ticker.C:
		case <-c.stop:
			return false
		}
		if c.now.Load() > 0 {
			idle = 0
		}
	}
	return true
}
