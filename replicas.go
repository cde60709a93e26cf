package nearcache

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/transport"
)

// With NodeConfig.Replicas over 1 an owner copies what it has to the next members of the key's preference list (R10). They serve it as its
// stand-ins when it cannot be reached, when they have become the owner, and to spread a key in heavy use (spread.go). A copy is an entry of the replica's shard like any other, and is
// handed over by a permit, as values are after a change of the ring. Why it is no older than an invalidation that was confirmed:
//
//  1. Replicas are told of an invalidation as the owner is, and have to confirm it as the owner has (R8). So a replica keeps a copy by the same
//     right as an owner an entry: what it may not have been told of its doubt ends (R7), and R9 waits for that.
//  2. A copy that was under way meanwhile is older than the invalidation, which the replica remembers (shard.Shard.Give): its age counts from
//     the permit, and that was given before the value was read.
//  3. A replica takes copies only if those who may be told in its place pass that on: it is not in doubt, hears nobody who goes by another
//     ring, and somebody who kept the key by each ring of the last window goes by the ring in use (Node.untold). It remembers no
//     invalidation from before it opened the keyspace, so that for a window it takes none.
//  4. Those who tell reckon with as many replicas as any member has. While a member is heard that has another number, nobody keeps copies.
//  5. Those who tell reckon with the rings of the last window. Copies end when members differ for nearly as long (Node.apart): a member
//     whose discovery lags behind may keep some that nobody tells it about any more.
//
// Copies go out with the next tick, so that what changes often is copied once. What an owner that dies has not copied is loaded again.

// maxLackBytes bounds the memory for keys that are to be copied. Beyond it a key is not copied before it is stored again.
const maxLackBytes = 8 << 20

// uncopied is what replicas lack of what this node owns.
type uncopied struct {
	mu       sync.Mutex          // guards what follows. It is a leaf
	replicas map[string]*replica // by member
	bytes    int64               // of the keys
	// before is a snapshot by which nobody lacks anything else; nil: that is the one in use. seeking: somebody looks for the difference.
	before  *members
	anew    map[string]bool // members in another life than before: they lack everything
	seeking bool
}

// replica is what one member lacks.
type replica struct {
	lacks map[keyIn]bool
	busy  bool  // copies are on their way to it
	after int64 // nothing is sent sooner
}

type keyIn struct {
	ks  *keyspace
	key string
}

func (k keyIn) bytes() int64 { return int64(len(k.key)) + 96 }

// add notes that a member lacks a key, which may alias a buffer.
func (u *uncopied) add(member string, k keyIn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.replicas[member]
	if r != nil && r.lacks[k] || u.bytes+k.bytes() > maxLackBytes {
		return
	}
	if r == nil {
		r = &replica{lacks: make(map[keyIn]bool)}
		if u.replicas == nil {
			u.replicas = make(map[string]*replica)
		}
		u.replicas[member] = r
	}
	k.key = strings.Clone(k.key)
	r.lacks[k] = true
	u.bytes += k.bytes()
}

// take returns what a member lacks, if it may be given something now: then done has to follow.
func (u *uncopied) take(member string, now int64) map[keyIn]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.replicas[member]
	if r == nil || r.busy || now < r.after {
		return nil
	}
	lacks := r.lacks
	for k := range lacks {
		u.bytes -= k.bytes()
	}
	r.lacks, r.busy = make(map[keyIn]bool), true
	return lacks
}

// done ends what take began: what the member still lacks it gets after a time.
func (u *uncopied) done(member string, still []keyIn, after int64) {
	for _, k := range still {
		u.add(member, k)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.replicas[member]
	if r.busy, r.after = false, after; len(r.lacks) == 0 {
		delete(u.replicas, member)
	}
}

// lacking returns who lacks something.
func (u *uncopied) lacking() (members []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id := range u.replicas {
		members = append(members, id)
	}
	return members
}

// moved notes that the members change, and what they were before.
func (u *uncopied) moved(before *members) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.before == nil {
		u.before = before
	}
}

// began notes that a member is in another life.
func (u *uncopied) began(member string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.anew == nil {
		u.anew = make(map[string]bool)
	}
	u.anew[member] = true
}

// seek returns what has changed since who lacks what was looked for last. True: found has to follow.
func (u *uncopied) seek() (before *members, anew map[string]bool, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seeking || u.before == nil && len(u.anew) == 0 {
		return nil, nil, false
	}
	before, anew = u.before, u.anew
	u.before, u.anew, u.seeking = nil, nil, true
	return before, anew, true
}

func (u *uncopied) found() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seeking = false
}

// keepers returns the owner of what lies at hash, and its replicas.
func (m *members) keepers(hash uint64) []int { return m.Ring.Prefer(nil, hash, m.copies) }

// keeps tells whether this node is the owner, or a replica, and knows its members.
func (r route) keeps() bool {
	if r.m.copies == 1 {
		return r.owns()
	}
	return r.m.sure() && slices.Contains(r.m.keepers(r.hash), r.m.Self)
}

// haveMixed tells whether a member that is heard has another number of replicas than this node.
func (n *Node) haveMixed(m *members, now int64) bool {
	return slices.ContainsFunc(m.peers, func(p *peer) bool {
		if p == nil || now >= p.source.LeaseUntil.Load() {
			return false
		}
		has := p.Replicas()
		return has != 0 && has != n.cfg.Replicas // 0: it is being connected to anew
	})
}

