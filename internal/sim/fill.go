package sim

import (
	"errors"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
)

// loaded is what a loader brought back.
type loaded struct {
	value   string
	version uint64
	absent  bool
	ttl     time.Duration
	start   int64 // of the load, on the node's clock
}

// load runs the loader with a lease (fetch.load).
func (x *fetch) load() {
	x.relieve()
	x.n.callLoader([]*fetch{x}, (*fetch).deliver)
}

// loadAlone loads without a lease and stores the value nowhere (fetch.loadAlone).
func (x *fetch) loadAlone() {
	x.becomeUntold()
	x.relieve()
	x.n.callLoader([]*fetch{x}, func(x *fetch, l loaded, err error) {
		x.v = settled
		x.n.finish(x.f, result{value: l.value, tier: "alone"}, err)
		if x.ends != nil {
			x.ends()
		}
	})
}

// deliver ends a load: the owner is told, then the callers (fetch.deliver).
func (x *fetch) deliver(l loaded, err error) {
	if err != nil {
		cause := shard.LoadFailed
		if errors.Is(err, errCanceled) {
			cause = shard.Abandoned
		}
		x.release(cause)
		x.v = settled
		x.n.finish(x.f, result{}, err)
		return
	}
	x.fill(l)
}

// fill offers what was loaded to the owner and, if it took it, keeps a near copy (fetch.fill).
func (x *fetch) fill(l loaded) {
	n := x.n
	gen := x.a.fetch.Gen
	x.a = &asked{m: x.a.m, target: x.a.target, source: x.a.source, sent: n.exact(), tagPos: x.a.tagPos}
	x.a.fetch.Gen = gen
	x.f.State.current = x.a
	req := request{
		op: opFill, key: x.f.Key, token: x.token, near: int64(n.w.cfg.NearTTL), version: l.version, value: l.value,
		ttl: int64(l.ttl), age: n.exact() - l.start, absent: l.absent, stale: int64(n.w.cfg.StaleOnError),
	}
	x.giveBack(&req, func(rep *reply, err error) {
		if err == nil && rep.status == statusAccepted {
			rep.age, rep.value, rep.version, rep.absent, rep.mark = n.clock()-l.start, l.value, l.version, l.absent, markOf(x.f.Key)
			n.keep(x.f, x.a, rep)
		}
		x.v = settled
		n.finish(x.f, result{value: l.value, tier: "load"}, nil)
	})
}

// release gives the lease back without a value (fetch.release).
func (x *fetch) release(cause shard.Cause) {
	if x.token == (shard.Token{}) {
		return
	}
	x.giveBack(&request{op: opRelease, key: x.f.Key, token: x.token, cause: cause}, func(*reply, error) {})
}

func (x *fetch) giveBack(req *request, done func(*reply, error)) {
	x.n.giveBack(x.a.m, x.a.target, req, done)
}

// giveBack ends a lease by a Fill or Release, and goes on trying in the background (keyspace.giveBack).
func (n *node) giveBack(m *members, target int, req *request, done func(*reply, error)) {
	loadedAt := n.exact() - req.age
	n.exchange(m, target, req, func(rep *reply, err error) {
		if err != nil || rep.status == statusBusy {
			p, until := m.peers[target], n.exact()+n.getRequest("").life
			n.giveBackAgain(p, *req, loadedAt, 20*time.Millisecond, until, n.exact())
		}
		done(rep, err)
	})
}

func (n *node) giveBackAgain(p *peer, req request, loadedAt int64, wait time.Duration, until, met int64) {
	const maxPause = 500 * time.Millisecond
	if p == nil {
		return
	}
	n.after(wait, func() {
		now := n.exact()
		if now >= until || now-met >= int64(time.Second) {
			return
		}
		if n.peers[p.id] == nil {
			n.giveBackAgain(p, req, loadedAt, min(2*wait, maxPause), until, met)
			return
		}
		p = n.peers[p.id]
		req.age = n.exact() - loadedAt
		p.start(req, func(rep *reply, err error) {
			if err != nil || rep.status == statusBusy {
				n.giveBackAgain(p, req, loadedAt, min(2*wait, maxPause), until, now)
			}
		})
	})
}

// orphan gives back a lease that nobody waits for any more (Node.Orphan).
func (n *node) orphan(l *call, rep *reply) {
	req := &request{op: opRelease, key: l.req.key, token: rep.token, cause: shard.Abandoned}
	if i := n.members.Ring.Index(l.c.p.id); i >= 0 {
		n.giveBack(n.members, i, req, func(*reply, error) {})
		return
	}
	l.c.p.start(*req, func(*reply, error) {})
}

// exchange sends a request that never waits to a member, which may be this one (keyspace.exchange).
func (n *node) exchange(m *members, target int, req *request, done func(*reply, error)) {
	if target == m.Self {
		var rep reply
		n.answer(req, &rep, nil)
		rep.incarnation = n.incarnation
		done(&rep, nil)
		return
	}
	p := m.peers[target]
	p.start(*req, func(rep *reply, err error) {
		if err != nil {
			n.unanswered(p)
		}
		done(rep, err)
	})
}
