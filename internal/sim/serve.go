package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
)

// asker is who waits for the answer to a request, as the root's.
type asker interface {
	holder() string
	nearLife() int64
	since() int64
	keyOf() string
	answer(rep *reply)
}

// remoteAsker is a request of a peer.
type remoteAsker struct {
	l     *call
	asked int64
}

func (a *remoteAsker) holder() string    { return holderOf(a.l.c.from) }
func (a *remoteAsker) nearLife() int64   { return a.l.req.near }
func (a *remoteAsker) since() int64      { return a.asked }
func (a *remoteAsker) keyOf() string     { return a.l.req.key }
func (a *remoteAsker) answer(rep *reply) { a.l.answer(rep) }

func holderOf(n *node) string { return fmt.Sprintf("%s/%d", n.id, n.incarnation) }

// localAsker is a flight of this node.
type localAsker struct {
	x     *fetch
	near  int64
	asked int64
}

func (a *localAsker) holder() string  { return a.x.n.id }
func (a *localAsker) nearLife() int64 { return a.near }
func (a *localAsker) since() int64    { return a.asked }
func (a *localAsker) keyOf() string   { return a.x.f.Key }

// answer wakes the flight's goroutine.
func (a *localAsker) answer(rep *reply) {
	x, out := a.x, *rep
	x.n.soon(func() {
		x.w = nil
		if x.ctx.Err() != nil {
			if out.status == statusLease {
				x.token = out.token
				x.release(shard.Abandoned)
			}
			x.abandoned()
			return
		}
		out.incarnation = x.n.incarnation
		x.settle(&out)
		x.run()
	})
}

// serve answers a request of a peer, or returns false: the answer follows (Node.Serve).
func (n *node) serve(l *call, rep *reply) bool {
	req := &l.req
	if n.draining && (req.op == opGet || req.op == opPeek || req.op == opSet) {
		rep.status = statusNotOwner
		return true
	}
	switch req.op {
	case opInvalidate:
		return n.serveInvalidate(l, rep)
	case opUpdate:
		n.serveUpdate(l, rep)
		return true
	case opGet:
		return n.resident(req, rep, n.route(req.key), true) || n.acquire(req, rep, &remoteAsker{l: l, asked: n.exact()})
	default:
		n.answer(req, rep, &remoteAsker{l: l})
		return true
	}
}

// answer answers the requests that never wait (keyspace.serve). asker is nil where it is this node itself.
func (n *node) answer(req *request, rep *reply, asker *remoteAsker) {
	switch req.op {
	case opFill:
		n.fill(req, rep, asker != nil)
	case opHold:
		if req.key == "" {
			n.carryOut(sorted(n.shard.HeldAll(asker.holder(), n.exact())))
			rep.status = statusOK
			return
		}
		n.carryOut(n.shard.Hold(req.key, req.token, asker, n.exact()))
		rep.status = statusOK
	case opRelease:
		n.carryOut(n.shard.Release(req.key, req.token, req.cause, errLoad, n.exact()))
		rep.status = statusOK
	case opSet:
		n.set(req, rep)
	case opPermit:
		n.permit(req, rep)
	case opPeek:
		n.peekFormer(asker.l, rep)
	case opHandOver:
		n.takeOver(req, rep, asker.l.c.from)
	default:
		rep.status = statusOK
	}
}

// resident answers a Get from the shard (keyspace.resident).
func (n *node) resident(req *request, rep *reply, r route, remote bool) bool {
	if !r.owns() {
		if req.spread {
			n.serveSpread(req, rep, r)
			return true
		}
		if n.heirloom(req, rep, r, remote) {
			return true
		}
		if !req.standIn && !n.inherits(r) {
			rep.status = statusNotOwner
			return true
		}
	}
	if req.fresh {
		return false
	}
	now := n.exact()
	n.grant(req, r, remote, now)
	v, seq := n.shard.Get(req.key, now)
	if v == nil {
		return false
	}
	n.w.checker.fresh(n, req.key, string(v.Bytes))
	n.hit(rep, v, seq, req.near, now)
	return true
}

