package origin

import (
	"slices"
	"sync"
	"time"
)

const (
	// The breaker opens when breakerLoads loads in a row have failed, of at least breakerKeys different keys: a few keys that cannot be loaded
	// are no failing origin, and their readers must not shut the others out. Lower: opens for less. Higher: a dead origin is asked more often
	// before that.
	breakerLoads, breakerKeys = 20, 10
	// probeEvery is how often a load is let through while it is open. The first that succeeds closes it.
	probeEvery = 50 * time.Millisecond
	// retryOpen is when to try again a load that was refused: others find out before whether the origin is back.
	retryOpen = time.Second
)

// breaker stops the loads of a loader that fails all of them. The zero breaker is closed.
type breaker struct {
	mu   sync.Mutex // guards what follows. It is a leaf
	keys [breakerLoads]uint64
	n    int // failures in a row
	open bool
	next time.Time // when the next load is let through
}

// admit tells whether a load may begin.
func (b *breaker) admit(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open && now.Before(b.next) {
		return false
	}
	b.next = now.Add(probeEvery)
	return true
}

// note takes note of how a load of key ended.
func (b *breaker) note(key uint64, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !failed {
		b.n, b.open = 0, false
		return
	}
	b.keys[b.n%breakerLoads] = key
	b.n++
	if b.n >= breakerLoads && !b.open {
		keys := slices.Clone(b.keys[:])
		slices.Sort(keys)
		b.open = len(slices.Compact(keys)) >= breakerKeys
	}
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}
