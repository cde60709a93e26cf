package sim

import (
	"time"

	"github.com/nearcache/nearcache/internal/shard"
)

// inherit lets this node, which has just become the owner of a key, ask the one before (keyspace.inherit, R10b).
func (n *node) inherit(r route, key string, now int64) {
	if !n.w.cfg.HandOver {
		return
	}
	sources := n.formerOwners(r, now)
	if len(sources) == 0 || now >= n.standing.tenure.Fence {
		return
	}
	life := int64(n.w.cfg.PeerTimeout + time.Second)
	lease := n.shard.Acquire(key, shard.Ask{Holder: n.id, Life: life, View: r.m.number}, now)
	if lease.Kind == shard.Lease {
		n.soon(func() { n.inheritFrom(sources, key, lease.Token) })
	}
}

// formerOwners returns who may have what this node misses (Node.formerOwners).
func (n *node) formerOwners(r route, now int64) (sources []*peer) {
	before := r.m.Before(r.hash, now)
	if r.owns() && before == "" {
		return nil
	}
	heard := func(p *peer) bool { return p != nil && p.ready() }
	if p := r.peer(); !r.owns() && heard(p) && (before != "" || n.differs(now)) {
		sources = append(sources, p)
	}
	for _, id := range r.m.KeptBefore(r.hash, r.m.copies, now) {
		if i := r.m.Ring.Index(id); i >= 0 && i != r.owner && heard(r.m.peers[i]) {
			sources = append(sources, r.m.peers[i])
		}
	}
	return sources
}

// inheritFrom asks one after the other and fills the key with what the first of them has that is not too old (keyspace.inheritFrom).
func (n *node) inheritFrom(sources []*peer, key string, token shard.Token) {
	if len(sources) == 0 {
		n.disown(key, token)
		return
	}
	p, sent := sources[0], n.exact()
	p.start(request{op: opPeek, key: key}, func(rep *reply, err error) {
		if err != nil {
			n.unanswered(p)
			n.disown(key, token)
			return
		}
		if v, ok := n.inherited(key, rep, sent); ok {
			n.w.inherited++
			n.w.note(key, "%s inherits %s from %s, vouched %v", n.id, v.Bytes, p.id, rep.vouched)
			eff := n.shard.Fill(key, token, v, n.exact())
			n.carryOut(eff)
			if eff.Outcome == shard.Stored {
				n.copied(key, eff.Until)
			}
			return
		}
		n.inheritFrom(sources[1:], key, token)
	})
}

// inherited makes an entry of the answer to a peek that was sent at sent (inherited).
func (n *node) inherited(key string, rep *reply, sent int64) (v shard.Value, ok bool) {
	if rep.status != statusHit || rep.ttl <= 0 {
		return v, false
	}
	rules := &n.w.cfg.Rules
	if !rules.PeekAge {
		sent = n.exact()
	}
	end := sent + rep.ttl
	hard := end + int64(n.w.cfg.StaleOnError)
	if rules.Vouch && !rep.vouched || n.exact() >= n.standing.tenure.Fence {
		end = min(end, sent+int64(n.w.cfg.Bound))
		hard = end
	}
	v = shard.Value{
		LoadedAt: sent - max(rep.age, 0), Vouched: sent, Soft: end, Hard: hard, Version: rep.version, Absent: rep.absent, Bytes: []byte(rep.value), Mark: rep.mark,
	}
	return v, !rules.Missed || !n.shard.Missed(key, &v)
}

// disown passes a lease on to who waits for it (keyspace.disown).
func (n *node) disown(key string, token shard.Token) {
	n.carryOut(n.shard.Release(key, token, shard.Abandoned, nil, n.exact()))
}

// peekFormer answers a member that misses a key after a change of the ring (keyspace.peekFormer).
func (n *node) peekFormer(l *call, rep *reply) {
	req := &l.req
	now, r := n.exact(), n.route(req.key)
	rep.status = statusMiss
	if n.standing.tenure.DoubtfulAt(now) || !r.m.known || n.heirs != nil {
		return
	}
	v, since, given := n.shard.Aside(req.key, now)
	if given {
		since = now
	}
	if v == nil {
		v, _ = n.shard.Peek(req.key, now)
		since = now
	}
	if v == nil || !n.shard.Fresh(v, now) {
		return
	}
	n.hit(rep, v, 0, 0, now)
	p := r.peer()
	rep.vouched = p != nil && p.id == l.c.from.id && req.view == r.m.Ring.Fingerprint() && n.vouches(r, l.c.from.incarnation, now) &&
		p.restarted <= since
}

// vouches tells whether this node can say that the new owner of what it held is told of every invalidation from now on (Node.vouches).
func (n *node) vouches(r route, incarnation uint64, now int64) bool {
	p := r.peer()
	agrees := func(id string) bool { return r.m.agrees(id, now) }
	return r.m.known && p != nil && p.source.Incarnation.Load() == incarnation && agrees(p.id) &&
		!r.m.Gained(r.hash, r.m.copies, now, agrees) && r.m.knowsRings(now)
}

// knowsRings tells whether all members that are heard go by the ring in use or one of the last window (members.knowsRings).
func (m *members) knowsRings(now int64) bool {
	for _, p := range m.peers {
		if p != nil && now < p.source.LeaseUntil.Load() && !m.Knows(p.view, now) {
			return false
		}
	}
	return true
}

// fate is what a change of the ring does to what lies at hash (fate).
func (n *node) fate(before, after *members, hash uint64) shard.Fate {
	was, is := before.Ring.Owner(hash), after.Ring.Owner(hash)
	switch {
	case !n.w.cfg.Rules.Move:
		return shard.Stays
	case !before.known || !after.known || was < 0 || is < 0:
		return shard.Changed
	case n.keeps(before, hash) && n.keeps(after, hash):
		return shard.Stays
	case !n.w.cfg.HandOver:
		return shard.Changed
	case was == before.Self:
		return shard.Lost
	case is == after.Self && before.peers[was].leaving:
		return shard.Gained
	case before.Members[was].ID == after.Members[is].ID:
		return shard.Elsewhere
	}
	return shard.Changed
}
