package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/membership"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/ring"
)

// telling is an invalidation on its way to all who have to hear of it, as the root's (R8, R9).
type telling struct {
	n        *node
	keys     []string // one, or none: the whole keyspace
	tags     []string // in place of keys
	soft     bool     // values stay as stale copies
	owed     *invalidation.Owed
	all      bool // everybody has to confirm (R12)
	nearOnly bool // near copies have to go, and nothing else
	silent   []string
	heirs    *ring.Ring // Node.heirs, when it was looked who has to be told
	began    int64
	deadline int64
	wide     bool
	asked    []membership.Target
	open     []errand
	but      string // who has heard of it already: the owner of a Set
	done     func(*partialError)
}

type errand struct {
	member string
	round  uint64
}

var errMoved = errors.New("the members changed")

func (n *node) newTelling(keys []string, done func(*partialError)) *telling {
	now := n.exact()
	return &telling{n: n, keys: keys, owed: n.owed, began: now, deadline: now + int64(3*n.w.cfg.Bound+n.w.cfg.PeerTimeout), done: done}
}

func (n *node) newTagTelling(t string, done func(*partialError)) *telling {
	l := n.newTelling(nil, done)
	l.tags, l.owed = []string{t}, n.owedTags
	return l
}

// tell tells all who have to hear of it, with AckAll everybody, and twice (keyspace.tell, R12).
func (t *telling) tell(ackAll bool) {
	t.all = ackAll
	if !ackAll {
		t.run()
		return
	}
	done := t.done
	t.done = func(err *partialError) {
		if err != nil || !t.n.w.cfg.Rules.AckTwice {
			done(err)
			return
		}
		again := t.n.newTelling(t.keys, nil)
		again.soft, again.tags, again.owed, again.began, again.all, again.silent, again.nearOnly = t.soft, t.tags, t.owed, t.began, true, t.silent, true
		again.done = func(err *partialError) {
			left := t.began + int64(invalidation.Life(t.n.w.cfg.Bound)) - t.n.exact()
			if err != nil || len(again.silent) == 0 || left <= 0 {
				done(err)
				return
			}
			t.n.after(time.Duration(left), func() { done(nil) })
		}
		again.run()
	}
	t.run()
}

// request makes the request that tells it (telling.request).
func (t *telling) request() request {
	req := t.n.invalidateRequest(t.keys)
	req.tags, req.copies, req.soft = t.tags, t.nearOnly, t.soft
	return req
}

// what is what a member may owe.
func (t *telling) what() []string {
	if len(t.tags) > 0 {
		return t.tags
	}
	return t.keys
}

// passOver notes that a member that is gone was not told (telling.passOver).
func (t *telling) passOver(id string) {
	if p := t.n.peers[id]; p != nil && !p.leaving {
		t.silent = append(t.silent, id)
	}
}

// run tells everybody who has to hear of it (telling.run).
func (t *telling) run() {
	m := t.n.members
	t.round(m, func() {
		if len(t.open) == 0 {
			t.wait(m)
			return
		}
		t.round(m, func() { t.wait(m) })
	})
}

// round tells those who have to hear of it, by m, and were not told before (telling.round).
func (t *telling) round(m *members, then func()) {
	n := t.n
	pending := 1
	end := func() {
		if pending--; pending == 0 {
			then()
		}
	}
	now := n.exact()
	for _, target := range t.targets(m, now) {
		switch {
		case slices.Contains(t.asked, target), target.ID == t.but:
			continue
		case target.ID != n.id && n.gone(target.ID, now):
			t.passOver(target.ID)
			continue
		}
		t.asked = append(t.asked, target)
		if target.ID == n.id {
			req := t.request()
			n.obey(&req)
			continue
		}
		pending++
		t.ask(target, end)
	}
	end()
}

