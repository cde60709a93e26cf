package nearcache

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nearcache/nearcache/hotkey"
	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/ring"
)

// asker is who waits for the answer to a request: a flight of this node, or a request of a peer. The shard knows it as a
// waiter.
type asker interface {
	// holder names the member, and its life, that would hold a lease.
	holder() string
	// nearLife is the lifetime granted for a near copy of the answer.
	nearLife() time.Duration
	// since is when it asked, or a little later.
	since() int64
	answer(rep *transport.Reply)
}

// remoteAsker is a request of a peer.
type remoteAsker struct {
	session *transport.Session
	id      uint32
	near    time.Duration
	asked   int64
}

func (a *remoteAsker) holder() string { return holderOf(a.session) }

func (a *remoteAsker) nearLife() time.Duration { return a.near }

func (a *remoteAsker) since() int64 { return a.asked }

func (a *remoteAsker) answer(rep *transport.Reply) { a.session.Answer(a.id, rep) }

// holderOf names the life of a member that a session belongs to.
func holderOf(s *transport.Session) string { return fmt.Sprintf("%s/%d", s.Member, s.Incarnation) }

// localAsker is a flight of this node.
type localAsker struct {
	node  *Node
	near  time.Duration
	asked int64
	reply chan transport.Reply // capacity 1
}

func (a *localAsker) holder() string { return a.node.id }

func (a *localAsker) nearLife() time.Duration { return a.near }

func (a *localAsker) since() int64 { return a.asked }

func (a *localAsker) answer(rep *transport.Reply) { a.reply <- *rep }

// Serve answers a request of a peer. It implements transport.Handler.
func (n *Node) Serve(s *transport.Session, id uint32, req *transport.Request, rep *transport.Reply) bool {
	switch {
	case req.Op == transport.OpInvalidate:
		return n.serveInvalidate(s, id, req, rep)
	case req.Op == transport.OpRelay:
		return n.serveRelay(s, id, req, rep)
	case req.Op == transport.OpUpdate:
		n.serveUpdate(s, req, rep)
		return true
	case req.Op == transport.OpStats:
		return n.serveStats(s, id, req, rep)
	case req.Op == transport.OpHold && req.Key == "":
		n.heldAll(holderOf(s))
		rep.Status = transport.StatusOK
		return true
	case req.Op == transport.OpHandOver && req.Token == (transport.Token{}):
		n.permitHandOver(req, rep)
		return true
	}
	ks := n.keyspace(req.Keyspace)
	if ks == nil || ks.closed.Load() {
		rep.Status = transport.StatusUnknownKeyspace
		return true
	}
	if req.Key == "" {
		rep.Status = transport.StatusFailed
		rep.Failure = transport.Failure{Kind: transport.FailureLoad, Text: ErrInvalidKey.Error(), Member: n.ID()}
		return true
	}
	if n.stops.Load() && (req.Op == transport.OpGet || req.Op == transport.OpPeek || req.Op == transport.OpSet) {
		rep.Status = transport.StatusNotOwner // members that know that it stops tell it of nothing any more (R9)
		return true
	}
	if req.Op == transport.OpGet {
		rep.Rate = rateOnWire(ks.hot.Count(req.Key, hotkey.Served, 1, n.clock.Now()))
		if ks.resident(req, rep, ks.route(req.Key), true) {
			return true
		}
		return ks.acquire(req, rep, &remoteAsker{session: s, id: id, near: ks.policy.grant(req), asked: n.clock.Exact()})
	}
	switch {
	case req.Op == transport.OpHold:
		ks.carryOut(ks.shard.Hold(req.Key, shard.Token(req.Token), &remoteAsker{session: s}, n.clock.Exact()))
		rep.Status = transport.StatusOK
	case req.Op == transport.OpPeek && req.Flags&transport.FlagGained != 0:
		ks.peekFormer(s, req, rep)
	case req.Op == transport.OpHandOver:
		ks.takeOver(s, req, rep)
	default:
		ks.serve(req, rep, true)
	}
	return true
}

