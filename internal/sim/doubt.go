package sim

import (
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
	"github.com/nearcache/nearcache/ring"
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
	rules := &n.w.cfg.Rules
	return !r.owns() && rules.StandInCap || n.standing.tenure.CappedAt(now) ||
		rules.Gained && r.m.Gained(r.hash, now, func(id string) bool { return r.m.agrees(id, now) })
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
	return invalidation.Majority(m.Electorate(now), true)
}

// tickDoubt notes who is heard (Node.tickDoubt).
func (n *node) tickDoubt(now int64) {
	m := n.members
	var leases []int64
	differs := false
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		until := p.source.LeaseUntil.Load()
		leases = append(leases, until)
		if now < until && !m.agrees(p.id, now) {
			differs = true
		}
	}
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
	s.limits.Store(&shard.Limits{Before: t.Before, BeforeEnd: t.BeforeEnd, End: t.End})
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

// What follows are models of R8b and R9b.

// heardOf is what a member's last frame said, in whatever direction it came.
type heardOf struct {
	at   int64
	view uint64
}

// frame notes what every frame of a member says about its ring.
func (n *node) frame(from string, f frame) { n.heard[from] = heardOf{at: n.exact(), view: f.view} }

// differs tells whether a connected member's last frame carried another view.
func (n *node) differs(now int64) bool {
	mine := n.members.Ring.Fingerprint()
	for _, id := range n.w.ids {
		if h, ok := n.heard[id]; ok && h.view != mine && now-h.at < int64(n.w.cfg.Bound) {
			return true
		}
	}
	return false
}

// pastOwners calls yield for the owners of a key by the rings of the last W.
func (n *node) pastOwners(key string, now int64, yield func(id string)) {
	for _, p := range n.members.Past {
		if o := p.Ring.Owner(ring.Hash(keyspaceName, key)); o >= 0 && now < p.Until {
			yield(p.Ring.Members()[o].ID)
		}
	}
}

// ages returns how long ago this node has last heard a renewal of each member: of one that it never heard, since its own start.
func (n *node) ages() map[string]int64 {
	now := n.exact()
	ages := make(map[string]int64, len(n.w.ids))
	for _, id := range n.w.ids {
		ages[id] = now - n.renewals[id]
	}
	return ages
}

// report is what a member says about the others.
type report struct {
	at   int64
	ages map[string]int64
}

// goneSilent tells that a member has had no contact with any member that this node can reach for so long that whatever it holds is dead,
// this node itself not being cut off (R9).
func (n *node) goneSilent(id string) bool {
	now, bound := n.exact(), int64(n.w.cfg.Bound)
	enough := bound*5/4 + bound + int64(200*time.Millisecond)
	if n.fenced(now) || now-n.renewals[id] < enough {
		return false
	}
	for _, o := range n.w.ids {
		r, ok := n.reports[o]
		if o != id && ok && now-r.at < bound && r.ages[id] < enough {
			return false
		}
	}
	return true
}

func (n *node) fenced(now int64) bool {
	n.keepTenure(now)
	return n.standing.tenure.Fenced
}
