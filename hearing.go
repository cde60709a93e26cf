package nearcache

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// hearing is what this node knows of who hears whom (R9b), and whether anybody goes by another ring (R8b).
type hearing struct {
	unequal atomic.Bool // the last frame of a connected member carried another view

	mu       sync.Mutex // guards what follows. It is a leaf
	contacts *invalidation.Contacts
	found    map[string]finding // by member
}

// finding is what was found out about a member a moment ago: many calls ask the same.
type finding struct {
	at    int64
	reach invalidation.Reach
}

// heard notes a renewal of a member, before it is answered.
func (n *Node) heard(s *transport.Session, now int64) {
	m := n.members.Load()
	id := s.Member
	if i := m.Resolve(s.Member, s.Addr); i >= 0 {
		id = m.Members[i].ID
		if s.View() != m.Ring.Fingerprint() {
			n.hearing.unequal.Store(true)
		}
	}
	n.hearing.mu.Lock()
	defer n.hearing.mu.Unlock()
	n.hearing.contacts.Heard(id, now)
}

// reported notes what a member said in its answer to a renewal that was sent at sent.
func (n *Node) reported(by string, d *transport.Down, sent, now int64) {
	silent := make([]invalidation.Silence, len(d.Silent))
	for i, s := range d.Silent {
		silent[i] = invalidation.Silence(s)
	}
	n.hearing.mu.Lock()
	defer n.hearing.mu.Unlock()
	n.hearing.contacts.Reported(by, silent, sent, now)
}

// silences appends to dst whom this node does not hear.
func (n *Node) silences(dst []transport.Silence) []transport.Silence {
	n.hearing.mu.Lock()
	defer n.hearing.mu.Unlock()
	for _, s := range n.hearing.contacts.Silent(nil, n.members.Load().others, transport.MaxSilent, n.clock.Exact()) {
		dst = append(dst, transport.Silence(s))
	}
	return dst
}

// lookAround notes whether members differ in their rings. It looks again once that is noted: a frame that came between would be forgotten.
func (n *Node) lookAround(m *members, now int64) (differs bool) {
	differs = n.differs(m, now)
	n.hearing.unequal.Store(differs)
	if !differs && n.differs(m, now) {
		n.hearing.unequal.Store(true)
		return true
	}
	return differs
}

// differs tells whether a member that is connected, in whatever direction, goes by another ring (R8b).
func (n *Node) differs(m *members, now int64) bool {
	view := m.Ring.Fingerprint()
	for _, p := range m.peers {
		if p != nil && now < p.source.LeaseUntil.Load() && p.view.Load() != view {
			return true
		}
	}
	return n.holders.differ(m, now, int64(n.bound))
}

// gone tells that nothing that a member holds can be served a Bound from now (R9): it has said that it stops, or was silent for long enough.
func (n *Node) gone(m *members, id string, now int64) bool {
	p := m.peer(id)
	return p == nil || p.Leaving() || n.reach(m, id, now) == invalidation.Gone
}

// reach tells what is known of a member that does not answer.
func (n *Node) reach(m *members, id string, now int64) invalidation.Reach {
	if n.cfg.Bound < 0 || n.cutOff(m, now) != nil {
		return invalidation.Unknown
	}
	h := &n.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	if f, ok := h.found[id]; ok && now-f.at < int64(tick/2) {
		return f.reach
	}
	r := h.contacts.Reach(id, m.others, func(reached []string) bool {
		return m.Majority(func(id string) bool { return id == m.Me().ID || slices.Contains(reached, id) }, now)
	}, now)
	h.found[id] = finding{at: now, reach: r}
	return r
}

// relays returns up to three members that can pass something on to a member.
func (n *Node) relays(m *members, to string, now int64) []*peer {
	const most = 3
	n.hearing.mu.Lock()
	defer n.hearing.mu.Unlock()
	var via []*peer
	for _, p := range m.peers {
		if p != nil && p.ID() != to && len(via) < most && p.Ready() && n.hearing.contacts.Hears(p.ID(), to, now) {
			via = append(via, p)
		}
	}
	return via
}

var (
	errContested = errors.New("nearcache: another process has this node's ID")
	errFenced    = errors.New("nearcache: this node hears no majority of the members")
)

// cutOff says why others may own what this node takes for its own, or for another's, without its knowledge; nil: they do not.
func (n *Node) cutOff(m *members, now int64) error {
	if m.contested {
		return errContested
	}
	if t := n.standing.tenure.Load(); t.Fenced || now >= t.Fence {
		n.tickDoubt(now) // it may have been heard since
		if n.standing.tenure.Load().Fenced {
			return errFenced
		}
	}
	return nil
}