func (ks *keyspace) route(key string) route { return ks.node.route(ks.name, key) }

// serve answers the requests that never wait. remote: a peer asks.
func (ks *keyspace) serve(req *transport.Request, rep *transport.Reply, remote bool) {
	switch req.Op {
	case transport.OpFill:
		ks.fill(req, rep, remote)
	case transport.OpRelease:
		ks.release(req, rep)
	case transport.OpPeek:
		if req.Flags&transport.FlagCopies != 0 {
			ks.peekCopies(req, rep)
			return
		}
		ks.peek(req, rep)
	case transport.OpSet:
		ks.set(req, rep)
	default:
		rep.Status = transport.StatusBusy // an operation of a later version
	}
}

// resident answers a Get from the shard where that is possible without a lease, and reports whether it did. It takes no lock.
func (ks *keyspace) resident(req *transport.Request, rep *transport.Reply, r route, remote bool) bool {
	if !r.owns() {
		if req.Flags&transport.FlagSpread != 0 {
			ks.serveSpread(req, rep, r)
			return true
		}
		if ks.heirloom(req, rep, r, remote) {
			return true
		}
		if req.Flags&transport.FlagStandIn == 0 && !ks.inherits(r) {
			rep.Status = transport.StatusNotOwner
			return true
		}
	}
	if req.Flags&(transport.FlagFresh|transport.FlagAhead) != 0 {
		return false
	}
	now := ks.node.clock.Exact() // ages are compared with what this or another member did a moment ago
	grant := ks.grant(req, r, remote, now)
	v, seq := ks.shard.Get(req.Key, now)
	if v == nil {
		return false
	}
	ks.hit(rep, v, seq, grant, now)
	if rep.TTL <= ks.ahead(v, req.Hot > 0) && r.owns() && !ks.node.capped(r, now) && ks.renewals.begin(req.Key, now, renewalPause) {
		ks.local.renew(req.Key)
	}
	return true
}

// grant decides the near lifetime that an answer allows, and puts the interest of a peer on record: before the value is read
// (R14).
func (ks *keyspace) grant(req *transport.Request, r route, remote bool, now int64) time.Duration {
	d := ks.policy.grant(req)
	if remote && d > 0 {
		ks.node.interest.Grant(r.hash, d+staleFor(req), now)
	}
	return d
}

// staleFor is how long the asker may serve a near copy of the answer as a stale one.
func staleFor(req *transport.Request) time.Duration { return max(req.StaleFor, 0) }

// grant is the near lifetime that an asker may have.
func (p *policy) grant(req *transport.Request) time.Duration {
	return max(min(req.Near, p.nearOf(req.Hot > 0)), 0)
}

// hit fills in a resident value or absence.
func (ks *keyspace) hit(rep *transport.Reply, v *shard.Value, seq uint64, near time.Duration, now int64) {
	rep.Status = transport.StatusHit
	if v.Absent {
		rep.Status = transport.StatusAbsent
	}
	rep.Seq = seq
	rep.Age = time.Duration(now - v.LoadedAt) // negative where now is coarse: the sum of both is exact
	rep.TTL = time.Duration(ks.shard.FreshUntil(v) - now)
	rep.Near = ks.nearWithin(near, v, rep.TTL)
	if v.Vouched != 0 && ks.node.standing.tenure.Load().CappedAt(now) {
		rep.Near = min(rep.Near, ks.node.bound) // it is no sign of what this member may miss, as other near copies of one in doubt are
	}
	rep.Version = v.Version
	rep.Value, rep.HasValue = v.Bytes, !v.Absent
	ks.lasting(rep, v.Lasts(), now)
	tagged(rep, v)
}

