package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/ring"
)

// leave gives away what this node owns, and goes on then (Node.leave, R10b).
func (n *node) leave(then func()) {
	now := n.exact()
	if m := n.members; !n.w.cfg.HandOver || !m.known || len(m.Members) < 2 || n.standing.tenure.DoubtfulAt(now) {
		then()
		return
	}
	n.heirs = n.members.Without(n.id)
	h := n.newHandOver(ownerBy(n.heirs), func(key string, now int64) *shard.Value {
		if v, _ := n.shard.Peek(key, now); v != nil && n.shard.Fresh(v, now) && n.route(key).owns() {
			return v
		}
		return nil
	})
	over := false
	once := func() {
		if !over {
			over = true
			then()
		}
	}
	n.after(time.Second, once) // handOverTime
	keys := n.shard.Hottest(storeBytes)
	slices.Sort(keys)
	h.give(keys, once)
}

// passOn gives what this node keeps for others to those who own it (Node.passOn).
func (n *node) passOn(now int64) {
	m := n.members
	if now < n.passes || n.standing.tenure.DoubtfulAt(now) || n.differs(now) {
		return
	}
	keys := n.shard.Asides()
	if len(keys) == 0 {
		return
	}
	slices.Sort(keys)
	n.passes = now + int64(n.w.cfg.Bound)
	n.newHandOver(ownerBy(m.Ring), func(key string, now int64) *shard.Value {
		r := n.route(key)
		p := r.peer()
		if r.m != m || p == nil || p.leaving || !p.connected() || !n.vouches(r, p.conn.to.incarnation, now) {
			return nil
		}
		v, since, given := n.shard.Aside(key, now)
		if v == nil || !given && p.restarted > since {
			return nil
		}
		n.shard.Offered(key)
		return v
	}).give(keys, func() {})
}

// handOver is values on their way to other members, as the root's.
type handOver struct {
	n    *node
	to   func(hash uint64) string
	read func(key string, now int64) *shard.Value
}

func ownerBy(r *ring.Ring) func(hash uint64) string {
	return func(hash uint64) string {
		if o := r.Owner(hash); o >= 0 {
			return r.Members()[o].ID
		}
		return ""
	}
}

func (n *node) newHandOver(to func(hash uint64) string, read func(key string, now int64) *shard.Value) *handOver {
	return &handOver{n: n, to: to, read: read}
}

// give asks the members for permits and sends them the values of keys. done is called when all have answered (newHandOver, handOver.give).
func (h *handOver) give(keys []string, done func()) {
	n, pending := h.n, 1
	end := func(*reply, error) {
		if pending--; pending == 0 {
			done()
		}
	}
	for _, p := range n.members.peers {
		if p == nil || !p.ready() {
			continue
		}
		pending++
		p.start(request{op: opPermit}, func(rep *reply, err error) {
			defer end(nil, nil)
			if err != nil || rep.status != statusOK {
				return
			}
			at := n.exact()
			for _, key := range keys {
				if h.to(ring.Hash(keyspaceName, key)) != p.id {
					continue
				}
				if v := h.read(key, n.exact()); v != nil && v.LoadedAt <= at {
					pending++
					p.start(n.copyOf(key, v, rep.token, at), end)
				}
			}
		})
	}
	end(nil, nil)
}

// copyOf makes the request that gives away a value with a permit that came at (handOver.call).
func (n *node) copyOf(key string, v *shard.Value, permit shard.Token, at int64) request {
	return request{
		op: opHandOver, key: key, token: permit, value: string(v.Bytes), version: v.Version, age: at - v.LoadedAt, ttl: n.shard.FreshUntil(v) - at,
		absent: v.Absent, stale: v.Hard - v.Soft,
	}
}

// permit lets a member give values away, or copies (Node.permitHandOver).
func (n *node) permit(req *request, rep *reply) {
	rep.status = statusBusy
	now, t := n.exact(), &n.standing.tenure
	switch {
	case req.replica && t.CappedAt(now) && n.w.cfg.Rules.CopyDoubt:
	case !req.replica && now >= t.Fence:
	default:
		rep.status, rep.token = statusOK, shard.Token{Incarnation: n.incarnation, Number: uint64(now)}
	}
}

// takeOver takes a value that its owner or former owner gives away, or a copy (keyspace.takeOver).
func (n *node) takeOver(req *request, rep *reply, from *node) {
	now, r := n.exact(), n.route(req.key)
	at, i := int64(req.token.Number), r.m.Ring.Index(from.id)
	rep.status = statusNotStored
	if req.token.Incarnation != n.incarnation || now-at > int64(n.window()) || i < 0 || !req.replica && now >= n.standing.tenure.Fence {
		return
	}
	keeps := n.keeps(r.m, r.hash)
	switch {
	case !req.replica && r.owns() && r.m.Before(r.hash, now) == from.id:
	case !r.m.known || r.owner != i:
		return
	case req.replica && !(keeps && n.takesCopy(req, r, now)):
		return
	}
	g := shard.Given{View: r.m.number, Kept: keeps, Until: at + int64(n.window())}
	if !n.w.cfg.Rules.CopyAge {
		at = now
	}
	v := shard.Value{
		LoadedAt: at - req.age, Vouched: at, Soft: at + req.ttl, Hard: at + req.ttl + req.stale, Version: req.version, Absent: req.absent, Bytes: []byte(req.value),
	}
	v.Mark = markOf(req.key)
	if !req.replica {
		v.Mark = tag.Mark{}
	}
	if !n.shard.Give(req.key, v, g, now) {
		return
	}
	rep.status = statusStored
	n.w.note(req.key, "%s takes %s from %s, kept %v", n.id, req.value, from.id, keeps)
	if req.replica {
		n.w.copied++
		return
	}
	n.w.inherited++
	n.copied(req.key, at+req.ttl)
}

// heirloom answers a Get from what the owner of the key gave to this node before it left (keyspace.heirloom).
func (n *node) heirloom(req *request, rep *reply, r route, remote bool) bool {
	if p := r.peer(); p == nil || !p.leaving || req.fresh || !n.w.cfg.HandOver {
		return false
	}
	now, seq := n.exact(), n.log.Seq()
	n.grant(req, r, remote, now)
	v, _, given := n.shard.Aside(req.key, now)
	if given {
		n.hit(rep, v, seq, min(req.near, int64(n.w.cfg.Bound)), now)
	}
	return given
}

// inherits tells whether this node is a replica of an owner that leaves (keyspace.inherits).
func (n *node) inherits(r route) bool {
	p := r.peer()
	return n.w.cfg.HandOver && p != nil && p.leaving && n.keeps(r.m, r.hash)
}
