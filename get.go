package nearcache

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/origin"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
)

// placeholder is the state of a flight that decides whether its answer may become a near copy (R3).
type placeholder struct {
	current atomic.Pointer[asked]
	first   asked           // what current points to first: most flights ask once
	rank    origin.Priority // of its leader. Written by that one before it asks, read when the flight is over
}

// asked is one request of a flight: whom it went to and what was known then. It can be found by the key's events before the
// request leaves.
type asked struct {
	m      *members
	target int          // index of the member
	source *near.Source // of the member's events; this node's own says how sure it is of what it owns
	sent   int64        // when it was sent, or a little earlier
	tagPos int64        // of the near copies' tags before the request left
	fetch  invalidation.Fetch
	spare  *transport.Reply // the lease that was the answer, if a stale copy came with it
}

// ask makes the placeholder of a request to target that is sent at now, or later.
func (c *Cache[V]) ask(f *flight[V], m *members, target int, now int64) *asked {
	a := &f.State.first
	if f.State.current.Load() != nil {
		a = new(asked) // an event may still look at the last one
	}
	a.m, a.target, a.sent = m, target, now
	a.source = &c.node.standing.source
	if p := m.peers[target]; p != nil {
		a.source = p.source
	}
	a.fetch.Gen, a.tagPos = a.source.Gen.Load(), c.near.TagPos()
	f.State.current.Store(a)
	return a
}

// member returns the ID of the member asked.
func (a *asked) member() string { return a.m.Members[a.target].ID }

// get is Get beyond the near copies.
func (c *Cache[V]) get(ctx context.Context, key string) (result[V], error) {
	in, err := c.enter(ctx, key)
	if err != nil {
		return result[V]{}, err
	}
	defer in.leave(need{c.keyspace, key})
	began := c.clock.Exact()
	f := c.fly(ctx, key, began)
	res, err := c.wait(ctx, f)
	c.flights.Reuse(f)
	c.countResult(key, res.info, err, began)
	return res, err
}

// fly joins the key's flight, or leads it.
func (c *Cache[V]) fly(ctx context.Context, key string, now int64) *flight[V] {
	f, r, leads := c.join(ctx, key)
	if leads {
		c.lead(ctx, f, r, now)
	} else {
		c.count.shared.Add(1)
	}
	return f
}

