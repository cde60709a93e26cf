// Package foreign calls functions of the application where a panic would end the process, runtime.Goexit a goroutine that others need, and
// a function that does not return a wait that has to end.
package foreign

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// ErrGoexit is the Value of the PanicError of a function that called runtime.Goexit.
var ErrGoexit = errors.New("runtime.Goexit called")

// PanicError is what a function panicked with.
type PanicError struct {
	What  string // the function's name
	Value any    // passed to panic, or ErrGoexit
	Stack []byte // of its goroutine
}

// Error gives the value, without the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("nearcache: %s panicked: %v", e.What, e.Value)
}

// Call runs f on a goroutine of its own and returns what it returns, or a *PanicError when it panicked or called runtime.Goexit. When
// ctx ends first it returns ctx's error, and f goes on alone: its goroutine lives as long as f does, and what f returns without an
// error is passed to late, which may be nil.
func Call[V any](ctx context.Context, what string, f func() (V, error), late func(V)) (V, error) {
	c := &call[V]{done: make(chan struct{})}
	go c.run(what, f, late)
	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
		if c.decided.CompareAndSwap(false, true) {
			var none V
			return none, ctx.Err()
		}
		<-c.done
		return c.value, c.err
	}
}

type call[V any] struct {
	decided atomic.Bool   // f returned first, or its caller gave up first
	done    chan struct{} // closed when the fields below are there
	value   V
	err     error
}

func (c *call[V]) run(what string, f func() (V, error), late func(V)) {
	returned := false
	defer func() {
		if value := recover(); !returned {
			if value == nil {
				value = ErrGoexit
			}
			c.err = &PanicError{What: what, Value: value, Stack: debug.Stack()}
		}
		if waited := c.decided.CompareAndSwap(false, true); !waited && late != nil && c.err == nil {
			late(c.value)
		}
		close(c.done)
	}()
	c.value, c.err = f()
	returned = true
}
