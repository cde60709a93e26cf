package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
	"github.com/nearcache/nearcache/ring"
)

// placeholder is the state of a flight, as the root's, and what its goroutine and its callers are in a simulation.
type placeholder struct {
	current *asked
	callers []*reading
	x       *fetch
	over    func(result, error) // is told how it ended (Flight.Await)
}

// asked is one request of a flight.
type asked struct {
	m      *members
	target int
	source *near.Source
	sent   int64
	tagPos int64
	fetch  invalidation.Fetch
	spare  *reply // the lease that was the answer, if a stale copy came with it
}

// ask makes the placeholder of a request to target (Cache.ask).
func (n *node) ask(f *flight, m *members, target int) *asked {
	a := &asked{m: m, target: target, source: &n.standing.source, sent: n.exact()}
	if p := m.peers[target]; p != nil {
		a.source = p.source
	}
	a.fetch.Gen, a.tagPos = a.source.Gen.Load(), n.near.TagPos()
	f.State.current = a
	return a
}

// reading is one Get of a caller.
type reading struct {
	n      *node
	key    string
	start  int64 // of the world's time
	f      *flight
	over   bool
	gaveUp bool
}

// get is Cache.Get and Cache.get.
func (n *node) get(key string) *reading {
	g := &reading{n: n, key: key, start: n.w.now}
	if n.getNear(g) {
		return g
	}
	f, r, leads := n.join(key)
	g.f = f
	f.State.callers = append(f.State.callers, g)
	if leads {
		n.lead(f, r)
	}
	return g
}

// getNear answers from a near copy, if there is one.
func (n *node) getNear(g *reading) bool {
	it := n.near.Get(g.key, n.clock())
	if it == nil {
		return false
	}
	n.w.nearHits++
	n.w.checker.fresh(n, g.key, it.Value)
	g.finish(result{value: it.Value, tier: "near"}, nil)
	return true
}

// leave is the end of the caller's context.
func (g *reading) leave() {
	if g.over || g.n.dead {
		return
	}
	g.gaveUp = true
	g.finish(result{}, errCanceled)
	st := &g.f.State
	for i, other := range st.callers {
		if other == g {
			st.callers = append(st.callers[:i], st.callers[i+1:]...)
			break
		}
	}
	g.f.Leave()
	if x := st.x; x != nil && x.ctx.Err() != nil {
		x.canceled()
	}
}

// join finds the key's owner and its flight (Cache.join).
func (n *node) join(key string) (*flight, route, bool) {
	now := n.clock()
	r := n.route(key)
	oldest := now - int64(n.w.cfg.Bound)
	if n.w.cfg.NearTTL > 0 && n.told(r, now) || !n.w.cfg.Rules.JoinAge {
		oldest = 0
	}
	f, leads := n.flights.Join(key, now, oldest)
	return f, r, leads
}

// finish ends a flight and wakes its callers (Flight.Finish, Flight.Wait).
func (n *node) finish(f *flight, res result, err error) {
	if f.Over() {
		return
	}
	f.Finish(res, err)
	callers, over := f.State.callers, f.State.over
	f.State.callers, f.State.over = nil, nil
	for _, g := range callers {
		g.finish(n.instead(g.key, res, err))
	}
	if over != nil {
		over(res, err)
	}
}

// lead asks the owner (Cache.lead).
func (n *node) lead(f *flight, r route) {
	x := n.newFetch(f, r)
	if n.isHeld(f.Key) {
		x.v = held
		x.run()
		return
	}
	if target := n.reader(r); target != r.owner {
		x.spread = true
		x.request(target)
		return
	}
	if r.owns() {
		x.a = n.ask(f, r.m, r.owner)
		var rep reply
		req := n.getRequest(f.Key)
		if n.resident(&req, &rep, r, false) {
			x.settle(&rep)
		}
	}
	x.run()
}

// reader returns the member that a Get asks first (keyspace.reader).
func (n *node) reader(r route) int {
	all := n.keepers(r.m, r.hash)
	if !n.w.cfg.Spread || len(all) < 2 {
		return r.owner
	}
	target := all[(r.hash+uint64(r.m.Self))%uint64(len(all))]
	if slices.Contains(all, r.m.Self) {
		target = r.m.Self
	}
	if p := r.m.peers[target]; p != nil && !p.ready() {
		return r.owner
	}
	return target
}

func (n *node) getRequest(key string) request {
	c := &n.w.cfg
	longest := int64(c.LoadTimeout + c.LoadQueueTime)
	return request{op: opGet, key: key, budget: longest, life: longest + int64(time.Second), near: int64(c.NearTTL), stale: int64(c.StaleOnError)}
}

