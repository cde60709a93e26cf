package sim

import (
	"errors"
	"slices"

	"github.com/nearcache/nearcache/invalidation"
)

// hearing is what a node knows of who hears whom (R9b), and whether anybody goes by another ring (R8b), as the root's.
type hearing struct {
	unequal  bool
	contacts *invalidation.Contacts
}

var errFenced = errors.New("this node hears no majority of the members")

// heardOf notes a renewal of a member, before it is answered (Node.heard).
func (n *node) heardOf(l *life, view uint64, now int64) {
	l.view = view
	if n.members.Ring.Index(l.member) >= 0 && view != n.members.Ring.Fingerprint() {
		n.hearing.unequal = true
	}
	n.hearing.contacts.Heard(l.member, now)
}

// silences returns whom this node does not hear (Node.silences).
func (n *node) silences() []invalidation.Silence {
	const most = 64
	return n.hearing.contacts.Silent(nil, n.others(), most, n.exact())
}

// differs tells whether a member that is connected goes by another ring (Node.differs).
func (n *node) differs(now int64) bool {
	view := n.members.Ring.Fingerprint()
	for _, p := range n.members.peers {
		if p != nil && now < p.source.LeaseUntil.Load() && p.view != view {
			return true
		}
	}
	return slices.ContainsFunc(n.holders.lives, func(l *life) bool {
		return l.view != 0 && l.view != view && now-l.renewed < int64(n.w.cfg.Bound) && n.members.Ring.Index(l.member) >= 0
	})
}

// gone tells that nothing that a member holds can be served a Bound from now (Node.gone, R9).
func (n *node) gone(id string, now int64) bool {
	p := n.peers[id]
	return p == nil || p.leaving || n.w.cfg.Rules.Silent && n.reach(id, now) == invalidation.Gone
}

// reach tells what is known of a member that does not answer (Node.reach).
func (n *node) reach(id string, now int64) invalidation.Reach {
	if n.cutOff(now) != nil {
		return invalidation.Unknown
	}
	return n.hearing.contacts.Reach(id, n.others(), func(reached []string) bool {
		return n.members.Majority(func(id string) bool { return id == n.id || slices.Contains(reached, id) }, now)
	}, now)
}

// relays returns up to three members that can pass something on to a member (Node.relays).
func (n *node) relays(to string, now int64) []*peer {
	const most = 3
	var via []*peer
	for _, p := range n.members.peers {
		if p != nil && p.id != to && len(via) < most && p.ready() && n.w.cfg.Rules.Relay && n.hearing.contacts.Hears(p.id, to, now) {
			via = append(via, p)
		}
	}
	return via
}

// cutOff says why others may own what this node takes for its own (Node.cutOff).
func (n *node) cutOff(now int64) error {
	if t := &n.standing.tenure; t.Fenced || now >= t.Fence {
		n.tickDoubt(now)
		if n.standing.tenure.Fenced {
			return errFenced
		}
	}
	return nil
}

// wide tells whether everybody has to be told (Node.wide).
func (n *node) wide(now int64) bool {
	return n.hearing.unequal && n.w.cfg.Rules.Unequal || n.members.Blurred(now) || n.cutOff(now) != nil
}

// others returns the IDs of all peers, retired ones included.
func (n *node) others() []string {
	var ids []string
	for _, id := range n.w.ids {
		if n.peers[id] != nil {
			ids = append(ids, id)
		}
	}
	return ids
}