// serveSpread answers a Get from what a replica has (keyspace.serveSpread).
func (n *node) serveSpread(req *request, rep *reply, r route) {
	rep.status = statusNotOwner
	if !n.keeps(r.m, r.hash) {
		return
	}
	now := n.exact()
	if v, seq := n.shard.Get(req.key, now); v != nil {
		n.hit(rep, v, seq, 0, now)
	}
}

// grant puts the interest of a peer on record (keyspace.grant, R14).
func (n *node) grant(req *request, r route, remote bool, now int64) {
	if remote && req.near > 0 && n.w.cfg.Rules.Interest {
		n.interest.Grant(r.hash, time.Duration(req.near+n.spareFor(req)), now)
	}
}

func (n *node) hit(rep *reply, v *shard.Value, seq uint64, near, now int64) {
	rep.status = statusHit
	rep.seq = seq
	rep.age = now - v.LoadedAt
	rep.ttl = n.shard.FreshUntil(v) - now
	rep.near = min(near, rep.ttl)
	if v.Vouched != 0 && n.standing.tenure.CappedAt(now) {
		rep.near = min(rep.near, int64(n.w.cfg.Bound))
	}
	rep.version, rep.mark, rep.absent = v.Version, v.Mark, v.Absent
	rep.value = string(v.Bytes)
	n.lasting(rep, v.Lasts(), now)
}

// stale fills in a value past its lifetime, which nobody keeps (stale).
func (n *node) stale(rep *reply, v *shard.Value, now int64) {
	rep.status = statusStale
	rep.age, rep.version, rep.value, rep.spare = now-v.LoadedAt, v.Version, string(v.Bytes), true
	rep.mark = v.Mark
	n.w.checker.servesStale(n, v, rep.lapsed)
}

// acquire answers a Get that found nothing resident (keyspace.acquire).
func (n *node) acquire(req *request, rep *reply, a asker) bool {
	now := n.exact()
	r := n.route(req.key)
	if !r.owns() && !req.standIn {
		rep.status = statusNotOwner
		return true
	}
	if _, remote := a.(*remoteAsker); remote && n.w.cfg.Rules.Interest {
		n.interest.Grant(r.hash, time.Duration(max(req.life, req.budget+a.nearLife()+n.spareFor(req))), now)
	}
	ask := shard.Ask{
		Holder: a.holder(), Waiter: a, Life: req.life, Until: now + req.budget, Fresh: req.fresh, View: r.m.number,
	}
	if !ask.Fresh {
		n.inherit(r, req.key, now)
	}
	res := n.shard.Acquire(req.key, ask, now)
	if res.Kind == shard.Waiting {
		return false
	}
	if res.Kind == shard.Lease {
		n.w.note(req.key, "%s leases to %s, token %d", n.id, a.holder(), res.Token.Number)
	}
	n.result(rep, res, a.nearLife(), now)
	return true
}

// result turns what the shard says into an answer (keyspace.result).
func (n *node) result(rep *reply, res shard.Result, near, now int64) {
	rep.lapsed = res.Lapsed
	switch res.Kind {
	case shard.Hit:
		n.hit(rep, res.Value, res.Seq, near, now)
		if res.Uncached {
			rep.uncached, rep.near = true, 0
		}
	case shard.Stale:
		n.stale(rep, res.Value, now)
	case shard.Lease:
		if res.Value != nil {
			n.stale(rep, res.Value, now)
		}
		rep.status, rep.token, rep.seq = statusLease, res.Token, res.Seq
	case shard.Failed:
		rep.status = statusFailed
		rep.failure, _ = res.Failure.(error)
	case shard.TimedOut:
		rep.status, rep.failure = statusFailed, errWaited
	case shard.Moved:
		rep.status = statusNotOwner
	case shard.Held:
		rep.status = statusHeld
	case shard.Busy, shard.Waiting:
		rep.status = statusBusy
	}
}

