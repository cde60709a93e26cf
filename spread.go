package nearcache

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// A key in heavy use costs its owner little because its readers have near copies. Where a keyspace has none, such a key is read from all members
// that keep it, the owner and its replicas (R10), Hot.Spread of them at most. What a replica does not have its owner is asked for.

const (
	spreadTime  = 10 * time.Second // for which a key is read from its replicas after an answer that tells of heavy use
	spreadPause = 2 * tick         // for which the owner alone is asked after a replica had no copy: it gets one with the owner's next tick
)

// noteRate notes what an answer tells about how much a key is used.
func (ks *keyspace) noteRate(key string, rep *transport.Reply) {
	if ks.policy.near() == 0 && ks.node.cfg.Replicas > 1 && ks.inHeavyUse(rep) {
		ks.crowded.put(key, ks.node.clock.Now(), spreadTime)
	}
}

// reader returns the member that a Get asks first, and the flags of its request. A member asks the same one all the time, itself if it keeps the
// key: replicas hear of an invalidation one after the other, and its readers are not to see the key go back.
func (ks *keyspace) reader(r route, key string) (target int, flags uint32) {
	now := ks.node.clock.Now()
	n := min(ks.policy.hot.Spread, r.m.copies)
	if n < 2 || !ks.crowded.has(key, now) || ks.lacking.has(key, now) {
		return r.owner, 0
	}
	var room [transport.MaxReplicas]int
	all := r.m.Ring.Prefer(room[:0], r.hash, n)
	if len(all) == 0 {
		return r.owner, 0
	}
	others := r.m.Self // members before this one that do not keep the key
	for _, i := range all {
		if i < r.m.Self {
			others--
		}
	}
	target = all[(r.hash+uint64(others))%uint64(len(all))]
	if slices.Contains(all, r.m.Self) {
		target = r.m.Self
	}
	if p := r.m.peers[target]; target == r.owner || p != nil && !p.Ready() {
		return r.owner, 0
	}
	return target, transport.FlagSpread
}

// serveSpread answers a Get that is not for the owner of the key from what a replica has of it. The owner loads it ahead of its expiry when it is
// asked for it, and has to be asked for that.
func (ks *keyspace) serveSpread(req *transport.Request, rep *transport.Reply, r route) {
	rep.Status = transport.StatusMiss
	if !r.keeps() {
		return
	}
	now := ks.node.clock.Exact()
	if v, seq := ks.shard.Get(req.Key, now); v != nil && time.Duration(ks.shard.FreshUntil(v)-now) > ks.ahead(v, req.Hot > 0) {
		ks.hit(rep, v, seq, 0, now)
	}
}
