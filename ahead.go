package nearcache

import (
	"math"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/transport"
)

// What is asked for shortly before it expires is served, and its owner has it loaded anew meanwhile: once, whoever asks, and however many.

// ahead is how long before its end a value is loaded anew when it is asked for, at most half of its lifetime; 0: not at all.
func (ks *keyspace) ahead(v *shard.Value, hot bool) time.Duration {
	ahead := ks.policy.refreshAhead
	if ahead == 0 && !hot {
		return 0
	}
	life := time.Duration(ks.shard.FreshUntil(v) - v.LoadedAt)
	if hot {
		ahead = max(ahead, min(ks.policy.hotAhead(), life/4))
	}
	return min(ahead, life/2)
}

// nearWithin shortens a near lifetime, so that whoever reads a key all the time asks for it while RefreshAhead has it loaded anew, before the
// lifetime left is over.
func (ks *keyspace) nearWithin(near time.Duration, v *shard.Value, left time.Duration) time.Duration {
	if ahead := ks.ahead(v, false); ahead < left {
		left -= ahead / 2
	}
	return min(near, left)
}

// renewalPause is between two attempts at one key: not every reader of a key tries, nor tries again at once what has failed.
const renewalPause = time.Second

// renew implements local.
func (c *Cache[V]) renew(key string) {
	f, leads := c.refreshes.Join(key, c.clock.Now(), math.MinInt64)
	if leads {
		c.count.refreshes.Add(1)
	}
	c.background(&fetch[V]{c: c, f: f, r: c.route(key), flags: transport.FlagAhead}, leads)
}
