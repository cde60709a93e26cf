package nearcache

import (
	"context"
	"time"
)

// StartAt is Start on a machine whose clock shows another time.
func StartAt(ctx context.Context, cfg NodeConfig, now time.Time) (*Node, error) {
	return startAt(ctx, cfg, now)
}

// FollowUp lets a cache follow up an invalidation of a key as if it had begun so much later than now, so that what is resident is old.
func FollowUp[V any](c *Cache[V], key string, ahead time.Duration) {
	began := c.clock.Exact() + int64(ahead)
	c.runAudit(key, func(key string) { c.followUp(key, began) })
}