// targets returns who has to be told (telling.targets, R8, R8b).
func (t *telling) targets(m *members, now int64) []membership.Target {
	n, rules := t.n, &t.n.w.cfg.Rules
	t.wide = n.wide(now)
	var all []membership.Target
	everybody := t.all || len(t.keys) == 0
	if t.wide || everybody {
		cut := n.cutOff(now) != nil
		all = append(all, membership.Target{ID: n.id, Counts: true})
		for _, id := range n.others() {
			if cut || everybody || n.peers[id].connected() {
				all = append(all, membership.Target{ID: id, Counts: true})
			}
		}
	}
	t.heirs = n.heirs
	left := func(id string) bool {
		if id == n.id {
			return t.heirs != nil && rules.Heirs
		}
		p := n.peers[id]
		return n.w.cfg.HandOver && rules.Heirs && p != nil && p.left()
	}
	suspect := func(id string) bool {
		p := n.peers[id]
		return p != nil && (!p.ready() || p.troubled(n))
	}
	for _, k := range t.keys {
		h := ring.Hash(keyspaceName, k)
		for _, target := range m.Targets(nil, h, t.copies(), suspect, left, now) {
			now := func(i int) bool { return m.Members[i].ID == target.ID }
			switch {
			case slices.ContainsFunc(all, func(o membership.Target) bool { return o.ID == target.ID }):
			case !rules.StandIns && !target.Counts, !rules.Targets && target.Counts && !slices.ContainsFunc(n.keepers(m, h), now):
			default:
				all = append(all, target)
			}
		}
	}
	return all
}

// copies is how many members are told of each key.
func (t *telling) copies() int {
	if !t.n.w.cfg.Rules.Replicas {
		return 1
	}
	return t.n.toldCopies()
}

// ask tells one member (telling.ask). What one that counts does not confirm it is owed from now on.
func (t *telling) ask(target membership.Target, end func()) {
	n := t.n
	confirmed := t.until(func(err error) {
		if err != nil && target.Counts {
			round := t.owed.Owe(target.ID, t.what(), n.exact()+int64(n.staleFor()))
			t.open = append(t.open, errand{member: target.ID, round: round})
		}
		end()
	})
	p := n.peers[target.ID]
	if p == nil {
		confirmed(errDown)
		return
	}
	n.reachable(p, func(ok bool) {
		if !ok {
			confirmed(errDown)
			return
		}
		req := t.request()
		req.forwarded = !target.Counts
		n.pass(p, req, confirmed)
	})
}

// until calls done once, by the end of the call's time at the latest.
func (t *telling) until(done func(error)) func(error) {
	over := false
	once := func(err error) {
		if !over {
			over = true
			done(err)
		}
	}
	t.n.after(time.Duration(t.deadline-t.n.exact()), func() { once(errTimeout) })
	return once
}

// wait waits until what is owed is settled (telling.wait).
func (t *telling) wait(m *members) {
	n := t.n
	now := n.exact()
	if len(t.open) > 0 {
		n.repay(now)
	}
	t.open = slices.DeleteFunc(t.open, func(e errand) bool {
		settled := t.owed.Settled(e.member, e.round)
		if settled && n.gone(e.member, now) {
			t.passOver(e.member)
		}
		return settled
	})
	cut := n.cutOff(now)
	over := now >= t.deadline
	switch {
	case !over && (n.members != m || n.heirs != t.heirs || !t.wide && n.wide(now)):
		t.run()
		return
	case n.members != m, n.heirs != t.heirs:
		cut = errMoved
	case len(t.open) == 0 && cut == nil:
		t.done(nil)
		return
	}
	if over || t.inVain(cut, now) {
		t.done(t.partial(cut))
		return
	}
	n.after(5*time.Millisecond, func() { t.wait(m) })
}

// inVain tells that a retry and a relay had their time, and that nothing can be found out (telling.inVain).
func (t *telling) inVain(cut error, now int64) bool {
	n := t.n
	if now-t.began < int64(n.w.cfg.PeerTimeout+tick) || now < int64(n.w.cfg.Bound) {
		return false
	}
	return cut != nil || slices.ContainsFunc(t.open, func(e errand) bool { return n.reach(e.member, now) == invalidation.Unknown })
}

func (t *telling) partial(cut error) *partialError {
	e := &partialError{staleFor: t.n.staleFor()}
	for _, o := range t.open {
		e.members = append(e.members, o.member)
	}
	if cut != nil {
		e.members = append(e.members, t.n.id)
	}
	return e
}
