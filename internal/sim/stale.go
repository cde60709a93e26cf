package sim

// What follows is the root's stale.go (R17, R19).

// serveStale finishes a flight with a stale copy, whose successor this or another member loads (Cache.serveStale).
func (x *fetch) serveStale(rep *reply) verdict {
	if x.n.w.cfg.Rules.OwnStale && x.n.outdated(x.f.Key, x.a, rep) {
		return unreadable
	}
	x.n.finish(x.f, x.younger(rep), nil)
	return settled
}

// younger returns a stale copy of the owner's, or the near one where that was loaded later (Cache.younger).
func (x *fetch) younger(rep *reply) result {
	n := x.n
	if near, ok := n.nearStale(x.f.Key); ok && near.age < rep.age {
		return near
	}
	return x.staleResult(rep)
}

func (x *fetch) staleResult(rep *reply) result {
	return result{value: rep.value, tier: "stale " + x.a.m.Members[x.a.target].ID, stale: true}
}

// succeed puts a flight of its own in the place of one whose callers do not wait for the load, or not for long (fetch.succeed).
func (x *fetch) succeed() {
	x.f, _ = x.n.renewing.Join(x.f.Key, x.n.clock(), 1<<62)
	x.f.State.current, x.f.State.x = x.a, x
	x.ctx = x.f.Context(x.ctx)
	x.relieved = true
}

// relieve lets the callers of a flight whose load begins go with a stale copy, if there is one: when the load fails, or their patience is over
// (fetch.relieve).
func (x *fetch) relieve() {
	n, callers := x.n, x.f
	if n.w.cfg.StaleOnError == 0 || x.relieved || x.fresh {
		return
	}
	spare, ok := x.spare()
	if !ok {
		return
	}
	x.succeed()
	x.f.State.over = func(res result, err error) {
		if err != nil {
			res, err = spare, nil
		}
		n.finish(callers, res, err)
	}
	n.after(n.w.cfg.LoadQueueTime, func() { n.finish(callers, spare, nil) })
}

// spare returns the stale copy that may be served in place of what a load brings (fetch.spare).
func (x *fetch) spare() (result, bool) {
	if x.a != nil && x.a.spare != nil && x.a.spare.spare && !(x.n.w.cfg.Rules.OwnStale && x.n.outdated(x.f.Key, x.a, x.a.spare)) {
		return x.younger(x.a.spare), true
	}
	return x.n.nearStale(x.f.Key)
}

// nearStale returns the near copy of key that may be served as a stale one (Cache.nearStale).
func (n *node) nearStale(key string) (res result, ok bool) {
	if n.w.cfg.StaleOnError == 0 {
		return res, false
	}
	now := n.clock()
	it := n.near.Stale(key, now)
	if it == nil {
		return res, false
	}
	n.w.checker.servesNear(n, key, it.Value)
	return result{value: it.Value, tier: "stale near", stale: true, age: max(now-it.LoadedAt(), 0)}, true
}

// instead lets a near copy take the place of an error (Cache.wait).
func (n *node) instead(key string, res result, err error) (result, error) {
	if err != nil {
		if spare, ok := n.nearStale(key); ok {
			return spare, nil
		}
	}
	return res, err
}

// lasting lets the asker keep a near copy as a stale one (keyspace.lasting).
func (n *node) lasting(rep *reply, lasts bool, now int64) {
	rep.lasting = lasts && !n.standing.tenure.CappedAt(now)
}

// spareFor is how long the asker may serve a near copy of the answer as a stale one (staleFor).
func (n *node) spareFor(req *request) int64 {
	if !n.w.cfg.Rules.Spares {
		return 0
	}
	return req.stale
}
