package transport

import "sync/atomic"

// States of a breaker, as Status tells them.
const (
	breakerClosed   uint32 = iota // calls go to the peer
	breakerOpen                   // no calls: it left one unanswered, and has not answered everything since
	breakerHalfOpen               // no calls yet: it answers, but must go on doing so for a while
)

const (
	// flapWindow is how soon after it was taken back a peer must fall silent again to be given less trust.
	flapWindow = 10 * secondNs
	// minHold and maxHold bound how long a breaker stays open that opens again and again: it doubles each time. Longer than maxHold,
	// and a peer would not be back within a second.
	minHold = 100 * secondNs / 1000
	maxHold = 800 * secondNs / 1000

	secondNs = int64(1e9)
)

// breaker keeps calls away from a peer that does not answer. It is passive: one goroutine, the peer's watch, opens it and moves it on; allows
// and String may be called by anybody.
type breaker struct {
	state    atomic.Uint32
	opened   atomic.Uint64 // times that it was opened
	openedAt int64
	closedAt int64 // 0: never
	hold     int64 // the least time from opening to closing
}

// allows tells whether calls may be sent.
func (b *breaker) allows() bool { return b.state.Load() == breakerClosed }

// open keeps calls away. It returns false if that was so already.
func (b *breaker) open(now int64) bool {
	if !b.allows() {
		return false
	}
	switch {
	case b.closedAt == 0 || now-b.closedAt >= flapWindow:
		b.hold = 0
	default:
		b.hold = min(max(2*b.hold, minHold), maxHold)
	}
	b.openedAt = now
	b.opened.Add(1)
	b.state.Store(breakerOpen)
	return true
}

// step moves an open breaker on: well tells that the peer has answered everything, and a probe in time, since it was opened.
func (b *breaker) step(now int64, well bool) {
	switch {
	case b.allows():
	case !well:
		b.state.Store(breakerOpen)
	case now-b.openedAt < b.hold:
		b.state.Store(breakerHalfOpen)
	default:
		b.closedAt = now
		b.state.Store(breakerClosed)
	}
}

// String implements fmt.Stringer, in the words of MemberStats.Breaker.
func (b *breaker) String() string {
	switch b.state.Load() {
	case breakerOpen:
		return "open"
	case breakerHalfOpen:
		return "half-open"
	}
	return "closed"
}
