package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
)

// update is one Update of one key under way, as the root's (R13).
type update struct {
	n       *node
	m       *members // whose confirmation it has
	key     string
	number  uint64
	ends    int64    // no member's hold ends before
	skipped []string // members that were gone
}

// updateKey is Cache.Update: it holds the key everywhere, writes it, and releases it.
func (n *node) updateKey(key string) {
	n.w.checker.begins(key)
	u := &update{n: n, key: key, number: n.tokens.Add(1), ends: n.exact() + int64(n.window()-n.window()/20)}
	until := n.exact() + int64(n.w.cfg.Bound)
	n.joined(func() {
		u.m = n.members
		if n.exact() >= until || u.unstable() || !n.holdKeys([]string{key}, u.here(), n.window()) {
			u.release()
			return
		}
		pending, failed := 1, false
		end := func(held bool) {
			pending--
			failed = failed || !held
			switch {
			case pending > 0:
			case failed || u.unstable():
				u.release()
			default:
				if len(u.skipped) > 0 {
					u.ends -= int64(invalidation.Life(n.w.cfg.Bound))
				}
				u.commit()
			}
		}
		for _, id := range n.others() {
			pending++
			u.holdAt(id, until, end)
		}
		end(true)
	})
}

// here is the name of the hold on this node (update.here).
func (u *update) here() invalidation.HoldID {
	return invalidation.HoldID{Holder: u.n.id, Number: u.number}
}

// holdAt holds the key on a member. It asks again until that is in vain (update.holdAt).
func (u *update) holdAt(id string, until int64, end func(held bool)) {
	n := u.n
	u.tell(id, n.window(), func(err error) {
		switch now := n.exact(); {
		case err == nil:
			end(true)
		case n.gone(id, now):
			if p := n.peers[id]; p != nil && !p.leaving {
				u.skipped = append(u.skipped, id)
			}
			end(true)
		case now >= until:
			end(false)
		default:
			n.after(10*time.Millisecond, func() { u.holdAt(id, until, end) })
		}
	})
}

// tell tells a member that the key is held for a time; 0: no longer (update.tell).
func (u *update) tell(id string, life time.Duration, done func(error)) {
	n, p := u.n, u.n.peers[id]
	if p == nil {
		done(errDown)
		return
	}
	n.reachable(p, func(ok bool) {
		if !ok {
			done(errDown)
			return
		}
		n.pass(p, request{
			op: opUpdate, keys: []string{u.key}, token: shard.Token{Incarnation: n.incarnation, Number: u.number}, life: int64(life), budget: int64(n.w.cfg.Bound),
		}, done)
	})
}

// unstable tells whether the members that confirmed may not be all that matter (update.unstable).
func (u *update) unstable() bool {
	return u.n.members != u.m || u.n.wide(u.n.exact())
}

// commit runs the transaction, which may take longer than the hold lasts, and ignore that (update.commit).
func (u *update) commit() {
	n, w := u.n, u.n.w
	d := w.between(int64(time.Millisecond), int64(20*time.Millisecond))
	if w.chance(0.05) {
		d += w.between(0, int64(n.window())*3/2)
	}
	if left := u.ends - n.exact(); d > left && w.chance(0.5) {
		n.after(time.Duration(left), u.release) // it was rolled back
		return
	}
	version, began := 0, int64(0)
	w.after(w.between(0, d), func() {
		version, began = w.origin.write(u.key), w.now
		w.note(u.key, "%s commits version %d in an Update", n.id, version)
		if n.exact() < u.ends {
			w.checker.updates(u.key, version, u.skipped)
		}
	})
	w.after(d, func() { n.event(func() { u.committed(ack{began: began, version: version}) }) })
}

// committed invalidates what may have been kept since the hold (the end of update.commit).
func (u *update) committed(a ack) {
	n := u.n
	end := func(err *partialError) {
		n.w.checker.begins(u.key) // it ends twice
		n.w.returned(n, u.key, a, err)
		if len(u.skipped) == 0 || !n.w.cfg.Rules.Linger {
			u.release()
			return
		}
		n.after(invalidation.Life(n.w.cfg.Bound), u.release) // what those have loaded that were not told is dead then
	}
	if n.exact() < u.ends && !u.unstable() && n.w.cfg.Lag == 0 {
		n.w.checker.sees(u.key, a.version)
		n.own.Invalidated([]string{u.key}, n.exact(), n.exact(), n.remembered(nil))
		end(nil)
		return
	}
	n.invalidate(u.key, false, true, end)
}

// release ends the hold everywhere (update.release).
func (u *update) release() {
	n := u.n
	n.w.checker.released(u.key)
	n.holds.Release([]string{u.key}, u.here())
	if u.m == nil {
		return
	}
	for _, id := range n.others() {
		u.tell(id, 0, func(error) {})
	}
}

// serveUpdate holds keys for a member, or frees them (Node.serveUpdate).
func (n *node) serveUpdate(l *call, rep *reply) {
	req, id := &l.req, invalidation.HoldID{Holder: holderOf(l.c.from), Number: l.req.token.Number}
	rep.status = statusOK
	switch {
	case req.life <= 0:
		n.holds.Release(req.keys, id)
	case !n.holdKeys(req.keys, id, time.Duration(req.life)):
		rep.status = statusFailed
	}
}

// holdKeys drops the keys and keeps nothing of them for a time (keyspace.hold).
func (n *node) holdKeys(keys []string, id invalidation.HoldID, life time.Duration) bool {
	if !n.holds.Hold(keys, id, n.exact()+int64(life)) {
		return false
	}
	n.dropKeys(keys, false)
	return true
}

// isHeld tells whether a key is held here, as far as this node obeys that.
func (n *node) isHeld(key string) bool { return n.w.cfg.Rules.Holds && n.holds.Held(key) }

// loadHeld loads a key that is held, when it is this flight's turn (fetch.loadHeld).
func (x *fetch) loadHeld() {
	x.n.turns.take(x.f.Key, x, func() {
		x.waits = false
		if x.n.w.cfg.Rules.Turns {
			x.f.Close()
		}
		x.loadAlone()
	})
}

// turns lets one load of a held key run at a time (turns).
type turns map[string][]*turn

type turn struct {
	x     *fetch
	begin func()
}

// take calls begin when it is x's turn: now, or when those before it are over.
func (t turns) take(key string, x *fetch, begin func()) {
	t[key] = append(t[key], &turn{x, begin})
	x.waits, x.ends = true, func() { t.leave(key, x) }
	if t[key][0].x == x {
		begin()
	}
}

// leave ends a turn, or the wait for it.
func (t turns) leave(key string, x *fetch) {
	had := t[key][0].x == x
	t[key] = slices.DeleteFunc(t[key], func(o *turn) bool { return o.x == x })
	if had && len(t[key]) > 0 {
		next := t[key][0]
		next.x.n.soon(func() {
			if next.x.waits {
				next.begin()
			}
		})
	}
}
