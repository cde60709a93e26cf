package sim

import (
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
)

// standing is how sure a node is of what it owns, as the root's (R7).
type standing struct {
	tenure invalidation.Tenure
	limits atomic.Pointer[shard.Limits]
	source near.Source
	doubt  *invalidation.Doubt
}

// window is W.
func (n *node) window() time.Duration { return 5 * n.w.cfg.Bound }

// capped tells whether what this node stores by route r lives a Bound at most (Node.capped).
func (n *node) capped(r route, now int64) bool {
	return !r.owns() && n.w.cfg.Rules.StandInCap || n.standing.tenure.CappedAt(now) || n.gained(r, now)
}

// gained tells whether others may be told what this node has to hear (membership.View.Gained).
func (n *node) gained(r route, now int64) bool {
	return n.w.cfg.Rules.Gained && r.m.Gained(r.hash, r.m.copies, now, func(id string) bool { return r.m.agrees(id, now) })
}

// cap is how long what is loaded for a key from now on may live (keyspace.cap).
func (n *node) cap(key string, now int64) time.Duration {
	if n.w.cfg.Rules.CapLeases && n.capped(n.route(key), now) {
		return n.w.cfg.Bound
	}
	return 0
}

// agrees tells whether a member is connected and goes by the same ring (members.agrees).
func (m *members) agrees(id string, now int64) bool {
	i := m.Ring.Index(id)
	return i >= 0 && m.peers[i] != nil && now < m.peers[i].source.LeaseUntil.Load() && m.peers[i].view == m.Ring.Fingerprint()
}

func (n *node) newDoubt() *invalidation.Doubt {
	return invalidation.NewDoubt(invalidation.DoubtConfig{
		Bound: n.w.cfg.Bound, Window: n.window(), Trusting: !n.w.cfg.Rules.Doubt,
	}, n.exact())
}

// majority returns how many other owning members have to be heard (Node.majority).
func (n *node) majority(m *members, now int64) int {
	if !n.w.cfg.Rules.Fence {
		return 0
	}
	electorate := m.Electorate(now)
	if !n.w.cfg.Rules.Half {
		electorate = len(m.Members)
	}
	return invalidation.Majority(electorate, true)
}

// tickDoubt notes who is heard (Node.tickDoubt).
func (n *node) tickDoubt(now int64) {
	m := n.members
	var leases []int64
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		p.left() // is noted
		leases = append(leases, p.source.LeaseUntil.Load())
	}
	differs := n.differs(now)
	n.hearing.unequal = differs
	need := n.majority(m, now)
	n.update(func(d *invalidation.Doubt) bool { return d.Heard(leases, need, differs, now) })
}

// unlisted notes that a member says that this node is not in its ring (Node.dropped).
func (n *node) unlisted() {
	if n.w.cfg.Rules.Echo {
		n.update(func(d *invalidation.Doubt) bool { return d.Dropped(n.exact()) })
	}
}

// keepTenure is called before this node promises anything (Node.keepTenure).
func (n *node) keepTenure(now int64) {
	if now >= n.standing.tenure.Fence {
		n.tickDoubt(now)
	}
}

// update lets something happen to the doubt and publishes what follows (standing.update).
func (n *node) update(happen func(*invalidation.Doubt) (entered bool)) {
	s := &n.standing
	entered := happen(s.doubt)
	t := s.doubt.Tenure()
	s.tenure = t
	if !n.w.cfg.Rules.Ended {
		t.Ended = 0
	}
	s.limits.Store(&shard.Limits{
		Before: t.Before, BeforeEnd: t.BeforeEnd, Ended: t.Ended, Caused: t.Caused, Bound: int64(n.w.cfg.Bound), End: t.End,
	})
	if entered {
		n.w.note("", "%s comes into doubt", n.id)
		s.source.Gen.Add(1)
		if n.w.cfg.Rules.Void {
			n.log.Reset()
		}
	}
	s.source.LeaseUntil.Store(t.End)
	if entered {
		n.wake()
	}
}