// fetch is a flight on its way from member to member, as the root's.
type fetch struct {
	n   *node
	f   *flight
	r   route
	ctx context.Context //nolint:containedctx // the flight's own

	a       *asked
	askedAt int64 // of the world's time
	call    *call
	batch   *firstCall // of a GetMany, until its first answers are there
	w       *localAsker
	v       verdict
	token   shard.Token
	loading *loading

	untold         bool
	list           []int
	at             int
	standIn, fresh bool
	spread         bool
	waits          bool   // for its turn to load a held key
	ends           func() // that turn, or the wait for it
	relieved       bool   // its callers have a stale copy, or will have one in time
	moves          int
}

type verdict int

const (
	unknown verdict = iota
	settled
	granted
	unreadable
	elsewhere
	alone
	held
)

// run asks one member after the other until the flight is finished (fetch.run). It returns where the root's waits, and is called again with
// the verdict.
func (x *fetch) run() {
	if x.v == unknown && x.r.owner >= 0 {
		x.request(x.r.owner)
		return
	}
	switch {
	case x.v == settled:
	case x.v == held:
		x.loadHeld()
	case x.v == granted && x.f.Over():
		x.succeed()
		x.load()
	case x.v == granted:
		x.load()
	case x.spread:
		x.spread = false
		x.request(x.r.owner)
	case x.v == unreadable && !x.fresh:
		x.fresh = true
		x.request(x.a.target)
	case x.v == unreadable, x.v == alone:
		x.loadAlone()
	default:
		target := x.next()
		if target < 0 {
			x.loadAlone()
			return
		}
		x.request(target)
	}
}

// judged goes on after an answer.
func (x *fetch) judged(v verdict) {
	x.v = v
	x.run()
}

// request asks one member (fetch.request).
func (x *fetch) request(target int) {
	if x.ctx.Err() != nil {
		x.abandoned()
		return
	}
	n := x.n
	x.a, x.askedAt = n.ask(x.f, x.r.m, target), n.w.now
	if target == x.r.m.Self {
		x.requestLocal()
		return
	}
	p := x.r.m.peers[target]
	n.reachable(p, func(ok bool) {
		if !ok {
			n.unanswered(p)
			x.judged(elsewhere)
			return
		}
		req := n.getRequest(x.f.Key)
		req.standIn, req.fresh, req.spread = x.standIn, x.fresh, x.spread
		x.call = p.start(req, x.answered)
	})
}

// answered judges a complete call (Cache.judge).
func (x *fetch) answered(rep *reply, err error) {
	x.call = nil
	if err != nil {
		x.n.unanswered(x.a.m.peers[x.a.target])
		x.judged(elsewhere)
		return
	}
	x.settle(rep)
	x.run()
}

// requestLocal asks this node's own shard (fetch.requestLocal).
func (x *fetch) requestLocal() {
	if x.askLocal() {
		x.run()
	}
}

// askLocal asks and reports whether there was an answer at once; else x.w waits for it (fetch.askLocal).
func (x *fetch) askLocal() bool {
	n := x.n
	req := n.getRequest(x.f.Key)
	req.standIn, req.fresh, req.spread = true, x.fresh, x.spread
	var rep reply
	if !n.resident(&req, &rep, x.r, false) {
		x.w = &localAsker{x: x, near: req.near, asked: x.a.sent}
		if !n.acquire(&req, &rep, x.w) {
			return false
		}
		x.w = nil
	}
	x.settle(&rep)
	return true
}

// canceled is what happens when nobody waits for the flight any more: wherever it waits, it stops.
func (x *fetch) canceled() {
	n := x.n
	switch {
	case x.batch != nil: // settleMany sees to it
	case x.v == settled || x.f.Over():
	case x.waits:
		x.waits = false
		x.ends()
		x.abandoned()
	case x.call != nil:
		x.call.abandon()
		x.call = nil
		x.abandoned()
	case x.w != nil:
		if n.shard.Leave(x.f.Key, x.w) {
			x.w = nil
			x.abandoned()
		} // else its answer is on the way
	case x.loading != nil:
		l := x.loading
		n.after(100*time.Millisecond, l.abandon) // origin.Linger
	}
}

// abandoned ends a flight that nobody waits for.
func (x *fetch) abandoned() {
	x.v = settled
	x.n.finish(x.f, result{}, errCanceled)
}

// next returns the next member to ask, or -1 (fetch.next).
func (x *fetch) next() int {
	const patience = 3
	n := x.n
	if m := n.members; m != x.r.m && x.moves < patience {
		x.moves++
		x.r, x.list, x.at = n.route(x.f.Key), nil, 0
		x.standIn = false
		if x.r.owner >= 0 {
			return x.r.owner
		}
	}
	x.becomeUntold()
	if x.list == nil {
		x.list = x.r.m.Ring.Prefer(nil, x.r.hash, 0)
		x.standIn = true
		if len(x.list) > 0 && x.list[0] == x.r.owner {
			x.at = 1
		}
	}
	for x.at < len(x.list) {
		i := x.list[x.at]
		x.at++
		if p := x.r.m.peers[i]; i == x.r.m.Self || p != nil && p.ready() {
			return i
		}
	}
	return -1
}

