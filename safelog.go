package nearcache

import (
	"context"
	"log/slog"
)

// safeLog is the application's log. One that panics loses the record, and not the goroutine that had something to tell.
type safeLog struct{ slog.Handler }

// Enabled implements slog.Handler.
func (l safeLog) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer func() { _ = recover() }()
	return l.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l safeLog) Handle(ctx context.Context, r slog.Record) (err error) {
	defer recoverTo(&err)
	return l.Handler.Handle(ctx, r)
}
