package nearcache

import (
	"math"
	"time"

	"github.com/nearcache/nearcache/hotkey"
	"github.com/nearcache/nearcache/internal/transport"
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

// keeps tells whether the near copy that an answer makes is kept whatever else there is: the key is hot here, or is in the whole cluster.
func (ks *keyspace) keeps(key string, rep *transport.Reply) bool {
	return ks.hot.IsHot(key) || ks.inHeavyUse(rep)
}

// inHeavyUse tells whether who answers sees the key used so much that it is hot in the whole cluster.
func (ks *keyspace) inHeavyUse(rep *transport.Reply) bool {
	atOwner := uint32(max(ks.policy.hot.PerSecond/ownerFactor, 1))
	return ks.policy.hot.PerSecond > 0 && rep.Rate >= atOwner
}

// ownerFactor is by how much a request of a peer is dearer than a near hit: a key that its owner is asked for more than a so-manieth of
// Hot.PerSecond is worth a near copy everywhere.
const ownerFactor = 8

// rateOnWire is a rate in whole uses.
func rateOnWire(perSecond float64) uint32 { return uint32(min(perSecond, math.MaxUint32)) }

// tendHot keeps the near copies of hot keys.
func (ks *keyspace) tendHot(now int64) {
	for _, key := range ks.hot.Tick(now) {
		ks.local.cool(key)
	}
	if ks.policy.near() == 0 || ks.closed.Load() || !ks.node.hasJoined() {
		return
	}
	again := now >= ks.fetchHot
	if again {
		ks.fetchHot = now + int64(time.Second)
	}
	for _, key := range ks.hot.Read() {
		ks.local.tend(key, again, now)
	}
}

// hotLead is how long before its end the near copy of a hot key is fetched anew: as long as an owner may take, and two ticks.
func (p *policy) hotLead() time.Duration { return min(max(p.near()/4, 2*tick), p.near()/2) }

// nearOf is the lifetime of a near copy. That of a hot key is so much longer that it is fetched anew when NearTTL is over.
func (p *policy) nearOf(hot bool) time.Duration {
	if hot {
		return p.near() + p.hotLead()
	}
	return p.near()
}

// hotAhead is how long before its end a hot key is loaded anew: long enough for a load, and for the key's readers to fetch it in time.
func (p *policy) hotAhead() time.Duration { return max(2*p.hotLead(), 2*time.Second) }

// tend implements local. Where there is no copy the key was invalidated, or cannot be had: its readers see to it, and this once a second.
func (c *Cache[V]) tend(key string, again bool, now int64) {
	held, ok := c.near.Peek(key, now)
	switch {
	case ok && now < held.Deadline-int64(c.policy.hotLead()):
		c.near.Keep(key, true) // it may have been installed before the key was hot
	case ok || again:
		f, r, leads := c.join(c.ctx, key)
		c.background(&fetch[V]{c: c, f: f, r: r}, leads)
	}
}

// cool implements local.
func (c *Cache[V]) cool(key string) { c.near.Keep(key, false) }

// background goes on with a flight that nobody waits for.
func (c *Cache[V]) background(x *fetch[V], leads bool) {
	f := x.f
	if !leads {
		f.Leave()
		return
	}
	x.ctx = f.Context(c.ctx)
	run := func() {
		x.run()
		_, _ = f.Wait(c.ctx) // whoever has joined it has the result
	}
	if !c.node.run("refresh", run) {
		f.Finish(result[V]{}, ErrClosed)
		f.Leave()
	}
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