// carryOut does what an operation of the shard left to do (keyspace.carryOut).
func (n *node) carryOut(eff shard.Effect) {
	for _, rv := range eff.Revoked {
		n.revoke(rv)
	}
	now := n.exact()
	for _, wk := range eff.Wakes {
		to := wk.Waiter.(asker)
		var rep reply
		n.result(&rep, wk.Result, to.nearLife(), now)
		rep.waited = now - to.since()
		to.answer(&rep)
	}
}

// sorted puts an effect on many keys into an order of its own: that of a map is no function of the seed.
func sorted(eff shard.Effect) shard.Effect {
	slices.SortStableFunc(eff.Revoked, func(a, b shard.Revoked) int { return strings.Compare(a.Key, b.Key) })
	slices.SortStableFunc(eff.Wakes, func(a, b shard.Wake) int {
		return strings.Compare(a.Waiter.(asker).keyOf(), b.Waiter.(asker).keyOf())
	})
	return eff
}

// fill stores what a lease holder loaded (keyspace.fill).
func (n *node) fill(req *request, rep *reply, remote bool) {
	now := n.exact()
	r := n.route(req.key)
	n.grant(req, r, remote, now)
	v := n.value(req, r, now)
	eff := n.shard.Fill(req.key, req.token, v, now)
	if eff.Outcome == shard.Rejected && !n.w.cfg.Rules.Tokens {
		n.muted = true // as if nothing had happened since the lease was granted
		eff = n.shard.Set(req.key, v, shard.Cond{View: r.m.number}, now)
		n.muted = false
	}
	n.carryOut(eff)
	n.w.note(req.key, "%s fill %s token %d: %d", n.id, req.value, req.token.Number, eff.Outcome)
	rep.seq, rep.version = eff.Seq, req.version
	switch eff.Outcome {
	case shard.Stored:
		n.copied(req.key, eff.Until)
		rep.status = statusAccepted
		rep.ttl = eff.Until - now
		rep.near = min(req.near, rep.ttl)
		n.lasting(rep, eff.Lasts, now)
	case shard.Passed:
		rep.status, rep.uncached = statusAccepted, true
	default:
		rep.status = statusRejected
	}
}

// value builds an entry from a Fill or Set (keyspace.value).
func (n *node) value(req *request, r route, now int64) shard.Value {
	loaded := now - req.age
	ttl := req.ttl
	if n.capped(r, now) {
		ttl = min(ttl, int64(n.w.cfg.Bound))
	}
	v := shard.Value{
		LoadedAt: loaded, Version: req.version, Soft: loaded + ttl, Hard: loaded + ttl, Absent: req.absent, Bytes: []byte(req.value), Mark: markOf(req.key),
	}
	if ttl == req.ttl && !v.Absent {
		v.Hard += req.stale
	}
	return v
}

// set stores a value without a lease (keyspace.set).
func (n *node) set(req *request, rep *reply) {
	now := n.exact()
	r := n.route(req.key)
	if !r.owns() || n.heirs != nil {
		rep.status = statusNotOwner
		return
	}
	eff := n.shard.Set(req.key, n.value(req, r, now), shard.Cond{View: r.m.number}, now)
	n.wake()
	n.forget(req.key)
	n.carryOut(eff)
	n.w.note(req.key, "%s set %s: %d", n.id, req.value, eff.Outcome)
	switch eff.Outcome {
	case shard.Stored, shard.Passed:
		_, version, _ := parse(req.value)
		n.w.checker.stored(req.key, version)
		n.copied(req.key, eff.Until)
		rep.status = statusStored
	case shard.Outdated:
		rep.status = statusNotOwner
	default:
		rep.status = statusNotStored
	}
}

// ended forgets those who wait through a connection that ended (Node.Gone, subscription.Close).
func (n *node) ended(c *conn) {
	through := func(w any) bool {
		a, ok := w.(*remoteAsker)
		return ok && a.l.c == c
	}
	n.shard.Forget(through)
	n.shard.AskerGone(through, n.exact()+int64(time.Second))
	n.holders.remove(c.life, n.exact())
	n.holders.lost(c.from, n.exact())
	c.stream.sub.Close()
	n.streams = slices.DeleteFunc(n.streams, func(s *stream) bool { return s == c.stream })
}
