package origin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of NewLimiter.
const (
	DefaultMaxLoads     = 64
	DefaultQueueTimeout = 100 * time.Millisecond
)

// ErrShed is returned for a load that got no slot. The error is a *ShedError.
var ErrShed = errors.New("nearcache: no loader slot in time")

// ShedError says when a load that was shed may be tried again.
type ShedError struct {
	RetryAfter time.Duration
}

// Error implements error.
func (e *ShedError) Error() string { return fmt.Sprintf("%v, retry after %v", ErrShed, e.RetryAfter) }

// Is tells that target is ErrShed.
func (e *ShedError) Is(target error) bool { return target == ErrShed }

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
	Open      bool   // loads are refused, since all of the last ones failed
}

// Limiter hands out a fixed number of slots. A free one goes to the highest priority; within a priority to whoever has waited longest, but to
// the newest while the longest wait is over half the queue timeout: then not all can have one in time, and it is better that some wait
// briefly than that all wait until it is nearly too late. Who has waited for the queue timeout is shed. All methods are safe for concurrent use.
type Limiter struct {
	max     int           // slots; negative: unbounded
	queue   time.Duration // negative: nobody waits
	breaker breaker

	mu    sync.Mutex // guards what follows. It is a leaf
	inUse int
	low   int // slots with loads of Low
	lines lines
	took  time.Duration // by a load, on average of the last ones

	running, abandoned atomic.Int64
	loads, shed        atomic.Uint64
	timeouts, panics   atomic.Uint64
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
	return &Limiter{max: maxLoads, queue: queueTimeout}
}

// Acquire takes a slot, waiting for one if it has to. It returns nil, and Release with the same priority must follow; or a *ShedError; or ctx's
// error, always if ctx has ended before the call.
func (l *Limiter) Acquire(ctx context.Context, p Priority) error {
	_, err := l.acquire(ctx, p, nil)
	return err
}

// acquire is Acquire that takes a place, by sending to it, if that is free earlier. It reports whether it did.
func (l *Limiter) acquire(ctx context.Context, p Priority, place chan struct{}) (placed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	select {
	case place <- struct{}{}:
		return true, nil
	default:
	}
	w := l.enter(p)
	if w == nil {
		return false, nil
	}
	t := time.NewTimer(l.queue)
	defer t.Stop()
	select {
	case place <- struct{}{}:
		if l.leave(w) {
			l.Release(p)
		}
		return true, nil
	case got := <-w.done:
		if !got {
			return false, l.refuse(l.wait())
		}
		return false, nil
	case <-ctx.Done():
		if l.leave(w) {
			l.Release(p)
		}
		return false, ctx.Err()
	case <-t.C:
		if !l.leave(w) {
			return false, l.refuse(l.wait())
		}
		return false, nil
	}
}

// Release gives back a slot that Acquire took.
func (l *Limiter) Release(p Priority) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse--
	if p == Low {
		l.low--
	}
	l.handOutLocked(time.Now())
}

// refuse counts a load that is shed.
func (l *Limiter) refuse(retryAfter time.Duration) error {
	l.shed.Add(1)
	return &ShedError{RetryAfter: retryAfter}
}

// wait estimates when a slot is free for one who comes now.
func (l *Limiter) wait() time.Duration {
	const least, most = 10 * time.Millisecond, 10 * time.Second
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := 1
	for i := range l.lines {
		waiting += l.lines[i].n
	}
	d := time.Duration(waiting) * l.took / time.Duration(max(l.max, 1))
	return min(max(d, l.queue, least), most)
}

// Stats returns the counters.
func (l *Limiter) Stats() Stats {
	s := Stats{
		Running:   l.running.Load(),
		Abandoned: l.abandoned.Load(),
		Loads:     l.loads.Load(),
		Shed:      l.shed.Load(),
		Timeouts:  l.timeouts.Load(),
		Panics:    l.panics.Load(),
		Open:      l.breaker.isOpen(),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.InUse = int64(l.inUse)
	for i := range l.lines {
		s.Waiting += int64(l.lines[i].n)
	}
	return s
}

// begin counts a loader in, end counts it out; abandoned says that its Call has returned.
func (l *Limiter) begin() {
	l.loads.Add(1)
	l.running.Add(1)
}

func (l *Limiter) end(abandoned bool, took time.Duration) {
	const weight = 8 // of the past
	l.mu.Lock()
	l.took += (took - l.took) / weight
	l.mu.Unlock()
	if abandoned {
		l.abandoned.Add(-1)
	}
	l.running.Add(-1)
}
