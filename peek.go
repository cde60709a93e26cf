package nearcache

import (
	"context"
	"strings"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/internal/transport"
)

// A change of the ring does not reach the origin (R10b): a member that has become the owner of a key and misses it peeks at the one that was
// the owner before, which has kept aside what it lost. Why what comes from there is no older than an invalidation that was confirmed:
//
//  1. Confirmed before the former owner answered. Either the former owner was told, and dropped it; or the new one was, and remembers that
//     (Shard.Missed): the age of what comes counts from when the peek was sent, so that it may seem too old but not too young; or another
//     member was told, that took itself for the owner, by a ring that is neither of the two: then the former owner does not vouch, see 3.
//  2. Confirmed afterwards, and told to the former owner: it goes by the same ring when it answers, so that it passes on what it is told,
//     and confirms when the new one has. A peek that is under way is a lease: the invalidation revokes it, as it does a load's.
//  3. The former owner vouches for what it kept only if it is not in doubt, no member that it hears goes by a ring that it does not know, and
//     nobody but the two has owned the key within the last window, or goes by the ring in use. Without that the copy lives a Bound.
//  4. A second change of the ring between them ends what was kept aside (shard.Fate): an owner in between was told, and nobody else.
//  5. A new owner that is started anew has forgotten what it was told: what was kept before that is not for it.

// maxPeeks bounds the peeks at former owners that are under way. Who asks beyond it loads. Lower: more loads after a change of the ring;
// higher: more at once for a member that has just lost a part of its keys and is asked for all the others.
const maxPeeks = 512

// inherit lets this node, which has just become the owner of a key, ask the one before, or, where members differ about the owner and it
// stands in for another one, the owner by its own ring: it takes the key's lease for that, so that whoever misses the key waits for the
// answer as for a load. If nobody asked has the value the lease passes on to the first of them.
func (ks *keyspace) inherit(r route, key string, now int64) {
	n := ks.node
	sources := n.formerOwners(r, now)
	if len(sources) == 0 || now >= n.standing.tenure.Load().Fence {
		return
	}
	if n.asking.Add(1) > maxPeeks {
		n.asking.Add(-1)
		return
	}
	key = strings.Clone(key)
	life := int64(n.cfg.PeerTimeout + time.Second)
	lease := ks.shard.Acquire(key, shard.Ask{Holder: n.id, Life: life, View: r.m.number}, now)
	peeks := lease.Kind == shard.Lease && n.run("peek", func() {
		defer n.asking.Add(-1)
		if !ks.inheritFrom(sources, r, key, lease.Token) {
			ks.disown(key, lease.Token)
		}
	})
	if peeks {
		return
	}
	n.asking.Add(-1)
	if lease.Kind == shard.Lease {
		ks.disown(key, lease.Token)
	}
}

// formerOwners returns who may have what this node misses, after a change of the ring.
func (n *Node) formerOwners(r route, now int64) (sources []*peer) {
	before := r.m.Before(r.hash, now)
	if r.owns() && before == "" {
		return nil // nearly always
	}
	heard := func(p *peer) bool { return p != nil && p.Ready() }
	if p := r.peer(); !r.owns() && heard(p) && (before != "" || n.differs(r.m, now)) {
		sources = append(sources, p)
	}
	for _, id := range r.m.KeptBefore(r.hash, r.m.copies, now) {
		if i := r.m.Ring.Index(id); i >= 0 && i != r.owner && heard(r.m.peers[i]) {
			sources = append(sources, r.m.peers[i])
		}
	}
	return sources
}

// inheritFrom asks one after the other and fills the key, of which this node holds the lease, with what the first of them has that is not
// too old.
func (ks *keyspace) inheritFrom(sources []*peer, r route, key string, token shard.Token) bool {
	n := ks.node
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.PeerTimeout)
	defer cancel()
	for _, p := range sources {
		sent := n.clock.Exact()
		rep, err := p.Do(ctx, &transport.Request{
			Op: transport.OpPeek, Flags: transport.FlagGained, Keyspace: ks.name, Key: key, Budget: n.cfg.PeerTimeout,
		})
		if err != nil {
			ks.unanswered(p)
			return false
		}
		if rep.Status != transport.StatusHit && rep.Status != transport.StatusAbsent || rep.TTL <= 0 {
			continue
		}
		v := inherited(&rep, sent)
		v.Hard += int64(ks.policy.stale)
		if rep.Flags&transport.ReplyVouched == 0 || n.clock.Exact() >= n.standing.tenure.Load().Fence {
			v.Soft = min(v.Soft, sent+int64(n.bound))
			v.Hard = v.Soft
		}
		if !ks.shard.Missed(key, &v) {
			ks.noteLifetime(rep.TTL)
			ks.count.inherited.Add(1)
			eff := ks.shard.Fill(key, token, v, n.clock.Exact())
			ks.carryOut(eff)
			if eff.Outcome == shard.Stored {
				ks.stored(key, r, eff.Until, n.clock.Exact())
			}
			return true
		}
	}
	return false
}

