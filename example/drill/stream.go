package main

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/nearcache/nearcache/feed"
)

// stream is a source of changes that can be cut. It goes on where it was cut, unless it forgets.
type stream struct {
	feed.Source
	forgets bool // as a broker does that keeps nothing for those who are not there

	broken atomic.Bool
}

var errCut = errors.New("the broker is gone")

// Tail implements feed.Source.
func (s *stream) Tail(ctx context.Context) (feed.Position, error) {
	if s.broken.Load() {
		return "", errCut
	}
	return s.Source.Tail(ctx)
}

// Read implements feed.Source.
func (s *stream) Read(ctx context.Context, after feed.Position, apply func(feed.Batch) error) (err error) {
	if s.forgets {
		if after, err = s.Tail(ctx); err != nil {
			return err
		}
	}
	return s.Source.Read(ctx, after, func(b feed.Batch) error {
		if s.broken.Load() {
			return errCut
		}
		return apply(b)
	})
}
