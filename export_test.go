package nearcache

import (
	"context"
	"time"
)

// StartAt is Start on a machine whose clock shows another time.
func StartAt(ctx context.Context, cfg NodeConfig, now time.Time) (*Node, error) {
	return startAt(ctx, cfg, now)
}