// admit refuses calls that cannot be served.
func (c *Cache[V]) admit(ctx context.Context, key string) error {
	if c.closed.Load() || c.node.closed.Load() {
		return ErrClosed
	}
	if key == "" || len(key) > transport.MaxKeyBytes {
		return ErrInvalidKey
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return checkPriority(ctx)
}

// enter admits a call that may wait for a load. It returns the load whose loader calls, or nil.
func (c *Cache[V]) enter(ctx context.Context, key string) (*load, error) {
	err := c.admit(ctx, key)
	in, _ := ctx.Value(loadKey{c.node}).(*load)
	if err == nil {
		err = in.await(need{c.keyspace, key})
	}
	if err != nil {
		c.count.failed.Add(1)
	}
	return in, err
}

// countResult puts a key that was asked for at began into exactly one class.
func (ks *keyspace) countResult(key string, info Info, err error, began int64) {
	ks.hot.Count(key, kindOf(info, err), 1, ks.node.clock.Now())
	c := &ks.count
	if info.Stale {
		c.stale.Add(1)
	}
	switch {
	case err == nil && info.Tier == TierNear:
		c.nearHits.Add(1)
	case err == nil && info.Tier == TierOwner:
		c.ownerHits.Add(1)
		if ks.audit.values.due(ks.node.clock.Now()) {
			ks.runAudit(key, ks.local.compare)
		}
		c.ownerLatency.add(time.Duration(ks.node.clock.Exact() - began))
	case err == nil:
		c.originGets.Add(1)
		c.originLatency.add(time.Duration(ks.node.clock.Exact() - began))
	case isNotFound(err):
		c.notFound.Add(1)
	default:
		c.failed.Add(1)
	}
}

// join finds the key's owner and its flight (step 2).
func (c *Cache[V]) join(ctx context.Context, key string) (f *flight[V], r route, leads bool) {
	now := c.clock.Now()
	r = c.node.route(c.name, key)
	// R1b, R6: where invalidations may not reach this node only a young flight can be trusted to bring what a caller may see now.
	oldest := now - int64(c.node.bound)
	if c.policy.nearTTL > 0 && c.node.told(r, now) {
		oldest = 0
	}
	f, leads = c.flights.Join(key, now, oldest)
	if leads {
		f.State.rank = rank(ctx)
	}
	return f, r, leads
}

// lead asks the owner (step 3). The first answer is awaited on the caller's own goroutine; whatever is not settled by it, or
// takes longer than the caller, goes on without the caller.
func (c *Cache[V]) lead(ctx context.Context, f *flight[V], r route, now int64) {
	if c.holds.Held(f.Key) {
		c.resume(ctx, &fetch[V]{c: c, f: f, r: r, v: held})
		return
	}
	target, flags := c.reader(r, f.Key)
	if target == r.m.Self {
		c.leadLocal(ctx, f, r, flags, now)
		return
	}
	p := r.m.at(target)
	if p == nil || !p.Ready() {
		c.resume(ctx, &fetch[V]{c: c, f: f, r: r})
		return
	}
	a := c.ask(f, r.m, target, now)
	call := c.newGet(f.Key, flags)
	p.Start(call)
	select {
	case <-call.Done():
		if v := c.judge(f, a, call); v != settled {
			c.resume(ctx, &fetch[V]{c: c, f: f, r: r, a: a, v: v, token: call.Reply.Token, flags: flags})
		}
		call.Free()
	case <-ctx.Done():
		c.resume(ctx, &fetch[V]{c: c, f: f, r: r, a: a, call: call, flags: flags})
	case <-c.ends[r.hash%uint64(len(c.ends))]:
		c.resume(ctx, &fetch[V]{c: c, f: f, r: r, a: a, call: call, flags: flags})
	}
}

// leadLocal is lead where this node answers itself. Apart, since what it needs is large, and many goroutines wait in lead.
func (c *Cache[V]) leadLocal(ctx context.Context, f *flight[V], r route, flags uint32, now int64) {
	a := c.ask(f, r.m, r.m.Self, now)
	var req transport.Request
	var rep transport.Reply
	c.getRequest(&req, f.Key, flags)
	v := unknown
	if (r.owns() || flags != 0) && c.resident(&req, &rep, r, false) { // else it stands in for whoever does: resume asks it as such
		v = c.settle(f, a, &rep)
	}
	if v != settled {
		c.resume(ctx, &fetch[V]{c: c, f: f, r: r, a: a, v: v, flags: flags})
	}
}

// judge settles a flight by a complete call, or says how it goes on.
func (c *Cache[V]) judge(f *flight[V], a *asked, call *transport.Call) verdict {
	if call.Err != nil {
		c.unanswered(a.m.peers[a.target])
		return elsewhere
	}
	return c.settle(f, a, &call.Reply)
}

// newGet makes the Get of a key for a peer.
func (c *Cache[V]) newGet(key string, flags uint32) *transport.Call {
	call := c.node.transport.NewCall()
	c.getRequest(&call.Request, key, flags)
	return call
}

// getRequest fills in a Get.
func (ks *keyspace) getRequest(req *transport.Request, key string, flags uint32) {
	p := &ks.policy
	req.Op = transport.OpGet
	req.Flags = flags
	req.Keyspace = ks.name
	req.Key = key
	req.Budget = p.longestLoad()
	req.LeaseLife = p.leaseLife()
	if ks.hot.IsHot(key) {
		req.Hot = uint32(max(p.hot.PerSecond, 1)) // at least
	}
	if d := p.nearOf(req.Hot > 0); d > 0 {
		req.Near, req.StaleFor = d, p.stale
		req.Flags |= transport.FlagNear
	}
}

// fetch is a flight on its way from member to member, on a goroutine of its own.
type fetch[V any] struct {
	c   *Cache[V]
	f   *flight[V]
	ctx context.Context //nolint:containedctx // the flight's own, not a caller's
	r   route

	a     *asked          // the last request
	call  *transport.Call // its answer is still to come from a peer
	w     *localAsker     // its answer is still to come from this node's shard
	v     verdict         // on the last answer
	token transport.Token // of a lease that it brought

	untold *time.Timer // ends the sharing of the flight, once it is on its way past the owner

	list  []int  // the key's preference list, once its owner did not do
	at    int    // place in list
	flags uint32 // of the next Get
	moves int    // times that the ring changed under it

	relieved bool // its callers have a stale copy, or will have one in time
}

// resume goes on with a flight on a goroutine of its own.
func (c *Cache[V]) resume(ctx context.Context, x *fetch[V]) {
	x.ctx = x.f.Context(ctx)
	if !c.node.run("get", x.run) {
		x.f.Finish(result[V]{}, ErrClosed)
	}
}

// verdict says how a flight goes on after an answer.
type verdict int

const (
	unknown    verdict = iota // nobody has been asked yet
	settled                   // it is finished
	granted                   // this node holds the lease
	unreadable                // the value is of no use here: it cannot be decoded, or this process knows that it is old
	elsewhere                 // somebody else has to be asked
	alone                     // nobody can help: load without a lease
	held                      // the key is held: load without a lease, when it is this flight's turn
)

// run asks one member after the other until the flight is finished (steps 3 to 5).
func (x *fetch[V]) run() {
	defer x.abortable()()
	defer x.stopUntold()
	switch {
	case x.call != nil:
		x.await()
	case x.w != nil:
		x.awaitLocal()
	case x.v == unknown && x.r.owner >= 0:
		x.request(x.r.owner)
	}
	for x.v != settled {
		switch {
		case x.v == held:
			x.loadHeld()
			return
		case x.v == granted && x.f.Over():
			x.succeed()
			x.run()
			return
		case x.v == granted:
			x.load()
			return
		case x.flags&transport.FlagSpread != 0:
			x.flags &^= transport.FlagSpread
			x.c.lacking.put(x.f.Key, x.c.clock.Now(), spreadPause)
			x.request(x.r.owner)
		case x.v == unreadable && x.flags&transport.FlagFresh == 0:
			// A lease of its own replaces what is of no use.
			x.flags |= transport.FlagFresh
			x.request(x.a.target)
		case x.v == unreadable, x.v == alone:
			x.loadAlone()
			return
		default:
			target := x.next()
			if target < 0 {
				x.loadAlone()
				return
			}
			x.request(target)
		}
	}
}

// abortable lets the flight end with its keyspace until stop is called.
func (x *fetch[V]) abortable() (stop func() bool) {
	return context.AfterFunc(x.c.keyspace.ctx, x.f.Abort)
}

// request asks one member and judges its answer.
func (x *fetch[V]) request(target int) {
	c := x.c
	if x.ctx.Err() != nil {
		x.abandoned()
		return
	}
	x.a = c.ask(x.f, x.r.m, target, c.clock.Exact())
	if target == x.r.m.Self {
		x.requestLocal()
		return
	}
	p := x.r.m.peers[target]
	if !c.node.reachable(x.ctx, p) {
		c.unanswered(p)
		x.v = elsewhere
		return
	}
	x.call = c.newGet(x.f.Key, x.flags)
	p.Start(x.call)
	x.await()
}

// await waits for a call that is under way and judges its answer. When nobody waits for the flight any more the call is
// abandoned: a lease that comes for it is given back.
func (x *fetch[V]) await() {
	call := x.call
	x.call = nil
	select {
	case <-call.Done():
	case <-x.ctx.Done():
		if call.Abandon() {
			x.abandoned()
			return
		}
		<-call.Done()
	}
	x.v = x.c.judge(x.f, x.a, call)
	x.token = call.Reply.Token
	call.Free()
}

// requestLocal asks this node's own shard: for a lease as any other member. Where it is not the owner it stands in.
func (x *fetch[V]) requestLocal() {
	if x.askLocal() {
		return
	}
	x.awaitLocal()
}

// askLocal asks and reports whether there was an answer at once; else x.w waits for it.
func (x *fetch[V]) askLocal() bool {
	c := x.c
	var req transport.Request
	var rep transport.Reply
	c.getRequest(&req, x.f.Key, x.flags|transport.FlagStandIn)
	if !c.resident(&req, &rep, x.r, false) {
		x.w = &localAsker{node: c.node, near: req.Near, asked: x.a.sent, reply: make(chan transport.Reply, 1)}
		if !c.acquire(&req, &rep, x.w) {
			return false
		}
		x.w = nil
	}
	x.v, x.token = c.settle(x.f, x.a, &rep), rep.Token
	return true
}

// awaitLocal waits in the queue of this node's own shard.
func (x *fetch[V]) awaitLocal() {
	w := x.w
	x.w = nil
	select {
	case rep := <-w.reply:
		x.v, x.token = x.c.settle(x.f, x.a, &rep), rep.Token
	case <-x.ctx.Done():
		if !x.c.shard.Leave(x.f.Key, w) {
			// Its answer is on the way, and may be a lease.
			if rep := <-w.reply; rep.Status == transport.StatusLease {
				x.token = rep.Token
				x.release(transport.Failure{Kind: transport.FailureCanceled, Member: x.c.node.ID()})
			}
		}
		x.abandoned()
	}
}

// abandoned ends a flight that nobody waits for, or whose keyspace closes.
func (x *fetch[V]) abandoned() {
	x.v = settled
	x.f.Finish(result[V]{}, x.c.cutError(context.Canceled))
}

// next returns the next member to ask, or -1. The first one after the owner stands in for it: all callers choose the same.
func (x *fetch[V]) next() int {
	const patience = 3
	if m := x.c.node.members.Load(); m != x.r.m && x.moves < patience {
		// The ring changed: find the owner again.
		x.moves++
		x.r, x.list, x.at = x.c.node.route(x.c.name, x.f.Key), nil, 0
		x.flags &^= transport.FlagStandIn
		return x.r.owner
	}
	x.becomeUntold()
	if x.list == nil {
		x.list = x.r.m.Ring.Prefer(nil, x.r.hash, 0)
		x.flags |= transport.FlagStandIn
		if len(x.list) > 0 && x.list[0] == x.r.owner {
			x.at = 1
		}
	}
	for x.at < len(x.list) {
		i := x.list[x.at]
		x.at++
		if p := x.r.m.peers[i]; i == x.r.m.Self || p != nil && p.Ready() {
			return i
		}
	}
	return -1
}

// becomeUntold sees to it that nobody joins the flight once it is half a Bound old (R1b): what the owner tells does not concern it, so that
// its value may be old by then, however well the owner is heard. The other half is for the load that it waits for at a stand-in.
func (x *fetch[V]) becomeUntold() {
	if x.untold == nil {
		age := x.c.clock.Now() - x.f.Started
		x.untold = time.AfterFunc(x.c.node.bound/2-time.Duration(age), x.f.Close)
	}
}

func (x *fetch[V]) stopUntold() {
	if x.untold != nil {
		x.untold.Stop()
	}
}

// settle judges an answer: it finishes the flight, or says how it goes on.
func (c *Cache[V]) settle(f *flight[V], a *asked, rep *transport.Reply) verdict {
	c.noteRate(f.Key, rep)
	switch rep.Status {
	case transport.StatusHit:
		if c.outdated(f.Key, a, rep) {
			return unreadable
		}
		v, err := c.read(f, rep.Value)
		if err != nil {
			c.count.undecodable.Add(1)
			return unreadable
		}
		res := result[V]{value: v, info: Info{Tier: TierOwner, Age: max(rep.Age, 0), Version: rep.Version, Member: a.member()}}
		if rep.Flags&transport.ReplyLoaded != 0 {
			res.info.Tier = TierOrigin
		}
		c.keep(f, a, rep, near.Item[V]{Value: v, Mark: answeredMark(rep)}, c.sizeOf(f, v, rep.Value))
		f.Finish(res, nil)
	case transport.StatusAbsent:
		if c.outdated(f.Key, a, rep) {
			return unreadable
		}
		c.keep(f, a, rep, near.Item[V]{Absent: true, Mark: answeredMark(rep)}, 0)
		f.Finish(result[V]{info: Info{Tier: TierOwner, Age: max(rep.Age, 0), Member: a.member()}}, ErrNotFound)
	case transport.StatusStale:
		return c.serveStale(f, a, rep)
	case transport.StatusLease:
		switch {
		case rep.Flags&transport.ReplyLapsed != 0:
			spare := *rep
			a.spare = &spare
		case rep.HasValue:
			c.serveStale(f, a, rep) // what cannot be read is loaded anyway
		}
		return granted
	case transport.StatusFailed:
		switch rep.Failure.Kind {
		case transport.FailureTooLarge:
			return alone
		case transport.FailureCanceled, transport.FailureClosed:
			return elsewhere
		default:
			f.Finish(result[V]{info: Info{Tier: TierOrigin, Member: rep.Failure.Member}}, c.fromWire(f.Key, &rep.Failure))
		}
	case transport.StatusHeld:
		return alone
	case transport.StatusNotOwner, transport.StatusUnknownKeyspace:
		c.count.misrouted.Add(1)
		return elsewhere
	default:
		return elsewhere
	}
	return settled
}

// outdated tells whether an answer may be older than this process' own invalidation of the key or one of its tags (R16). Its age
// when it was asked for counts, back from then: when the answer came says nothing, it may have been under way for long, and a load that began while the
// request waited is newer than whatever was invalidated before. A stale copy, which may be from long ago, is held against all but an Expire.
func (c *Cache[V]) outdated(key string, a *asked, rep *transport.Reply) bool {
	stale := rep.Status == transport.StatusStale || rep.Status == transport.StatusLease
	if !stale && !c.own.Active(a.sent) && !c.ownTags.Active(a.sent) {
		return false
	}
	since, age := a.sent, max(rep.Age-rep.Waited, 0)
	if rep.Waited == 0 && rep.Flags&transport.ReplyLoaded != 0 {
		since = c.clock.Exact() // a member of an earlier version does not say how long: nobody is to load for that again
	}
	loaded := since - int64(age)
	if a.target != a.m.Self {
		loaded = invalidation.LoadedBy(since, age)
	}
	tagged := rep.Flags&transport.ReplyTagged != 0
	if stale {
		return c.own.OldCopy(key, loaded) || c.ownTags.OldCopy(rep.Tags, tagged, loaded)
	}
	return c.own.Old(key, loaded, a.sent) || c.ownTags.Old(rep.Tags, tagged, loaded, a.sent)
}

// sizeOf returns the bytes that a value counts as a near copy. A SizeOf that panics counts as none.
func (c *Cache[V]) sizeOf(f *flight[V], v V, encoded []byte) (size int64) {
	size = int64(len(encoded))
	if c.cfg.SizeOf == nil {
		return size
	}
	left := true
	defer func() {
		if recover() == nil && left {
			c.deserted(f)
		}
	}()
	size = int64(max(c.cfg.SizeOf(v), 0))
	left = false
	return size
}

// read decodes what a flight has brought.
func (c *Cache[V]) read(f *flight[V], b []byte) (v V, err error) {
	left := true
	defer func() {
		if left {
			c.deserted(f)
		}
	}()
	v, err = decode(c.cfg.Codec, b)
	left = false
	return v, err
}

// deserted ends a flight whose goroutine the application's own function has left by runtime.Goexit, as (*testing.T).FailNow does: nobody
// else would.
func (c *Cache[V]) deserted(f *flight[V]) {
	f.Finish(result[V]{}, &PanicError{Value: origin.ErrGoexit, Stack: debug.Stack()})
}

// keep makes an answer a near copy, if it was not overtaken (R3). Its lifetime counts from the sending of the request.
func (c *Cache[V]) keep(f *flight[V], a *asked, rep *transport.Reply, it near.Item[V], bytes int64) {
	life := min(rep.Near, rep.TTL, c.policy.nearOf(true))
	if a.target != a.m.Ring.Owner(c.hashOf(f.Key)) {
		life = min(life, c.node.bound) // it may own the key by a ring of its own, and say nothing when that ends (R3)
	}
	if life <= 0 || rep.Flags&transport.ReplyUncached != 0 {
		if c.policy.near() > 0 {
			c.count.unkept.Add(1)
		}
		return
	}
	now := c.clock.Now()
	it.LoadedAt = now - int64(rep.Age)
	it.Version = rep.Version
	it.Source, it.Gen, it.Seq, it.Mark = a.source, a.fetch.Gen, rep.Seq, it.Mark.At(a.tagPos)
	it.Free = a.sent + int64(c.node.bound)
	switch {
	case rep.Flags&transport.ReplyLasting != 0 && !it.Absent && a.target == a.m.Ring.Owner(c.hashOf(f.Key)):
		it.Stale = int64(c.policy.stale)
	case a.target == a.m.Self:
		it.Inherits = true
	}
	it.Kept = c.keeps(f.Key, rep)
	c.near.Install(f.Key, it, bytes, a.sent+int64(life), now, func() bool {
		still := !f.IsSplit() && !c.closed.Load() && c.node.members.Load() == a.m
		if still {
			s := invalidation.State{Incarnation: a.source.Incarnation.Load(), Gen: a.source.Gen.Load()}
			still = a.fetch.Installable(rep.Incarnation, rep.Seq, s)
		}
		if !still {
			c.count.overtaken.Add(1)
		}
		return still
	})
}

// reachable waits for a peer that has only just become a member and is still being dialled, for a PeerTimeout at most.
func (n *Node) reachable(ctx context.Context, p *peer) bool {
	if p.Ready() {
		return true
	}
	left := p.added + int64(n.cfg.PeerTimeout) - n.clock.Exact()
	if left <= 0 {
		return false
	}
	const step = time.Millisecond
	t := time.NewTicker(step)
	defer t.Stop()
	for ; left > 0; left -= int64(step) {
		select {
		case <-t.C:
			if p.Ready() {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// cutError is what a flight ends with that was cut: ErrClosed when the keyspace or its node closes.
func (ks *keyspace) cutError(err error) error {
	if ks.ctx.Err() != nil {
		return ErrClosed
	}
	return err
}
