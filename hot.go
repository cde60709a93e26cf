package nearcache

import (
	"time"

	"github.com/nearcache/nearcache/hotkey"
)

// topKeys is how many keys a snapshot tells of.
const topKeys = 64

// kindOf says what became of a read.
func kindOf(info Info, err error) hotkey.Kind {
	switch {
	case err != nil && !isNotFound(err):
		return hotkey.Failed
	case info.Tier == TierOwner:
		return hotkey.Owner
	}
	return hotkey.Origin
}

// hits counts hits of a near copy. It may run with a lock of the near cache held.
func (c *Cache[V]) hits(key string, n uint32) { c.hot.Count(key, hotkey.Near, n, c.clock.Now()) }

// loaded notes a load of key that began at start and has just ended.
func (ks *keyspace) loaded(key string, start int64) {
	now := ks.node.clock.Exact()
	ks.hot.Loaded(key, now-start, now)
}

// topKeys describes the most used keys.
func (ks *keyspace) topKeys(now int64) []KeyStats {
	keys := ks.hot.Top(topKeys)
	top := make([]KeyStats, len(keys))
	for i, k := range keys {
		top[i] = KeyStats{
			Key: k.Key, Rate: k.Rate, RateError: k.Error,
			NearHits: k.Uses[hotkey.Near], OwnerHits: k.Uses[hotkey.Owner], OriginGets: k.Uses[hotkey.Origin], Failed: k.Uses[hotkey.Failed],
			Served: k.Uses[hotkey.Served], Loads: k.Loads, LoadTime: time.Duration(k.LoadTime), Since: age(k.Since, now), Pinned: k.Pinned,
		}
		if k.HotSince > 0 {
			top[i].HotSince = max(age(k.HotSince, now), 1)
		}
		v := ks.view(k.Key)
		top[i].Owner = v.Owner
		held := v.Shard
		if held == nil {
			held = v.Near
		}
		if held != nil {
			top[i].Bytes, top[i].Left = int64(held.Bytes), held.Left
		}
	}
	return top
}