// tagged says which tags a value has, if they are known.
func tagged(rep *transport.Reply, v *shard.Value) {
	if tags, known := v.Mark.Tags(); known {
		rep.Tags, rep.Flags = tags, rep.Flags|transport.ReplyTagged
	}
}

// lasting lets the asker keep a near copy as a stale one: the owner will tell it of an invalidation, if it is told itself.
func (ks *keyspace) lasting(rep *transport.Reply, lasts bool, now int64) {
	if lasts && !ks.node.standing.tenure.Load().CappedAt(now) {
		rep.Flags |= transport.ReplyLasting
	}
}

// stale fills in a value past its lifetime, which nobody keeps.
func stale(rep *transport.Reply, v *shard.Value, now int64) {
	rep.Status = transport.StatusStale
	rep.Age = time.Duration(now - v.LoadedAt)
	rep.Version = v.Version
	rep.Value, rep.HasValue = v.Bytes, true
	tagged(rep, v)
}

// age is the time since a load began. The coarse clock may still show an earlier time.
func age(loaded, now int64) time.Duration { return time.Duration(max(now-loaded, 0)) }

// acquire answers a Get that found nothing resident: a lease, a place in the queue (false: the answer follows), or what came
// meanwhile.
func (ks *keyspace) acquire(req *transport.Request, rep *transport.Reply, a asker) bool {
	now := ks.node.clock.Exact()
	r := ks.route(req.Key)
	if !r.owns() && req.Flags&transport.FlagStandIn == 0 {
		rep.Status = transport.StatusNotOwner
		return true
	}
	life := min(req.LeaseLife, maxLeaseLife)
	_, remote := a.(*remoteAsker)
	if remote {
		// A lease is interest itself (R1b), and so is the wait with what may be kept after it.
		ks.node.interest.Grant(r.hash, max(life, min(req.Budget, ks.policy.longestLoad())+a.nearLife()+staleFor(req)), now)
	}
	ask := shard.Ask{
		Holder: a.holder(),
		Waiter: a,
		Life:   int64(life),
		Until:  now + int64(min(req.Budget, maxLeaseLife)),
		Fresh:  req.Flags&transport.FlagFresh != 0,
		Ahead:  req.Flags&transport.FlagAhead != 0,
		View:   r.m.number,
	}
	if !ask.Fresh {
		ks.inherit(r, req.Key, now)
	}
	res := ks.shard.Acquire(req.Key, ask, now)
	if res.Kind == shard.Waiting {
		return false
	}
	ks.result(rep, res, a.nearLife(), now)
	if remote && rep.Status == transport.StatusLease && len(rep.Value) > transport.InlineValueBytes {
		rep.Value, rep.HasValue = nil, false // a lease goes with small answers: its holder waits for the load
	}
	return true
}

// maxLeaseLife bounds what a peer may ask for.
const maxLeaseLife = 2 * time.Hour

// result turns what the shard says into an answer.
func (ks *keyspace) result(rep *transport.Reply, res shard.Result, near time.Duration, now int64) {
	if res.Lapsed {
		rep.Flags |= transport.ReplyLapsed
	}
	switch res.Kind {
	case shard.Hit:
		ks.hit(rep, res.Value, res.Seq, near, now)
		if res.Uncached {
			rep.Flags |= transport.ReplyUncached
			rep.Near = 0
		}
	case shard.Lease:
		if res.Value != nil {
			stale(rep, res.Value, now)
		}
		rep.Status = transport.StatusLease
		rep.Token = transport.Token(res.Token)
		rep.Seq = res.Seq
	case shard.Stale:
		stale(rep, res.Value, now)
	case shard.Failed:
		rep.Status = transport.StatusFailed
		rep.Failure, _ = res.Failure.(transport.Failure)
	case shard.TimedOut:
		rep.Status = transport.StatusFailed
		rep.Failure = transport.Failure{Kind: transport.FailureTimeout, Text: "waited for another member's load", Member: ks.node.ID()}
	case shard.Held:
		rep.Status = transport.StatusHeld
	case shard.Moved:
		rep.Status = transport.StatusNotOwner
	case shard.Busy, shard.Waiting:
		rep.Status = transport.StatusBusy
	}
}

