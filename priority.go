package nearcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearcache/nearcache/internal/origin"
)

// Priority is who gets a loader slot first when there are too few, and who is shed.
type Priority int

// The priorities. Loads of PriorityLow take at most half of the slots of a keyspace.
const (
	PriorityNormal Priority = iota
	PriorityLow
	PriorityHigh
)

type priorityKey struct{}

// WithPriority sets the priority of the loads that calls made with the returned context start. A load that several callers wait for has that of the
// first; callers of a higher one, in its process or waiting for it at the owner, start another if it is shed. Gets with a Priority that does
// not exist return a *ConfigError where they would need a load or an owner.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// rank returns the priority of ctx as the limiter knows it, the lowest first.
func rank(ctx context.Context) origin.Priority {
	switch p, _ := ctx.Value(priorityKey{}).(Priority); p {
	case PriorityLow:
		return origin.Low
	case PriorityHigh:
		return origin.High
	default:
		return origin.Normal
	}
}

// checkPriority refuses priorities that do not exist.
func checkPriority(ctx context.Context) error {
	if p, _ := ctx.Value(priorityKey{}).(Priority); p < PriorityNormal || p > PriorityHigh {
		return &ConfigError{Problems: []string{fmt.Sprintf("WithPriority: there is no Priority %d", p)}}
	}
	return nil
}

// outranks tells whether a caller should start a load of its own, because the one that it waited for was shed for the low priority of another
// caller.
func (c *Cache[V]) outranks(ctx context.Context, f *flight[V], err error) bool {
	return errors.Is(err, ErrOverloaded) && f.State.rank < rank(ctx)
}
