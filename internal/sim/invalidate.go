package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/ring"
)

// partialError says what an Invalidate could not reach (PartialError).
type partialError struct {
	members  []string
	staleFor time.Duration
}

// joined waits until the members are known (keyspace.mutable).
func (n *node) joined(then func()) {
	if !n.members.known {
		n.after(time.Millisecond, func() { n.joined(then) })
		return
	}
	then()
}

// invalidate is Cache.Invalidate of one key, or Cache.Expire. done is called when it returns.
func (n *node) invalidate(key string, soft, ackAll bool, done func(*partialError)) {
	n.joined(func() {
		began := n.exact()
		t := n.newTelling([]string{key}, func(err *partialError) {
			remember := n.own.Invalidated
			if soft {
				remember = n.own.Expired
			}
			remember([]string{key}, began, n.exact(), n.remembered(err))
			n.forget(key)
			done(err)
		})
		t.soft = soft
		t.tell(ackAll)
	})
}

// invalidateTag is Cache.InvalidateTag.
func (n *node) invalidateTag(t string, ackAll bool, done func(*partialError)) {
	n.joined(func() {
		began, hashes := n.exact(), tag.Hashes([]string{t})
		n.newTagTelling(t, func(err *partialError) {
			if n.w.cfg.Rules.OwnTags {
				n.ownTags.Invalidated(hashes, began, n.exact(), n.remembered(err))
			}
			n.forgetTags(hashes)
			done(err)
		}).tell(ackAll)
	})
}

// invalidateAll is Cache.InvalidateAll.
func (n *node) invalidateAll(done func(*partialError)) {
	n.joined(func() {
		began := n.exact()
		n.newTelling(nil, func(err *partialError) {
			n.own.AllInvalidated(began, n.exact(), n.remembered(err))
			n.forgetAll()
			done(err)
		}).run()
	})
}

// expireAll tells the end of a feed's gap (keyspace.changed).
func (n *node) expireAll(done func(*partialError)) {
	n.joined(func() {
		t := n.newTelling(nil, func(err *partialError) {
			n.forgetAll()
			done(err)
		})
		t.soft = true
		t.run()
	})
}

// remembered is how long this process rejects what is older than an invalidation of its own (keyspace.remembered, R16).
func (n *node) remembered(err *partialError) time.Duration {
	if err != nil {
		return err.staleFor
	}
	return n.w.cfg.Bound + n.w.cfg.Bound/4
}

// staleFor is how long a copy may live that missed an invalidation (keyspace.staleFor).
func (n *node) staleFor() time.Duration { return n.w.cfg.TTL + n.w.cfg.StaleOnError }

// obey drops on this node what an Invalidate is about (keyspace.obey).
func (n *node) obey(req *request) {
	switch {
	case len(req.tags) > 0 && req.copies:
		n.forgetTags(tag.Hashes(req.tags))
	case len(req.tags) > 0:
		n.dropTags(req.tags)
	case req.all && req.copies:
		n.forgetAll()
	case req.all:
		n.dropAll(req.soft)
	case req.copies:
		for _, k := range req.keys {
			n.forget(k)
		}
	default:
		n.dropKeys(req.keys, req.soft)
	}
}

// dropTags invalidates tags on this node (keyspace.dropTags).
func (n *node) dropTags(tags []string) {
	hashes := tag.Hashes(tags)
	n.shard.InvalidateTags(hashes, n.exact())
	n.w.checker.drops(n, n.w.covered("", tags)...)
	n.w.note("", "%s drops %v, seq %d", n.id, tags, n.log.Seq())
	n.announce(invalidation.Event{Keyspace: keyspaceName, All: true, Tags: tags})
	n.forgetTags(hashes)
	n.wake()
}

// dropKeys invalidates keys on this node; soft: values stay as stale copies (keyspace.drop).
func (n *node) dropKeys(keys []string, soft bool) {
	invalidate := n.shard.Invalidate
	if soft {
		invalidate = n.shard.Expire
	} else {
		n.w.checker.drops(n, keys...)
	}
	for _, k := range keys {
		eff := invalidate(k, 0, n.exact())
		n.w.note(k, "%s drops, soft %v, seq %d", n.id, soft, n.log.Seq())
		n.forget(k)
		n.carryOut(eff)
	}
	n.wake()
}

// dropAll invalidates the whole keyspace on this node; soft: values stay as stale copies (keyspace.dropAll).
func (n *node) dropAll(soft bool) {
	clear := n.shard.Clear
	if soft {
		clear = n.shard.ExpireAll
	} else {
		n.w.checker.drops(n, n.w.keys...)
	}
	eff := sorted(clear(n.exact()))
	n.announce(invalidation.Event{Keyspace: keyspaceName, All: true})
	n.forgetAll()
	n.carryOut(eff)
	n.wake()
}

