package sim

import "context"

// What follows is the root's getmany.go.

// getMany is Cache.GetMany: a read of each key.
func (n *node) getMany(keys []string) (all []*reading) {
	var led []*fetch
	for _, key := range keys {
		g := &reading{n: n, key: key, start: n.w.now}
		all = append(all, g)
		if n.getNear(g) {
			continue
		}
		f, r, leads := n.join(key)
		g.f = f
		f.State.callers = append(f.State.callers, g)
		if leads {
			led = append(led, n.newFetch(f, r))
		}
	}
	n.leadMany(led)
	return all
}

// newFetch begins a flight's way from member to member.
func (n *node) newFetch(f *flight, r route) *fetch {
	x := &fetch{n: n, f: f, r: r, ctx: f.Context(context.Background())}
	f.State.x = x
	return x
}

// firstCall is the first request of a flight that a batch leads, and what came of it until all of the batch have their first answers.
type firstCall struct {
	target   int
	asked    bool // a peer
	detached bool // the request waits there
	rep      *reply
	err      error
}

// leadMany asks the owners and waits for their first answers (Cache.leadMany).
func (n *node) leadMany(all []*fetch) {
	pending := 1
	end := func() {
		if pending--; pending == 0 {
			n.settleMany(all)
		}
	}
	for _, x := range all {
		b := &firstCall{target: n.reader(x.r)}
		x.batch, x.spread = b, b.target != x.r.owner
		if b.target < 0 || b.target == x.r.m.Self || n.isHeld(x.f.Key) || !x.r.m.peers[b.target].ready() {
			continue
		}
		pending++
		b.asked, x.a, x.askedAt = true, n.ask(x.f, x.r.m, b.target), n.w.now
		req := n.getRequest(x.f.Key)
		req.spread = x.spread
		x.call = x.r.m.peers[b.target].start(req, func(rep *reply, err error) {
			if x.batch == nil {
				x.answered(rep, err)
				return
			}
			x.call, b.err = nil, err
			if rep != nil {
				out := *rep
				b.rep = &out
			}
			if !b.detached {
				end()
			}
		})
		x.call.detached = func() {
			b.detached = true
			end()
		}
	}
	end()
}

// settleMany judges the first answers. Leases are loaded together (Cache.settleMany).
func (n *node) settleMany(all []*fetch) {
	var leases []*fetch
	for _, x := range all {
		b := x.batch
		x.batch = nil
		switch {
		case b.asked && x.call != nil: // it waits
			if x.ctx.Err() != nil {
				x.canceled()
			}
			continue
		case b.err != nil:
			n.unanswered(x.r.m.peers[b.target])
			x.v = elsewhere
		case b.asked:
			x.settle(b.rep)
		case n.isHeld(x.f.Key):
			x.v = held
		case b.target == x.r.m.Self:
			x.a, x.askedAt = n.ask(x.f, x.r.m, b.target), n.w.now
			if !x.askLocal() {
				continue
			}
		}
		if x.v == granted {
			leases = append(leases, x)
			continue
		}
		x.run()
	}
	n.loadMany(leases)
}

// loadMany loads the keys of many leases at once (Cache.resumeMany, Cache.loadMany).
func (n *node) loadMany(all []*fetch) {
	if len(all) == 0 {
		return
	}
	for _, x := range all {
		if x.f.Over() {
			x.succeed()
		} else {
			x.relieve()
		}
	}
	n.callLoader(all, (*fetch).deliver)
	for _, x := range all {
		if x.ctx.Err() != nil {
			x.canceled()
		}
	}
}
