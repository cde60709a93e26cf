package sim

import (
	"slices"

	"github.com/nearcache/nearcache/internal/shard"
)

// toldCopies is how many members have to be told of each key (Node.toldCopies).
func (n *node) toldCopies() int {
	most := n.replicas
	for _, p := range n.members.peers {
		if p != nil && n.w.cfg.Rules.Mixed {
			most = max(most, p.replicas)
		}
	}
	return most
}

// haveMixed tells whether a member that is heard has another number of replicas (Node.haveMixed).
func (n *node) haveMixed(now int64) bool {
	return slices.ContainsFunc(n.members.peers, func(p *peer) bool {
		return p != nil && now < p.source.LeaseUntil.Load() && p.replicas != 0 && p.replicas != n.replicas
	})
}

// keepers returns the owner of what lies at hash and its replicas (members.keepers).
func (n *node) keepers(m *members, hash uint64) []int { return m.Ring.Prefer(nil, hash, m.copies) }

// tickApart notes since when members differ in their rings, and whether that is too long for copies to be kept, or whether they differ in their
// numbers of replicas (Node.tickMembers, Node.apart).
func (n *node) tickApart(now int64) {
	switch {
	case !n.differs(now) || !n.w.cfg.Rules.Apart:
		n.differSince = 0
	case n.differSince == 0:
		n.differSince = now
	}
	apart := n.differSince != 0 && now-n.differSince > 4*int64(n.w.cfg.Bound) || n.haveMixed(now)
	if n.replicas > 1 && apart != n.apart {
		n.apart = apart
		n.become(n.table.View(), n.members.known)
	}
}

// keeps tells whether this node is the owner or a replica (route.keeps).
func (n *node) keeps(m *members, hash uint64) bool {
	return m.known && slices.Contains(n.keepers(m, hash), m.Self)
}

// copied notes that the replicas of a key lack what this node has (keyspace.copied).
func (n *node) copied(key string, until int64) {
	if n.members.copies > 1 && until-n.exact() > int64(n.w.cfg.Bound) && n.route(key).owns() {
		n.uncopied[key] = true
	}
}

// passCopies gives replicas what they lack (Node.passCopies).
func (n *node) passCopies(now int64) {
	if n.standing.tenure.DoubtfulAt(now) || n.differs(now) {
		return
	}
	for i, p := range n.members.peers {
		if p == nil || !p.ready() {
			continue
		}
		var keys []string
		for _, key := range n.w.keys {
			if r := n.route(key); n.uncopied[key] && !n.capped(r, now) && slices.Contains(n.keepers(r.m, r.hash), i) {
				keys = append(keys, key)
			}
		}
		if len(keys) == 0 {
			continue
		}
		p.start(request{op: opPermit, replica: true}, func(rep *reply, err error) {
			if err == nil && rep.status == statusOK {
				n.giveCopies(p, keys, rep.token)
			}
		})
	}
}

// giveCopies uses a permit (handOver.give).
func (n *node) giveCopies(p *peer, keys []string, permit shard.Token) {
	at := n.exact()
	for _, key := range keys {
		v, _ := n.shard.Peek(key, at)
		r := n.route(key)
		if v == nil || !n.shard.Fresh(v, at) || v.LoadedAt > at || !r.owns() || n.capped(r, at) || !n.uncopied[key] {
			continue
		}
		delete(n.uncopied, key)
		req := n.copyOf(key, v, permit, at)
		req.replica = true
		p.start(req, func(_ *reply, err error) {
			if err != nil {
				n.uncopied[key] = true
			}
		})
	}
}

// takesCopy tells whether this node can take a copy of a key that it keeps (keyspace.takesCopy).
func (n *node) takesCopy(req *request, r route, now int64) bool {
	sure := req.view == r.m.Ring.Fingerprint() && !n.standing.tenure.CappedAt(now) && !n.gained(r, now)
	return sure || !n.w.cfg.Rules.CopyDoubt
}