// inherited makes an entry of the answer to a peek that was sent at sent.
func inherited(rep *transport.Reply, sent int64) shard.Value {
	end := sent + int64(rep.TTL)
	v := shard.Value{
		Absent: rep.Status == transport.StatusAbsent, Version: rep.Version,
		LoadedAt: sent - max(int64(rep.Age), 0), Vouched: sent, Soft: end, Hard: end,
	}
	if rep.Flags&transport.ReplyTagged != 0 {
		v.Mark = tag.Of(rep.Tags)
	}
	if !v.Absent {
		v.Bytes = rep.Value
	}
	return v
}

// disown passes a lease on to who waits for it.
func (ks *keyspace) disown(key string, token shard.Token) {
	ks.carryOut(ks.shard.Release(key, token, shard.Abandoned, nil, ks.node.clock.Exact()))
}

// peekFormer answers a member that misses a key after a change of the ring, from what is resident where this node is the owner, else from
// what it kept aside.
func (ks *keyspace) peekFormer(s *transport.Session, req *transport.Request, rep *transport.Reply) {
	n := ks.node
	now, r := n.clock.Exact(), ks.route(req.Key)
	rep.Status = transport.StatusMiss
	if n.standing.tenure.Load().DoubtfulAt(now) || !r.m.sure() || n.heirs.Load() != nil {
		return
	}
	v, since, given := ks.shard.Aside(req.Key, now)
	if given { // the owner has left and comes back: until now this node was told in its place, so that no restart matters
		since = now
	}
	if v == nil { // this node is the owner, or the ring has changed this very moment and Move did not get there yet
		v, _ = ks.shard.Peek(req.Key, now)
		since = now
	}
	if v == nil || !ks.shard.Fresh(v, now) {
		return
	}
	ks.hit(rep, v, 0, 0, now)
	if p := r.peer(); p != nil && p.id == r.m.idOf(s) && s.View() == r.m.Ring.Fingerprint() && n.vouches(r, s.Incarnation, now) &&
		p.restarted.Load() <= since {
		rep.Flags |= transport.ReplyVouched
	}
}

// vouches tells whether this node, which is sure of itself, can say of what it held as the owner that its new owner is told of every
// invalidation from now on: see above. incarnation is that of the new owner.
func (n *Node) vouches(r route, incarnation uint64, now int64) bool {
	p := r.peer()
	agrees := func(id string) bool { return r.m.agrees(id, now) }
	return r.m.sure() && p != nil && p.source.Incarnation.Load() == incarnation && agrees(p.id) &&
		!r.m.Gained(r.hash, r.m.copies, now, agrees) && r.m.knowsRings(now)
}

// knowsRings tells whether all members that are heard go by the ring in use or one of the last window.
func (m *members) knowsRings(now int64) bool {
	for _, p := range m.peers {
		if p != nil && now < p.source.LeaseUntil.Load() && !m.Knows(p.view.Load(), now) {
			return false
		}
	}
	return true
}

// idOf returns the ID by which the ring knows the member of a session; "" if it does not.
func (m *members) idOf(s *transport.Session) string {
	if i := m.Resolve(s.Member, s.Addr); i >= 0 {
		return m.Members[i].ID
	}
	return ""
}

// fate is what a change of the ring does to what lies at hash.
func fate(before, after *members, hash uint64) shard.Fate {
	was, is := before.Ring.Owner(hash), after.Ring.Owner(hash)
	if !before.sure() || !after.sure() || was < 0 || is < 0 {
		return shard.Changed
	}
	had, has := route{before, hash, was}, route{after, hash, is}
	switch {
	case had.keeps() && has.keeps():
		return shard.Stays
	case had.self():
		return shard.Lost
	case has.self() && before.peers[was].Leaving(): // it has not come back since it gave away what it had
		return shard.Gained
	case before.Members[was].ID == after.Members[is].ID:
		return shard.Elsewhere
	}
	return shard.Changed
}