// serveInvalidate drops what a peer says has changed, and passes it on once where another member owns it (Node.serveInvalidate, R8).
func (n *node) serveInvalidate(l *call, rep *reply) bool {
	rep.status = statusOK
	req := &l.req
	if req.relay != "" {
		return n.serveRelay(l, rep)
	}
	n.obey(req)
	m := n.members
	by, forwarded := m.Ring, req.forwarded
	if n.heirs != nil && n.w.cfg.Rules.Heirs {
		by, forwarded = n.heirs, false
	}
	same := req.view == by.Fingerprint() && !req.relayed
	if req.all || !m.known || forwarded || req.copies || !n.w.cfg.Rules.Forward {
		return true
	}
	var owners []string
	parts := make(map[string][]string)
	for _, k := range req.keys {
		for _, o := range by.Prefer(nil, ring.Hash(keyspaceName, k), n.toldCopies()) {
			id := by.Members()[o].ID
			if id == n.id || same && !n.isBack(id) {
				continue
			}
			if parts[id] == nil {
				owners = append(owners, id)
			}
			parts[id] = append(parts[id], k)
		}
	}
	if len(owners) == 0 {
		return true
	}
	n.answerLater(l, len(owners), func(end func(error)) {
		for _, owner := range owners {
			n.forward(owner, parts[owner], req.soft, end)
		}
	})
	return false
}

// isBack tells whether a member is in another life than a window ago (Node.isBack).
func (n *node) isBack(id string) bool {
	p := n.peers[id]
	return p != nil && n.w.cfg.HandOver && p.restarted != 0 && n.exact()-p.restarted < int64(n.window())
}

// forward passes keys on to the member that owns them by this node's ring (Node.forward).
func (n *node) forward(owner string, keys []string, soft bool, end func(error)) {
	p := n.peers[owner]
	if p == nil {
		end(errDown)
		return
	}
	req := n.invalidateRequest(keys)
	req.forwarded, req.soft = true, soft
	n.pass(p, req, func(err error) {
		if err != nil && n.gone(owner, n.exact()) {
			err = nil
		}
		end(err)
	})
}

// serveRelay passes an Invalidate on to the member that it is for (Node.serveRelay).
func (n *node) serveRelay(l *call, rep *reply) bool {
	p := n.peers[l.req.relay]
	if p == nil || !p.ready() {
		rep.status = statusUnconfirmed
		return true
	}
	req := l.req
	req.relay, req.relayed, req.budget = "", true, int64(n.w.cfg.Bound)
	n.answerLater(l, 1, func(end func(error)) { n.pass(p, req, end) })
	return false
}

// answerLater does something of so many parts for a Bound at most, and answers a request then (Node.answerLater).
func (n *node) answerLater(l *call, parts int, do func(end func(error))) {
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
	n.soon(func() {
		do(func(err error) {
			if parts--; parts == 0 || err != nil {
				answer(err)
			}
		})
	})
}

// setKey is Cache.Set: done gets nil when the value is stored, or a later version is.
func (n *node) setKey(key, value string, version uint64, done func(*partialError)) {
	end := func(err *partialError) {
		if n.w.cfg.Rules.OwnSet {
			n.ownSets.wrote(key, version, n.exact(), n.remembered(err))
		}
		n.forget(key)
		done(err)
	}
	n.joined(func() {
		n.setAtOwner(key, value, version, 3, func(member string, err *partialError) {
			if err != nil || !n.w.cfg.Rules.SetTargets {
				end(err)
				return
			}
			t := n.newTelling([]string{key}, end)
			t.but = member
			t.run()
		})
	})
}

// setAtOwner finds the owner and stores the value there (Cache.setAtOwner).
func (n *node) setAtOwner(key, value string, version uint64, attempts int, done func(member string, err *partialError)) {
	r := n.route(key)
	fail := func() { done("", &partialError{staleFor: n.staleFor()}) }
	if r.owner < 0 || attempts == 0 {
		fail()
		return
	}
	req := &request{op: opSet, key: key, value: value, version: version, ttl: int64(n.w.cfg.TTL), stale: int64(n.w.cfg.StaleOnError)}
	ask := func(ok bool) {
		if !ok {
			fail()
			return
		}
		n.exchange(r.m, r.owner, req, func(rep *reply, err error) {
			switch {
			case err != nil:
				fail()
			case slices.Contains([]status{statusStored, statusNotStored}, rep.status):
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
