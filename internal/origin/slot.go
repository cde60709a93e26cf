package origin

import (
	"context"
	"sync/atomic"
)

// slot is the place of one load under a Limiter. A loader that calls the cache again, and by that starts another load of the same
// Limiter, waits for it: its place is idle meanwhile and is lent to that load. Else a few nested loads would hold every place and wait for more.
//
// A place is lent to one load at a time; what a loader starts beside that queues for it and for slots at once. The Limiter's slot is free
// again when the load and whoever borrowed from it have ended.
type slot struct {
	limiter  *Limiter
	priority Priority
	lender   *slot         // nil: it holds a slot of the limiter
	refs     atomic.Int32  // the load itself and its borrower; 0: over
	place    chan struct{} // capacity 1; full: lent
}

// slotKey is the key of a load's place in its context, one for each limiter.
type slotKey struct{ limiter *Limiter }

// acquireSlot finds a place for a load: that of the load which ctx belongs to, or a slot of the limiter.
func (l *Limiter) acquireSlot(ctx context.Context, p Priority) (*slot, error) {
	s := &slot{limiter: l, priority: p, place: make(chan struct{}, 1)}
	s.refs.Store(1)
	if outer, ok := ctx.Value(slotKey{l}).(*slot); ok {
		lent, err := l.acquire(ctx, p, outer.place)
		if err != nil || !lent {
			return s, err
		}
		if outer.keep() {
			s.lender = outer
			return s, nil
		}
	}
	return s, l.Acquire(ctx, p)
}

// context returns ctx for the loader that has the place.
func (s *slot) context(ctx context.Context) context.Context {
	return context.WithValue(ctx, slotKey{s.limiter}, s)
}

// keep counts a borrower in, unless the place is over: then it stays lent for good.
func (s *slot) keep() bool {
	for {
		refs := s.refs.Load()
		if refs == 0 {
			return false
		}
		if s.refs.CompareAndSwap(refs, refs+1) {
			return true
		}
	}
}

// release ends one use of the place.
func (s *slot) release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	if s.lender == nil {
		s.limiter.Release(s.priority)
		return
	}
	<-s.lender.place
	s.lender.release()
}
