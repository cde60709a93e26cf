package sim

import (
	"time"

	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/ring"
)

// partialError says what an Invalidate could not reach (PartialError).
type partialError struct {
	members  []string
	staleFor time.Duration
}

// telling collects what an invalidation could not reach, and counts what is under way.
type telling struct {
	n        *node
	pending  int
	deadline int64 // the call returns by then
	failed   []string
	closed   bool
	done     func(*partialError)
}

func (n *node) newTelling(done func(*partialError)) *telling {
	d := 3*n.w.cfg.Bound + n.w.cfg.PeerTimeout
	t := &telling{n: n, pending: 1, deadline: n.exact() + int64(d), done: done}
	return t
}

// end counts one request out. The last one ends the call.
func (t *telling) end() {
	if t.pending--; t.pending > 0 || t.closed {
		return
	}
	t.closed = true
	var err *partialError
	if len(t.failed) > 0 {
		err = &partialError{members: t.failed, staleFor: t.n.w.cfg.TTL}
	}
	t.done(err)
}

// until returns done with the end of the call's context: it is called once, by then at the latest.
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

// invalidate is Cache.Invalidate of one key. done is called when it returns.
func (n *node) invalidate(key string, done func(*partialError)) {
	if !n.members.known {
		n.after(time.Millisecond, func() { n.invalidate(key, done) }) // keyspace.mutable
		return
	}
	began := n.exact()
	t := n.newTelling(func(err *partialError) {
		remembered := n.w.cfg.Bound
		if err != nil {
			remembered = err.staleFor
			n.repay(n.exact())
		}
		n.own.invalidated(key, began, n.exact(), remembered)
		n.forget(key)
		done(err)
	})
	if n.w.cfg.Rules.Targets {
		n.tellAllTargets(t, key, "")
	} else {
		n.tell(t, n.members, key)
	}
	t.end()
}

// tell passes the key to its owner, and where that does not answer, or lately did not, to those who stand in for it (keyspace.tell, R8).
func (n *node) tell(t *telling, m *members, key string) {
	target := m.Ring.Owner(ring.Hash(keyspaceName, key))
	switch {
	case target < 0:
		return
	case target == m.Self:
		n.drop(key)
		return
	}
	t.pending++
	n.tellOwner(m, target, key, 2, t.until(func(err error) {
		if err != nil {
			t.failed = append(t.failed, m.Members[target].ID)
			n.owed.owe(m.Members[target].ID, key, n.exact()+int64(n.w.cfg.TTL))
		}
		if (err != nil || m.peers[target].troubled(n)) && n.w.cfg.Rules.StandIns {
			n.tellStandIns(t, m, key)
		}
		t.end()
	}))
}

// tellOwner asks one member to drop a key, attempts times (keyspace.tellOwner).
func (n *node) tellOwner(m *members, target int, key string, attempts int, done func(error)) {
	p := m.peers[target]
	n.reachable(p, func(ok bool) {
		if !ok {
			done(errDown)
			return
		}
		n.tellOnce(m, target, key, false, func(err error) {
			if err != nil && attempts > 1 {
				n.tellOwner(m, target, key, attempts-1, done)
				return
			}
			done(err)
		})
	})
}

// tellOnce is keyspace.tellOnce; an empty key is the whole keyspace.
func (n *node) tellOnce(m *members, target int, key string, forwarded bool, done func(error)) {
	req := &request{op: opInvalidate, key: key, all: key == "", forwarded: forwarded, budget: 3 * int64(n.w.cfg.Bound)}
	n.exchange(m, target, req, func(rep *reply, err error) {
		if err == nil && rep.status != statusOK {
			err = errDown
		}
		done(err)
	})
}

const standIns = 2

// tellStandIns tells those who may have stood in for an owner (keyspace.tellStandIns).
func (n *node) tellStandIns(t *telling, m *members, key string) {
	list := m.Ring.Prefer(nil, ring.Hash(keyspaceName, key), 1+standIns)
	for _, i := range list[min(1, len(list)):] {
		if i == m.Self {
			n.drop(key)
			continue
		}
		t.pending++
		n.tellOnce(m, i, key, true, t.until(func(error) { t.end() }))
	}
}

// drop invalidates a key on this node (keyspace.drop).
func (n *node) drop(key string) {
	eff := n.shard.Invalidate(key, 0, n.exact())
	n.w.note(key, "%s drops, seq %d", n.id, n.log.Seq())
	n.forget(key)
	n.carryOut(eff)
	n.wake()
}