// apart tells whether members differ in their rings for so long that those who tell may not reckon any more with the ring by which this node keeps
// copies: they remember it for a window.
func (n *Node) apart(m *members, now int64) bool {
	switch {
	case n.cfg.Replicas == 1 || !n.differs(m, now):
		n.differSince = 0
		return false
	case n.differSince == 0:
		n.differSince = now
	}
	return now-n.differSince > n.window()-int64(n.bound)
}

// toldCopies is how many members have to be told of each key: as many as keep one by the configuration of any of them.
func (n *Node) toldCopies(m *members) int {
	most := n.cfg.Replicas
	for _, p := range m.peers {
		if p != nil {
			most = max(most, p.Replicas())
		}
	}
	return most
}

// stored notes that this node has stored what its replicas lack, if it is worth it: what lives no longer than a Bound is gone before they
// could take over.
func (ks *keyspace) stored(key string, r route, until, now int64) {
	if r.m.copies == 1 || !r.owns() || until-now <= int64(ks.node.bound) {
		return
	}
	for _, i := range r.m.keepers(r.hash) {
		if i != r.m.Self {
			ks.node.uncopied.add(r.m.Members[i].ID, keyIn{ks, key})
		}
	}
}

// tickCopies gives replicas what they lack. It waits until all members that are heard go by the same ring: others take no copies.
func (n *Node) tickCopies(now int64) {
	m := n.members.Load()
	if m.copies == 1 || n.standing.tenure.Load().DoubtfulAt(now) || n.differs(m, now) {
		return
	}
	if before, anew, ok := n.uncopied.seek(); ok && !n.run("seek", func() { n.seekLacks(before, anew) }) {
		n.uncopied.found()
	}
	for _, id := range n.uncopied.lacking() {
		p := m.peer(id)
		if p != nil && !p.Ready() {
			continue
		}
		lacks := n.uncopied.take(id, now)
		if lacks == nil {
			continue
		}
		if p == nil || !n.run("copy", func() { n.copyTo(p, lacks) }) {
			n.uncopied.done(id, nil, now)
		}
	}
}

// seekLacks looks for what replicas lack after a change of the members, or because they were started anew.
func (n *Node) seekLacks(before *members, anew map[string]bool) {
	defer n.uncopied.found()
	m := n.members.Load()
	lacks := func(id string, hash uint64) bool {
		if before == nil || anew[id] {
			return anew[id]
		}
		i := before.Ring.Index(id)
		return i < 0 || !slices.Contains(before.keepers(hash), i)
	}
	for _, ks := range *n.keyspaces.Load() {
		for _, key := range ks.shard.Hottest(handOverBytes) {
			hash := ks.hashOf(key)
			if m.Ring.Owner(hash) != m.Self {
				continue
			}
			for _, i := range m.keepers(hash)[1:] {
				if id := m.Members[i].ID; lacks(id, hash) {
					n.uncopied.add(id, keyIn{ks, key})
				}
			}
		}
	}
}

// copyTo gives one replica what it lacks.
func (n *Node) copyTo(p *peer, lacks map[keyIn]bool) {
	ctx, cancel := context.WithTimeout(n.ctx, n.bound)
	defer cancel()
	var still []keyIn
	h := n.newHandOver(ctx, transport.FlagReplica, []*peer{p}, func(uint64) string { return p.ID() })
	keys := make(map[*keyspace][]string)
	for k := range lacks {
		if len(h.permits) == 0 {
			still = append(still, k)
		} else if !k.ks.closed.Load() {
			keys[k.ks] = append(keys[k.ks], k.key)
		}
	}
	for ks, keys := range keys {
		left := h.give(ctx, ks, keys, func(key string, now int64) *shard.Value {
			r := ks.route(key)
			switch i := r.m.Ring.Index(p.ID()); {
			case !r.owns() || i < 0 || !slices.Contains(r.m.keepers(r.hash), i):
				return nil
			case n.untold(r, now):
				still = append(still, keyIn{ks, key})
				return nil
			}
			if v, _ := ks.shard.Peek(key, now); v != nil && ks.shard.FreshUntil(v)-now > int64(n.bound) {
				return v
			}
			return nil
		})
		for _, key := range left {
			still = append(still, keyIn{ks, key})
		}
	}
	after := n.clock.Exact()
	if len(still) > 0 {
		after += int64(n.bound)
	}
	n.uncopied.done(p.ID(), still, after)
}

// takesCopy tells whether it can take one of a key from a member, which goes by the same ring.
func (ks *keyspace) takesCopy(s *transport.Session, r route, now int64) bool {
	n := ks.node
	return r.keeps() && s.View() == r.m.Ring.Fingerprint() && !n.untold(r, now) && now-ks.opened >= n.window()
}

// packTags makes strings of the hashes of tags, as they travel with a copy.
func packTags(hashes []uint64) []string {
	tags := make([]string, 0, len(hashes))
	for _, h := range hashes {
		tags = append(tags, string(binary.BigEndian.AppendUint64(nil, h)))
	}
	return tags
}

// unpackTags is the opposite. What is no hash stands for some tag.
func unpackTags(tags []string) []uint64 {
	hashes := make([]uint64, 0, len(tags))
	for _, t := range tags {
		var b [8]byte
		copy(b[:], t)
		hashes = append(hashes, binary.BigEndian.Uint64(b[:]))
	}
	return hashes
}
