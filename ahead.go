package nearcache

import (
	"math"
	"strings"
	"sync"
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

const (
	maxRenewals  = 1024        // keys that are renewed within renewalPause; others expire
	renewalPause = time.Second // between two attempts at one key
)

// renewals are the keys of which a load ahead of expiry was begun a moment ago: not every reader of a key tries, nor tries again at once what
// has failed.
type renewals struct {
	mu   sync.Mutex       // guards keys
	keys map[string]int64 // until when it is not tried again
}

// begin reports whether key, which may alias a buffer, is to be loaded now.
func (r *renewals) begin(key string, now int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if until, ok := r.keys[key]; ok && now < until || !ok && len(r.keys) >= maxRenewals {
		return false
	}
	if r.keys == nil {
		r.keys = make(map[string]int64)
	}
	r.keys[strings.Clone(key)] = now + int64(renewalPause)
	return true
}

// tick forgets attempts that were made a while ago.
func (r *renewals) tick(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, until := range r.keys {
		if until <= now {
			delete(r.keys, key)
		}
	}
}

// renew implements local.
func (c *Cache[V]) renew(key string) {
	f, leads := c.refreshes.Join(key, c.clock.Now(), math.MinInt64)
	if leads {
		c.count.refreshes.Add(1)
	}
	c.background(&fetch[V]{c: c, f: f, r: c.route(key), flags: transport.FlagAhead}, leads)
}
