package sim

import (
	"slices"

	"github.com/nearcache/nearcache/internal/shard"
)

// copies is how many members keep a key, its owner included, where nothing speaks against it (Node.toldCopies).
func (n *node) copies() int { return max(n.w.cfg.Replicas, 1) }

// keepers returns the owner of what lies at hash and its replicas (members.keepers).
func (n *node) keepers(m *members, hash uint64) []int { return m.Ring.Prefer(nil, hash, m.copies) }

// tickApart notes since when members differ in their rings, and whether that is too long for copies to be kept (Node.tickMembers).
func (n *node) tickApart(now int64) {
	switch {
	case !n.differs(now) || !n.w.cfg.Rules.Apart:
		n.differSince = 0
	case n.differSince == 0:
		n.differSince = now
	}
	apart := n.differSince != 0 && now-n.differSince > 4*int64(n.w.cfg.Bound)
	if n.copies() > 1 && apart != n.apart {
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
		p.start(request{op: opPermit}, func(rep *reply, err error) {
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
		req := request{
			op: opCopy, key: key, token: permit, value: string(v.Bytes), version: v.Version, age: at - v.LoadedAt, ttl: n.shard.FreshUntil(v) - at,
		}
		p.start(req, func(_ *reply, err error) {
			if err != nil {
				n.uncopied[key] = true
			}
		})
	}
}

// permit lets a member give copies (Node.permitHandOver).
func (n *node) permit(rep *reply) {
	rep.status = statusBusy
	if now := n.exact(); !n.standing.tenure.CappedAt(now) || !n.w.cfg.Rules.CopyDoubt {
		rep.status, rep.token = statusOK, shard.Token{Incarnation: n.incarnation, Number: uint64(now)}
	}
}

// takeCopy takes a copy from the owner of its key (keyspace.takeCopy).
func (n *node) takeCopy(req *request, rep *reply, from *node) {
	now, r := n.exact(), n.route(req.key)
	at := int64(req.token.Number)
	rep.status = statusNotStored
	i := n.members.Ring.Index(from.id)
	if req.token.Incarnation != n.incarnation || now-at > int64(n.window()) || i < 0 || i != r.owner || !n.keeps(r.m, r.hash) {
		return
	}
	sure := req.view == r.m.Ring.Fingerprint() && !n.standing.tenure.CappedAt(now) && !n.gained(r, now)
	if !sure && n.w.cfg.Rules.CopyDoubt {
		return
	}
	if !n.w.cfg.Rules.CopyAge {
		at = now
	}
	v := shard.Value{LoadedAt: at - req.age, Vouched: at, Soft: at + req.ttl, Hard: at + req.ttl, Version: req.version, Bytes: []byte(req.value)}
	v.Mark = markOf(req.key).At(max(v.LoadedAt-1, 0))
	if n.shard.Give(req.key, v, shard.Given{View: r.m.number, Kept: true}, now) {
		n.w.copied++
		n.w.note(req.key, "%s takes a copy of %s from %s", n.id, req.value, from.id)
		rep.status = statusStored
	}
}