// carryOut does what an operation of the shard left to do. No lock is held.
func (ks *keyspace) carryOut(eff shard.Effect) {
	for _, rv := range eff.Revoked {
		ks.revoke(rv)
	}
	if len(eff.Wakes) == 0 {
		return
	}
	now := ks.node.clock.Exact()
	for _, w := range eff.Wakes {
		to := w.Waiter.(asker)
		var rep transport.Reply
		ks.result(&rep, w.Result, to.nearLife(), now)
		rep.Waited = max(time.Duration(now-to.since()), time.Microsecond)
		if w.Result.Kind == shard.Hit && w.Result.Value.Vouched == 0 {
			rep.Flags |= transport.ReplyLoaded
		}
		to.answer(&rep)
	}
}

// fill stores what a lease holder loaded.
func (ks *keyspace) fill(req *transport.Request, rep *transport.Reply, remote bool) {
	now := ks.node.clock.Exact()
	r := ks.route(req.Key)
	grant := ks.grant(req, r, remote, now)
	v := ks.value(req, r, now)
	var eff shard.Effect
	if req.Flags&transport.FlagUncached != 0 || req.TTL <= 0 {
		eff = ks.shard.Pass(req.Key, shard.Token(req.Token), v, now)
	} else {
		eff = ks.shard.Fill(req.Key, shard.Token(req.Token), v, now)
	}
	ks.carryOut(eff)
	rep.Seq, rep.Version = eff.Seq, req.Version
	switch eff.Outcome {
	case shard.Stored:
		ks.stored(req.Key, r, eff.Until, now)
		rep.Status = transport.StatusAccepted
		rep.TTL = time.Duration(eff.Until - now)
		rep.Near = ks.nearWithin(grant, &v, rep.TTL)
		ks.lasting(rep, eff.Lasts, now)
	case shard.Passed:
		rep.Status = transport.StatusAccepted
		rep.Flags |= transport.ReplyUncached
	default:
		rep.Status = transport.StatusRejected
	}
}

// value builds an entry from a Fill or Set. Where this node may not hear of invalidations it lives a Bound at most.
func (ks *keyspace) value(req *transport.Request, r route, now int64) shard.Value {
	ttl := req.TTL
	if ks.node.capped(r, now) {
		ttl = min(ttl, ks.node.bound)
	}
	loaded := now - int64(req.Age)
	v := shard.Value{
		Absent:   req.Flags&transport.FlagAbsent != 0,
		LoadedAt: loaded,
		Version:  req.Version,
		Mark:     markOf(req.Tags, req.Flags&transport.FlagTagged != 0),
		Soft:     loaded + int64(ttl),
		Hard:     loaded + int64(ttl),
	}
	if !v.Absent {
		v.Bytes = req.Value
	}
	if ttl == req.TTL && !v.Absent {
		v.Hard += int64(staleFor(req))
	}
	return v
}

// release takes a lease back.
func (ks *keyspace) release(req *transport.Request, rep *transport.Reply) {
	cause := shard.LoadFailed
	switch req.Failure.Kind {
	case transport.FailureCanceled, transport.FailureClosed, transport.FailureNone:
		cause = shard.Abandoned
	case transport.FailureShed:
		cause = shard.Shed
	default:
	}
	f := req.Failure
	f.Code, f.Text, f.Member = strings.Clone(f.Code), strings.Clone(f.Text), strings.Clone(f.Member)
	ks.carryOut(ks.shard.Release(req.Key, shard.Token(req.Token), cause, f, ks.node.clock.Exact()))
	rep.Status = transport.StatusOK
}