// dropAll invalidates the whole keyspace on this node (keyspace.dropAll).
func (n *node) dropAll() {
	eff := sorted(n.shard.Clear(n.exact()))
	n.log.Append(invalidation.Event{Keyspace: keyspaceName, All: true})
	n.forgetAll()
	n.carryOut(eff)
	n.wake()
}

// invalidateAll is Cache.InvalidateAll.
func (n *node) invalidateAll(done func(*partialError)) {
	if !n.members.known {
		n.after(time.Millisecond, func() { n.invalidateAll(done) })
		return
	}
	began, m := n.exact(), n.members
	t := n.newTelling(func(err *partialError) {
		remembered := n.w.cfg.Bound
		if err != nil && n.w.cfg.Rules.OwnAll {
			remembered = err.staleFor
		}
		n.own.allInvalidated(began, n.exact(), remembered)
		n.dropAll()
		done(err)
	})
	for target := range m.Members {
		if target == m.Self {
			continue
		}
		t.pending++
		n.tellAll(m, target, t.until(func(err error) {
			if err != nil {
				t.failed = append(t.failed, m.Members[target].ID)
				n.owed.owe(m.Members[target].ID, "", n.exact()+int64(n.w.cfg.TTL))
			}
			t.end()
		}))
	}
	t.end()
}

func (n *node) tellAll(m *members, target int, done func(error)) {
	n.reachable(m.peers[target], func(ok bool) {
		if !ok {
			done(errDown)
			return
		}
		n.tellOnce(m, target, "", false, done)
	})
}

// serveInvalidate drops what a peer says has changed, and passes it on once where another member owns it (Node.serveInvalidate, R8).
func (n *node) serveInvalidate(l *call, rep *reply) bool {
	rep.status = statusOK
	req := &l.req
	switch {
	case req.all:
		n.dropAll()
		return true
	case req.relay != "":
		n.relay(l)
		return false
	}
	n.drop(req.key)
	m := n.members
	o := m.Ring.Owner(ring.Hash(keyspaceName, req.key))
	if req.forwarded || !m.known || o < 0 || o == m.Self || !n.w.cfg.Rules.Forward {
		return true
	}
	answered := false
	answer := func(err error) {
		if answered {
			return
		}
		answered = true
		out := reply{status: statusOK}
		if err != nil {
			out.status = statusUnconfirmed
		}
		l.answer(&out)
	}
	n.after(n.w.cfg.Bound, func() { answer(errTimeout) })
	n.tellOnce(m, o, req.key, true, answer)
	return false
}

// setKey is Cache.Set: done gets nil when the value is stored, or a later version is.
func (n *node) setKey(key, value string, version uint64, done func(*partialError)) {
	end := func(err *partialError) {
		if n.w.cfg.Rules.OwnSet {
			remembered := n.w.cfg.Bound
			if err != nil {
				remembered = err.staleFor
			}
			n.own.wrote(key, version, n.exact(), remembered)
		}
		n.forget(key)
		done(err)
	}
	n.setAtOwner(key, value, version, 3, func(member string, err *partialError) {
		if err != nil || !n.w.cfg.Rules.SetTargets {
			end(err)
			return
		}
		t := n.newTelling(end)
		n.tellAllTargets(t, key, member)
		t.end()
	})
}

// setAtOwner finds the owner and stores the value there (Cache.setAtOwner).
func (n *node) setAtOwner(key, value string, version uint64, attempts int, done func(member string, err *partialError)) {
	r := n.route(key)
	fail := func() { done("", &partialError{staleFor: n.w.cfg.TTL}) }
	if !n.members.known || r.owner < 0 || attempts == 0 {
		fail()
		return
	}
	req := &request{op: opSet, key: key, value: value, version: version, ttl: int64(n.w.cfg.TTL)}
	ask := func(ok bool) {
		if !ok {
			fail()
			return
		}
		n.exchange(r.m, r.owner, req, func(rep *reply, err error) {
			switch {
			case err != nil:
				fail()
			case rep.status == statusStored || rep.status == statusNotStored:
				done(r.m.Members[r.owner].ID, nil)
			default:
				n.after(time.Duration(n.w.between(1, int64(tick))), func() { n.setAtOwner(key, value, version, attempts-1, done) })
			}
		})
	}
	if p := r.peer(); p != nil {
		n.reachable(p, ask)
		return
	}
	ask(true)
}
