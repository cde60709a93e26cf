package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/ring"
)

// retryEvery is how long a target has for its confirmation before it is told again, and through others.
const retryEvery = 120 * time.Millisecond

// targets returns the members that an invalidation of a key is for: the owner, those by the rings of the last W, where the owner is
// suspect the next two, and where somebody has another view everybody (R8, R8b). Stand-ins need not confirm: see tellStandIns.
func (n *node) targets(key string) []string {
	h, m, now := ring.Hash(keyspaceName, key), n.members, n.exact()
	var ids []string
	add := func(id string) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if o := m.Ring.Owner(h); o >= 0 {
		add(m.Members[o].ID)
	}
	if n.w.cfg.Rules.Targets {
		n.pastOwners(key, now, add)
	}
	if n.w.cfg.Rules.Unequal && n.differs(now) {
		for _, id := range n.w.ids {
			if p := n.peers[id]; p != nil || now-n.renewals[id] < int64(n.w.cfg.Bound) && n.renewals[id] != 0 {
				add(id)
			}
		}
	}
	return ids
}

// round is an invalidation on its way to its targets (R8, R9).
type round struct {
	t      *telling
	n      *node
	key    string
	left   []string // targets that have not confirmed
	number int
	fenced bool
	over   bool
}

// tellAllTargets tells everybody who may hold what is invalidated, again and through others until they have confirmed, or cannot hold it any
// more, or the call's time is up.
func (n *node) tellAllTargets(t *telling, key, but string) {
	r := &round{t: t, n: n, key: key, left: n.targets(key)}
	t.pending++
	r.left = slices.DeleteFunc(r.left, func(id string) bool { return id == but })
	if i := slices.Index(r.left, n.id); i >= 0 {
		n.drop(key)
		r.left = slices.Delete(r.left, i, i+1)
	}
	if n.w.cfg.Rules.StandIns && n.suspicious(key) {
		n.tellStandIns(t, n.members, key)
	}
	r.next()
}

// suspicious tells whether the key's owner does not answer, or lately did not.
func (n *node) suspicious(key string) bool {
	o := n.members.Ring.Owner(ring.Hash(keyspaceName, key))
	return o >= 0 && o != n.members.Self && (!n.members.peers[o].ready() || n.members.peers[o].troubled(n))
}

func (r *round) next() {
	n := r.n
	if r.over {
		return
	}
	r.fenced = r.fenced || n.fenced(n.exact()) && n.w.cfg.Rules.Fence
	r.left = slices.DeleteFunc(r.left, func(id string) bool { return n.w.cfg.Rules.Silent && !r.fenced && n.goneSilent(id) })
	switch {
	case len(r.left) == 0:
		r.end()
		return
	case n.exact() >= r.t.deadline:
		for _, id := range r.left {
			r.t.failed = append(r.t.failed, id)
			n.owed.owe(id, r.key, n.exact()+int64(n.w.cfg.TTL))
		}
		r.end()
		return
	}
	for _, id := range slices.Clone(r.left) {
		r.tell(id)
	}
	r.number++
	n.after(retryEvery, r.next)
}

// tell tells a target, from the second time on also through others.
func (r *round) tell(id string) {
	n := r.n
	req := request{op: opInvalidate, key: r.key, budget: 3 * int64(n.w.cfg.Bound)}
	if p := n.peers[id]; p != nil {
		p.start(req, func(rep *reply, err error) {
			if err != nil {
				n.unanswered(p)
			}
			r.confirmed(id, rep, err)
		})
	}
	if r.number == 0 || !n.w.cfg.Rules.Relay {
		return
	}
	req.relay = id
	for _, via := range n.w.ids {
		if p := n.peers[via]; p != nil && via != id && p.ready() {
			p.start(req, func(rep *reply, err error) { r.confirmed(id, rep, err) })
		}
	}
}

func (r *round) confirmed(id string, rep *reply, err error) {
	if err != nil || rep.status != statusOK || r.over {
		return
	}
	r.left = slices.DeleteFunc(r.left, func(o string) bool { return o == id })
	if len(r.left) == 0 {
		r.end()
	}
}

func (r *round) end() {
	r.over = true
	if r.fenced && len(r.t.failed) == 0 {
		r.t.failed = append(r.t.failed, r.n.id)
	}
	r.t.end()
}

// relay passes an invalidation on to the member that it is for.
func (n *node) relay(l *call) {
	p := n.peers[l.req.relay]
	req := l.req
	req.relay = ""
	out := reply{status: statusUnconfirmed}
	if p == nil {
		n.soon(func() { l.answer(&out) })
		return
	}
	p.start(req, func(rep *reply, err error) {
		if err == nil {
			out.status = rep.status
		}
		l.answer(&out)
	})
}
