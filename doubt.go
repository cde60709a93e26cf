package nearcache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
)

// standing is how sure this node is of what it owns (R7).
type standing struct {
	tenure atomic.Pointer[invalidation.Tenure]
	limits atomic.Pointer[shard.Limits] // the tenure, for the shards of all keyspaces
	source near.Source                  // the tenure, for near copies of what this node owns

	bound int64 // C of docs/protocol.md

	mu    sync.Mutex // guards doubt and the writing of what is above. Lock order: mu, then a log's mutex
	doubt *invalidation.Doubt
}

// capped tells whether what this node stores by route r lives a Bound at most: it does not own it, or is not sure to, or has become its
// owner only lately, so that others may tell somebody else of an invalidation.
func (n *Node) capped(r route, now int64) bool {
	return !r.owns() || n.untold(r, now)
}

// untold tells whether others may be told of an invalidation in the place of this node, as the owner or a replica, and not pass it on.
func (n *Node) untold(r route, now int64) bool {
	return n.standing.tenure.Load().CappedAt(now) ||
		r.m.Gained(r.hash, r.m.copies, now, func(id string) bool { return r.m.agrees(id, now) })
}

// warm tells that nothing that this node owns is capped.
func (n *Node) warm() bool {
	m, now := n.members.Load(), n.clock.Exact()
	return !n.doubtful() && m.Settled(now, func(id string) bool { return m.agrees(id, now) })
}

// agrees tells whether a member is connected and goes by the same ring.
func (m *members) agrees(id string, now int64) bool {
	i := m.Ring.Index(id)
	return i >= 0 && m.peers[i] != nil && now < m.peers[i].source.LeaseUntil.Load() && m.peers[i].view.Load() == m.Ring.Fingerprint()
}

// window is how long members may differ in their rings after a change: W of docs/protocol.md.
func (n *Node) window() int64 { return 5 * int64(n.bound) }

// doubtful tells whether what this node owns lives a Bound at most.
func (n *Node) doubtful() bool {
	return n.members.Load().contested || n.standing.tenure.Load().CappedAt(n.clock.Exact())
}

// newDoubt returns the doubt of a node that starts. There is nothing to doubt where nobody else can own or tell anything.
func (n *Node) newDoubt() *invalidation.Doubt {
	return invalidation.NewDoubt(invalidation.DoubtConfig{
		Bound: n.bound, Window: time.Duration(n.window()), Trusting: n.cfg.Bound < 0 || n.cfg.Discovery == nil,
	}, n.clock.Exact())
}

// majority returns how many other owning members have to be heard. Of a list of two that never changes none: neither of them has a majority
// without the other, so that nobody gets a nil for an invalidation that the other one was not told of.
func (n *Node) majority(m *members, now int64) int {
	electorate := m.Electorate(now)
	if f, ok := n.cfg.Discovery.(interface{ Fixed() bool }); ok && f.Fixed() && electorate <= 2 {
		return 0
	}
	return invalidation.Majority(electorate, m.Me().Weight >= 0)
}

// tickDoubt notes who is heard.
func (n *Node) tickDoubt(now int64) {
	m := n.members.Load()
	var leases []int64
	for i, p := range m.peers {
		if p == nil {
			continue
		}
		p.left(n) // is noted
		if m.Members[i].Weight >= 0 {
			leases = append(leases, p.source.LeaseUntil.Load())
		}
	}
	differs := n.lookAround(m, now)
	need := n.majority(m, now)
	n.standing.update(n.log, func(d *invalidation.Doubt) bool { return d.Heard(leases, need, differs, now) })
}

// dropped notes that a member says that this node is not in its ring.
func (n *Node) dropped() {
	now := n.clock.Exact()
	n.standing.update(n.log, func(d *invalidation.Doubt) bool { return d.Dropped(now) })
}

// keepTenure is called before this node promises anything: a process that was paused may have lost its majority without having noticed.
func (n *Node) keepTenure(now int64) {
	if now >= n.standing.tenure.Load().Fence {
		n.tickDoubt(now)
	}
}

// update lets something happen to the doubt and publishes what follows.
func (s *standing) update(log *invalidation.Log, happen func(*invalidation.Doubt) (entered bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entered := happen(s.doubt)
	t := s.doubt.Tenure()
	// Order: what is capped before what is granted to others is void, and the generation before the lease (R4).
	s.tenure.Store(&t)
	s.limits.Store(&shard.Limits{
		Before: t.Before, BeforeEnd: t.BeforeEnd, Ended: t.Ended, Caused: t.Caused, Bound: s.bound, End: t.End,
	})
	if entered {
		s.source.Gen.Add(1)
		log.Reset()
	}
	s.source.LeaseUntil.Store(t.End)
	if entered {
		log.Wake()
	}
}