// peek answers from what is resident and fresh, or with a miss.
func (ks *keyspace) peek(req *transport.Request, rep *transport.Reply) {
	now := ks.node.clock.Exact()
	v, seq := ks.shard.Peek(req.Key, now)
	if v == nil || !ks.shard.Fresh(v, now) {
		rep.Status = transport.StatusMiss
		return
	}
	ks.hit(rep, v, seq, 0, now)
}

// set stores a value without a lease.
func (ks *keyspace) set(req *transport.Request, rep *transport.Reply) {
	now := ks.node.clock.Exact()
	r := ks.route(req.Key)
	if !r.owns() || ks.node.heirs.Load() != nil {
		rep.Status = transport.StatusNotOwner
		return
	}
	cond := shard.Cond{
		IfAbsent:  req.Flags&transport.FlagIfAbsent != 0,
		IfPresent: req.Flags&transport.FlagIfPresent != 0,
		View:      r.m.number,
	}
	eff := ks.shard.Set(req.Key, ks.value(req, r, now), cond, now)
	ks.node.log.Wake()
	ks.local.forget(req.Key)
	ks.carryOut(eff)
	switch eff.Outcome {
	case shard.Stored:
		ks.stored(req.Key, r, eff.Until, now)
		rep.Status = transport.StatusStored
	case shard.Outdated:
		rep.Status = transport.StatusNotOwner
	default:
		rep.Status = transport.StatusNotStored
	}
}

// Gone forgets those who wait through a session that ended. What was under way on it may be lost: the leases that it brought end a second
// later, unless their holder says that they arrived. It implements transport.Handler.
func (n *Node) Gone(s *transport.Session) {
	now := n.clock.Exact()
	through := func(w any) bool {
		a, ok := w.(*remoteAsker)
		return ok && a.session == s
	}
	for _, ks := range *n.keyspaces.Load() {
		ks.shard.Forget(through)
		ks.shard.AskerGone(through, now+int64(time.Second))
	}
	n.holders.lost(s, now)
}

// heldAll ends the leases of a holder that were lost on their way, after it has said which were not.
func (n *Node) heldAll(holder string) {
	now := n.clock.Exact()
	for _, ks := range *n.keyspaces.Load() {
		ks.carryOut(ks.shard.HeldAll(holder, now))
	}
}

// Orphan gives back a lease that nobody waits for any more. It implements transport.Handler.
func (n *Node) Orphan(p *transport.Peer, req *transport.Request, rep *transport.Reply) {
	release := &transport.Request{
		Op: transport.OpRelease, Keyspace: req.Keyspace, Key: req.Key, Token: rep.Token,
		Failure: transport.Failure{Kind: transport.FailureCanceled, Member: n.ID()},
	}
	ks, m := n.keyspace(req.Keyspace), n.members.Load()
	if i := m.Ring.Index(p.ID()); ks != nil && i >= 0 {
		_, _ = ks.giveBack(m, i, release) // there is nothing to do about a failure but what giveBack does
		return
	}
	_, _ = p.Do(n.ctx, release) // the keyspace was closed, or the member is one no more: once must do, the lease ends by itself
}

// exchange sends a request that never waits to a member, which may be this one.
func (ks *keyspace) exchange(ctx context.Context, m *members, target int, req *transport.Request) (transport.Reply, error) {
	var rep transport.Reply
	if target == m.Self {
		ks.serve(req, &rep, false)
		return rep, nil
	}
	rep, err := m.peers[target].Do(ctx, req)
	if err != nil {
		ks.unanswered(m.peers[target])
	}
	return rep, err
}

// unanswered notes that a peer did not answer.
func (ks *keyspace) unanswered(p *peer) {
	ks.count.peerErrors.Add(1)
	p.noAnswer(ks.node)
}

// hashOf is the ring's hash of a key of the keyspace.
func (ks *keyspace) hashOf(key string) uint64 { return ring.Hash(ks.name, key) }
