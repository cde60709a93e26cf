package sim

import (
	"time"

	"github.com/nearcache/nearcache/internal/membership"
	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

// members is a snapshot of the cluster as a node sees it, as the root's.
type members struct {
	*membership.View
	number uint64
	known  bool
	copies int     // members that keep a key, its owner included
	peers  []*peer // by index of the ring; nil for this node
}

// followed is what a node knows of a member's log.
type followed struct {
	source    *near.Source
	follower  invalidation.Follower
	rules     *Rules
	restarted int64  // when another life of it was heard first; 0: never
	trouble   int64  // when it last did not answer; 0: never
	view      uint64 // of its last message on the coherence stream
}

// troubled tells whether the member did not answer within W.
func (f *followed) troubled(n *node) bool {
	return f.trouble != 0 && n.exact()-f.trouble < int64(n.window())
}

func (n *node) followed(id string) *followed {
	f := n.follows[id]
	if f == nil {
		f = &followed{source: new(near.Source), rules: &n.w.cfg.Rules}
		n.follows[id] = f
	}
	return f
}

// setMembers follows the discovery (Node.update).
func (n *node) setMembers(list []peers.Member, number int) {
	if number <= n.listed || n.heirs != nil {
		return
	}
	n.listed = number
	changed, err := n.table.Update(list, n.w.isLeaving, n.exact())
	if err != nil {
		panic("sim: " + err.Error()) // the lists are made up
	}
	if changed || !n.members.known {
		n.become(n.table.View(), true)
	}
}

// become makes a view the one in use (Node.becomeLocked).
func (n *node) become(v *membership.View, known bool) {
	old := n.members
	m := &members{View: v, number: 1, known: known, copies: n.replicas, peers: make([]*peer, len(v.Members))}
	if n.apart {
		m.copies = 1
	}
	if old != nil {
		m.number = old.number + 1
	}
	n.connect(m)
	n.members = m
	n.w.note("", "%s sees %v", n.id, idsOf(v))
	n.moved(old, m)
	n.keepFollowing()
}

// frameFor is what this node's frames to a member say (Node.inView).
func (n *node) frameFor(id string) frame {
	m := n.members
	return frame{view: m.Ring.Fingerprint(), inView: !m.known || m.Ring.Index(id) >= 0, leaving: n.draining}
}

// keepFollowing forgets what is known of members that are none any more (Node.keepFollowing).
func (n *node) keepFollowing() {
	for id := range n.follows {
		if n.peers[id] == nil {
			delete(n.follows, id)
		}
	}
	n.hearing.contacts.Keep(n.others(), n.exact())
}

func idsOf(v *membership.View) []string {
	ids := make([]string, 0, len(v.Members))
	for _, m := range v.Members {
		ids = append(ids, m.ID)
	}
	return ids
}

// connect makes the peers those of m (Node.connectLocked, Transport.SetPeers).
func (n *node) connect(m *members) {
	for i, e := range m.Members {
		if i == m.Self {
			continue
		}
		p := n.peers[e.ID]
		if p == nil {
			p = &peer{n: n, id: e.ID, index: n.w.index(e.ID), added: n.exact(), followed: n.followed(e.ID)}
			n.peers[e.ID] = p
			n.soon(p.dial)
		}
		m.peers[i] = p
	}
	for _, id := range n.w.ids {
		p := n.peers[id]
		switch {
		case p == nil:
		case m.Ring.Index(id) >= 0:
			p.retires = 0
		case p.retires == 0:
			p.retires = n.exact() + int64(n.window())
			if p.leaving || !n.w.cfg.Rules.Targets {
				n.closePeer(p)
			}
		}
	}
}

// tickRetired forgets those that were members until lately (Node.tickMembers).
func (n *node) tickRetired(now int64) {
	for _, id := range n.w.ids {
		if p := n.peers[id]; p != nil && p.retires != 0 && (now >= p.retires || p.leaving) {
			n.closePeer(p)
			n.keepFollowing()
		}
	}
}

func (n *node) closePeer(p *peer) {
	delete(n.peers, p.id)
	p.closed = true
	if c := p.conn; c != nil {
		n.after(10*time.Millisecond, c.breakDown)
	}
}

// moved follows a change of the ring (keyspace.moved).
func (n *node) moved(before, after *members) {
	if before != nil {
		n.carryOut(sorted(n.shard.Move(shard.Change{
			View: after.number, Now: n.exact(), Until: n.exact() + int64(n.window()),
			Fate: func(key string) shard.Fate { return n.fate(before, after, ring.Hash(keyspaceName, key)) },
		})))
		if n.w.cfg.Rules.MoveGrants {
			n.log.Reset()
			n.wake()
		}
		for _, key := range n.w.keys {
			if v, _ := n.shard.Peek(key, n.exact()); v != nil {
				n.copied(key, n.shard.FreshUntil(v))
			}
		}
	}
	if n.w.cfg.Rules.MoveNear {
		n.forgetAll()
	}
}

// route is where a key lives in one snapshot.
type route struct {
	m     *members
	hash  uint64
	owner int
}

func (n *node) route(key string) route {
	h := ring.Hash(keyspaceName, key)
	return route{m: n.members, hash: h, owner: n.members.Ring.Owner(h)}
}

func (r route) self() bool { return r.owner == r.m.Self }
func (r route) owns() bool { return r.m.known && r.self() }

// peer returns the owner when it is another member, else nil.
func (r route) peer() *peer {
	if r.owner < 0 {
		return nil
	}
	return r.m.peers[r.owner]
}

// told tells whether invalidations of the key reach this node (Node.told).
func (n *node) told(r route, now int64) bool {
	if p := r.peer(); p != nil {
		return now < p.source.LeaseUntil.Load()
	}
	return !n.capped(r, now)
}

// reachable waits for a peer that has only just become a member, for a PeerTimeout at most (Node.reachable).
func (n *node) reachable(p *peer, then func(bool)) {
	switch {
	case p.ready():
		then(true)
	case p.added+int64(n.w.cfg.PeerTimeout) <= n.exact():
		then(false)
	default:
		n.after(5*time.Millisecond, func() { n.reachable(p, then) })
	}
}

// left tells whether the member stops, or did within the last window (peer.left).
func (p *peer) left() bool {
	now := p.n.exact()
	if p.leaving {
		p.leaves = now
		return true
	}
	return p.leaves != 0 && now-p.leaves < int64(p.n.window())
}

// unanswered notes that a peer did not answer (keyspace.unanswered).
func (n *node) unanswered(p *peer) { p.trouble = n.exact() }