// becomeUntold sees to it that nobody joins the flight once it is a Bound old (fetch.becomeUntold).
func (x *fetch) becomeUntold() {
	if x.untold || !x.n.w.cfg.Rules.StandInJoin {
		return
	}
	x.untold = true
	x.n.after(x.n.w.cfg.Bound/2-time.Duration(x.n.clock()-x.f.Started), x.f.Close)
}

// settle judges an answer (Cache.settle).
func (x *fetch) settle(rep *reply) {
	n := x.n
	x.v, x.token = elsewhere, rep.token
	switch rep.status {
	case statusHit:
		if n.outdated(x.f.Key, x.a, rep) {
			x.v = unreadable
			return
		}
		tier := "owner " + x.a.m.Members[x.a.target].ID
		n.keep(x.f, x.a, rep)
		x.v = settled
		n.finish(x.f, result{value: rep.value, tier: tier}, nil)
	case statusStale:
		x.v = x.serveStale(rep)
	case statusLease:
		switch {
		case rep.lapsed:
			spare := *rep
			x.a.spare = &spare
		case rep.spare:
			x.serveStale(rep)
		}
		x.v = granted
	case statusFailed:
		if errors.Is(rep.failure, errCanceled) {
			return
		}
		x.v = settled
		n.finish(x.f, result{}, rep.failure)
	case statusHeld:
		x.v = alone
	default: // somebody else has to be asked
	}
}

// outdated tells whether an answer may be older than this process' own invalidation (Cache.outdated).
func (n *node) outdated(key string, a *asked, rep *reply) bool {
	if !n.w.cfg.Rules.OwnView {
		return false
	}
	since, age := a.sent, max(rep.age-rep.waited, 0)
	if rep.waited > 0 && !n.w.cfg.Rules.Waited {
		since, age = n.exact(), rep.age
	}
	loaded := since - age
	if a.target != a.m.Self {
		loaded = invalidation.LoadedBy(since, time.Duration(age))
	}
	hashes, known := rep.mark.Tags()
	if rep.spare {
		return n.own.OldCopy(key, loaded) || n.ownTags.OldCopy(hashes, known, loaded) || n.ownSets.old(key, rep.version, a.sent)
	}
	return n.own.Old(key, loaded, a.sent) || n.ownTags.Old(hashes, known, loaded, a.sent) || n.ownSets.old(key, rep.version, a.sent)
}

// keep makes an answer a near copy, if it was not overtaken (Cache.keep).
func (n *node) keep(f *flight, a *asked, rep *reply) {
	life := min(rep.near, rep.ttl, int64(n.w.cfg.NearTTL))
	if life <= 0 || rep.uncached {
		return
	}
	rules := &n.w.cfg.Rules
	owned := a.target == a.m.Ring.Owner(ring.Hash(keyspaceName, f.Key))
	if rules.Borrowed && !owned {
		life = min(life, int64(n.w.cfg.Bound))
	}
	now := n.clock()
	it := near.Item[string]{
		Value: rep.value, LoadedAt: now - rep.age, Version: rep.version, Source: a.source, Gen: a.fetch.Gen, Seq: rep.seq,
		Free: a.sent + int64(n.w.cfg.Bound), Mark: rep.mark.At(a.tagPos), Absent: rep.absent,
	}
	switch {
	case rep.lasting && !rep.absent && owned:
		it.Stale = int64(n.w.cfg.StaleOnError)
	case a.target == a.m.Self:
		it.Inherits = true
	}
	if !rules.TagFetch {
		it.Mark = it.Mark.At(n.near.TagPos())
	}
	installed := n.near.Install(f.Key, it, int64(len(rep.value)), a.sent+life, now, func() bool {
		if rules.MoveNear && n.members != a.m {
			return false
		}
		if !rules.Install {
			return true
		}
		if f.IsSplit() {
			return false
		}
		s := invalidation.State{Incarnation: a.source.Incarnation.Load(), Gen: a.source.Gen.Load()}
		inc := rep.incarnation
		if !rules.Incarnation {
			inc = s.Incarnation
		}
		return a.fetch.Installable(inc, rep.seq, s)
	})
	if installed {
		n.w.checker.keys[f.Key].heard.kept[n] = kept{value: rep.value, asked: a.sent}
		n.w.note(f.Key, "%s keeps %s from %s seq %d gen %d", n.id, rep.value, a.m.Members[a.target].ID, rep.seq, a.fetch.Gen)
	}
}
