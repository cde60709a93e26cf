package origin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"
)

// DefaultLoadTimeout is the time limit of a Call whose timeout is 0.
const DefaultLoadTimeout = 10 * time.Second

// Linger is how long a Call goes on waiting for a loader after its context was cancelled: what is almost finished is worth having.
const Linger = 100 * time.Millisecond

// maxStackBytes bounds the stack kept of a panic.
const maxStackBytes = 64 << 10

// ErrTimeout is returned for a load that took longer than its time limit.
var ErrTimeout = errors.New("nearcache: load timed out")

// ErrGoexit is the Value of the PanicError of a loader that called runtime.Goexit, as (*testing.T).FailNow does.
var ErrGoexit = errors.New("runtime.Goexit called")

// PanicError is what a loader panicked with. It is never raised again.
type PanicError struct {
	Value any    // passed to panic, or ErrGoexit
	Stack []byte // of the loader's goroutine, at most 64 KiB
}

// Error gives the value, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("nearcache: loader panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Job says how a load is to run.
type Job struct {
	Timeout  time.Duration // of the load, from its start; 0 means DefaultLoadTimeout, negative none
	Priority Priority
	Key      uint64 // a hash of what is loaded
}

// Call runs load in a slot of l and returns what it returns. ctx is the flight's: load gets its values, is cancelled with it, and has
// the deadline of the job. Errors that are not load's own:
//
//   - a *ShedError, or ctx's error, when there was no slot, or all of the last loads have failed: load was not called.
//   - ErrTimeout when load took longer than the job allows. A value that load returns in the last instant is returned.
//   - ctx's error when ctx ended and load failed, or did not return within Linger.
//   - *PanicError when load panicked or called runtime.Goexit.
//
// Call returns in time even if load ignores its context. Then load goes on alone: it keeps its slot, counts as running and abandoned, and
// what it returns is dropped. Otherwise the slot is free when Call returns.
func Call[V any](ctx context.Context, l *Limiter, job Job, load func(context.Context) (V, error)) (v V, err error) {
	var none V
	if ctx.Err() == nil && !l.breaker.admit(time.Now()) {
		return none, l.refuse(retryOpen)
	}
	place, err := l.acquireSlot(ctx, job.Priority)
	if err != nil {
		return none, err
	}
	defer func() {
		if err == nil || ctx.Err() == nil {
			l.breaker.note(job.Key, err != nil)
		}
	}()
	inner, cancel := withTimeout(place.context(ctx), job.Timeout)
	defer cancel()
	r := &run[V]{limiter: l, done: make(chan struct{})}
	l.begin()
	go r.work(inner, place, load)
	if !r.await(ctx, inner) && r.abandon() {
		if timedOut(ctx, inner) {
			l.timeouts.Add(1)
			return none, ErrTimeout
		}
		return none, ctx.Err()
	}
	return r.settle(ctx, inner)
}

// run is one call of a loader.
type run[V any] struct {
	limiter  *Limiter
	state    atomic.Int32
	done     chan struct{} // closed when the fields below are there
	value    V
	err      error
	panicked bool // err is the *PanicError of this loader
}

// The states of a run. Whoever leaves runRunning first decides: the loader returned, or its Call gave up.
const (
	runRunning int32 = iota
	runReturned
	runAbandoned
)

// work is the loader's goroutine. Everything after the loader is deferred, since runtime.Goexit runs nothing else. The slot is free before
// anybody hears the result, so that a caller's next load finds it.
func (r *run[V]) work(ctx context.Context, place *slot, load func(context.Context) (V, error)) {
	returned, began := false, time.Now()
	defer func() {
		if value := recover(); !returned {
			r.panicked, r.err = true, newPanicError(value)
			r.limiter.panics.Add(1)
		}
		left := !r.state.CompareAndSwap(runRunning, runReturned)
		place.release()
		r.limiter.end(left, time.Since(began))
		close(r.done)
	}()
	ctx = pprof.WithLabels(ctx, pprof.Labels("nearcache", "load"))
	pprof.SetGoroutineLabels(ctx)
	r.value, r.err = load(ctx)
	returned = true
}

// await waits for the loader: until inner's deadline, or until Linger after inner was cancelled. It reports whether the loader is done.
func (r *run[V]) await(ctx, inner context.Context) bool {
	select {
	case <-r.done:
		return true
	case <-inner.Done():
	}
	if timedOut(ctx, inner) {
		return false
	}
	linger := time.NewTimer(Linger)
	defer linger.Stop()
	select {
	case <-r.done:
		return true
	case <-linger.C:
		return false
	}
}

// abandon leaves the loader to itself. False: it has returned in this instant, and its result is there.
func (r *run[V]) abandon() bool {
	r.limiter.abandoned.Add(1)
	if r.state.CompareAndSwap(runRunning, runAbandoned) {
		return true
	}
	r.limiter.abandoned.Add(-1)
	<-r.done
	return false
}

// settle says what the loader's result means.
func (r *run[V]) settle(ctx, inner context.Context) (V, error) {
	var none V
	switch {
	case r.err == nil:
		return r.value, nil
	case r.panicked:
	case timedOut(ctx, inner):
		r.limiter.timeouts.Add(1)
		return none, ErrTimeout
	case ctx.Err() != nil:
		return none, ctx.Err()
	}
	return none, r.err
}

// newPanicError makes the error of what recover returned, in the deferred function: nil means that it was no panic, since panic(nil)
// arrives as a *runtime.PanicNilError.
func newPanicError(value any) *PanicError {
	if value == nil {
		value = ErrGoexit
	}
	stack := debug.Stack()
	return &PanicError{Value: value, Stack: stack[:min(len(stack), maxStackBytes)]}
}

// withTimeout is context.WithTimeout with the defaults of Call.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	switch {
	case timeout < 0:
		return context.WithCancel(ctx)
	case timeout == 0:
		timeout = DefaultLoadTimeout
	}
	return context.WithTimeoutCause(ctx, timeout, ErrTimeout)
}

// timedOut reports that inner, made of ctx by withTimeout, ended by its own time limit. An outer load's limit is not this one's: that ends ctx.
func timedOut(ctx, inner context.Context) bool {
	return ctx.Err() == nil && errors.Is(inner.Err(), context.DeadlineExceeded)
}
