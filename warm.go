package nearcache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// maxWarmers bounds the keys of one Warm that are under way; loads among them hold half of the keyspace's slots at most.
	maxWarmers = 64
	// warmAttempts is how often a key is tried whose load is shed. Each time Warm waits for as long as the error says.
	warmAttempts = 10
	// maxWarmErrors bounds the keys in the error of a Warm.
	maxWarmErrors = 1000
)

// Warm loads the keys that no owner has, at most perSecond of them a second, with PriorityLow: where slots are short it waits, and loads that
// callers ask for go first. Keys that are resident cost no load and no time, so that a Warm that was interrupted is resumed by another with the
// same keys, and members that warm the same keys at once share the work. A key that fails does not stop the others.
//
// It returns when all keys are done or ctx ends, and blocks meanwhile; nothing else waits for it, ReadyWarm neither. keys is read by
// one goroutine, at most 64 keys ahead.
//
// Errors: *BatchError with the keys that failed, 1,000 at most; the context's own error; ErrClosed; *ConfigError if perSecond is not positive. A
// key that does not exist is no failure.
func (c *Cache[V]) Warm(ctx context.Context, keys iter.Seq[string], perSecond int) error {
	if perSecond <= 0 {
		return &ConfigError{Problems: []string{fmt.Sprintf("Warm: perSecond must be positive, not %d", perSecond)}}
	}
	caller := ctx
	ctx, cancel := context.WithCancel(WithPriority(ctx, PriorityLow))
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	w := warming[V]{c: c, every: time.Second / time.Duration(perSecond), errs: make(map[string]error)}
	var g errgroup.Group
	g.SetLimit(maxWarmers)
	for key := range keys {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			w.note(key, w.warm(ctx, key))
			return nil
		})
	}
	_ = g.Wait() // its functions have no error
	switch {
	case c.closed.Load() || c.ctx.Err() != nil:
		return ErrClosed
	case caller.Err() != nil:
		return caller.Err()
	case len(w.errs) > 0:
		return &BatchError{Errs: w.errs}
	}
	return nil
}

// warming is a Warm under way.
type warming[V any] struct {
	c     *Cache[V]
	every time.Duration

	mu   sync.Mutex // guards what follows. It is a leaf
	next time.Time  // of the turns to load
	errs map[string]error
}

// warm loads one key, unless its owner has it.
func (w *warming[V]) warm(ctx context.Context, key string) error {
	if _, ok, err := w.c.Peek(ctx, key); ok || err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		if !sleep(ctx, w.turn()) {
			return ctx.Err()
		}
		_, err := w.c.get(ctx, key)
		if overload, ok := errors.AsType[*OverloadError](err); ok && attempt < warmAttempts {
			if !sleep(ctx, overload.RetryAfter) {
				return ctx.Err()
			}
			continue
		}
		return err
	}
}

// turn takes the next turn to load, and returns how long it is until then.
func (w *warming[V]) turn() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.next.Before(now) {
		w.next = now
	}
	wait := w.next.Sub(now)
	w.next = w.next.Add(w.every)
	return wait
}

func (w *warming[V]) note(key string, err error) {
	if err == nil || isNotFound(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) < maxWarmErrors {
		w.errs[key] = err
	}
}
