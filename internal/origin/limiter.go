package origin

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Defaults of NewLimiter.
const (
	DefaultMaxLoads     = 64
	DefaultQueueTimeout = 100 * time.Millisecond
)

// ErrShed is returned for a load that got no slot in time.
var ErrShed = errors.New("nearcache: no loader slot in time")

// Stats is a snapshot of a Limiter's counters.
type Stats struct {
	InUse     int64  // slots taken
	Waiting   int64  // callers queued for a slot
	Running   int64  // loaders that have not returned, abandoned ones included
	Abandoned int64  // of these, the ones whose Call has returned already
	Loads     uint64 // loaders started
	Shed      uint64 // Acquires that returned ErrShed
	Timeouts  uint64 // Calls that returned ErrTimeout
	Panics    uint64 // loaders that panicked or left their goroutine
}

// Limiter hands out a fixed number of slots, first come, first served. Who has waited for the queue timeout is shed: that, and not a length,
// bounds the queue. All methods are safe for concurrent use.
type Limiter struct {
	slots chan struct{} // one element for each slot that is taken, and senders queue in order; nil: unbounded
	queue time.Duration // negative: nobody waits

	inUse, waiting, running, abandoned atomic.Int64
	loads, shed                        atomic.Uint64
	timeouts, panics                   atomic.Uint64
}

// NewLimiter returns a limiter of maxLoads slots: 0 means DefaultMaxLoads, negative any number. A caller waits for one for at most
// queueTimeout: 0 means DefaultQueueTimeout, negative not at all.
func NewLimiter(maxLoads int, queueTimeout time.Duration) *Limiter {
	if maxLoads == 0 {
		maxLoads = DefaultMaxLoads
	}
	if queueTimeout == 0 {
		queueTimeout = DefaultQueueTimeout
	}
	l := &Limiter{queue: queueTimeout}
	if maxLoads > 0 {
		l.slots = make(chan struct{}, maxLoads)
	}
	return l
}

// Acquire takes a slot, waiting for one if it has to. It returns nil, and Release must follow; or ErrShed after the queue timeout; or ctx's
// error, always if ctx has ended before the call.
func (l *Limiter) Acquire(ctx context.Context) error {
	_, err := l.acquire(ctx, nil)
	return err
}

// acquire is Acquire that takes a place, by sending to it, if that is free earlier. It reports whether it did.
func (l *Limiter) acquire(ctx context.Context, place chan struct{}) (placed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	select {
	case place <- struct{}{}:
		return true, nil
	default:
	}
	if l.slots == nil {
		l.inUse.Add(1)
		return false, nil
	}
	select {
	case l.slots <- struct{}{}:
		l.inUse.Add(1)
		return false, nil
	default:
	}
	if l.queue < 0 {
		l.shed.Add(1)
		return false, ErrShed
	}
	return l.wait(ctx, place)
}

// wait queues for a slot and the place at once.
func (l *Limiter) wait(ctx context.Context, place chan struct{}) (placed bool, err error) {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	t := time.NewTimer(l.queue)
	defer t.Stop()
	select {
	case place <- struct{}{}:
		return true, nil
	case l.slots <- struct{}{}:
		l.inUse.Add(1)
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.C:
		l.shed.Add(1)
		return false, ErrShed
	}
}

// Release gives back a slot that Acquire took.
func (l *Limiter) Release() {
	l.inUse.Add(-1)
	if l.slots != nil {
		<-l.slots
	}
}

// Stats returns the counters.
func (l *Limiter) Stats() Stats {
	return Stats{
		InUse:     l.inUse.Load(),
		Waiting:   l.waiting.Load(),
		Running:   l.running.Load(),
		Abandoned: l.abandoned.Load(),
		Loads:     l.loads.Load(),
		Shed:      l.shed.Load(),
		Timeouts:  l.timeouts.Load(),
		Panics:    l.panics.Load(),
	}
}

// begin counts a loader in, end counts it out; abandoned says that its Call has returned.
func (l *Limiter) begin() {
	l.loads.Add(1)
	l.running.Add(1)
}

func (l *Limiter) end(abandoned bool) {
	if abandoned {
		l.abandoned.Add(-1)
	}
	l.running.Add(-1)
}
