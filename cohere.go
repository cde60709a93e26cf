package nearcache

import (
	"context"
	"strings"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// Subscribe opens this node's log to a member. It implements transport.Handler.
func (n *Node) Subscribe(s *transport.Session) transport.Subscription {
	return &subscription{node: n, session: s, life: n.holders.add(s, n.clock.Exact()), sub: n.log.Subscribe(holderOf(s))}
}

// subscription is a member's place in this node's log, as messages of the coherence stream.
type subscription struct {
	node    *Node
	session *transport.Session
	life    *life
	sub     *invalidation.Subscriber
	batch   invalidation.Batch
	down    transport.Down
}

// Next implements transport.Subscription. What every message tells about this member's ring the transport adds.
func (s *subscription) Next(ctx context.Context) (*transport.Down, error) {
	for !s.sub.Take(&s.batch, transport.MaxBatchKeys) {
		select {
		case <-s.sub.Ready():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	b, d := &s.batch, &s.down
	*d = transport.Down{
		Reset: b.Reset, Seq: b.Seq, Renewed: b.Renewed, Nonce: b.Nonce, NearLease: s.node.bound,
		Invs: d.Invs[:0], Revokes: d.Revokes[:0], Silent: d.Silent[:0],
	}
	if b.Renewed {
		d.Silent = s.node.silences(d.Silent)
	}
	for i := range b.Events {
		d.Invs = append(d.Invs, transport.Inv(b.Events[i]))
	}
	for _, r := range b.Revokes {
		d.Revokes = append(d.Revokes, transport.Revoke{Keyspace: r.Keyspace, Key: r.Key, Token: transport.Token(r.Token)})
	}
	return d, nil
}

// Renew implements transport.Subscription.
func (s *subscription) Renew(nonce uint64) {
	now := s.node.clock.Exact()
	s.node.keepTenure(now) // the answer says that what it granted still holds
	s.life.renewed.Store(now)
	s.life.view.Store(s.session.View())
	s.node.heard(s.session, now)
	s.sub.Renew(nonce)
}

// Close implements transport.Subscription.
func (s *subscription) Close() {
	s.node.holders.remove(s.life, s.node.clock.Exact())
	s.sub.Close()
}

// inView tells whether a member is in this node's ring, by its ID or, where discovery does not know that, by its address. A node that does not
// know its members yet drops nobody: it tells nobody of anything until then, and owns nothing.
func (n *Node) inView(member, addr string) bool {
	m := n.members.Load()
	return !m.known || m.Resolve(member, addr) >= 0
}

// Connected implements transport.Handler.
func (n *Node) Connected(p *transport.Peer, incarnation uint64) {
	n.follow(p, func(f *followed) {
		if !p.Left() {
			f.apply(n, f.follower.Contact(incarnation))
		}
	})
}

// Disconnected implements transport.Handler. A broken stream is no event: its lease ends by itself.
func (n *Node) Disconnected(*transport.Peer) {}

// Received applies a message of the coherence stream from p. It implements transport.Handler.
func (n *Node) Received(p *transport.Peer, incarnation uint64, d *transport.Down, sent time.Time) {
	m := n.members.Load()
	if d.View != m.Ring.Fingerprint() {
		n.differing.Add(1)
	}
	if !d.InView {
		n.dropped()
	}
	now := n.clock.Exact()
	sentAt := now - int64(time.Since(sent))
	if d.Renewed {
		n.keepTenure(now) // a lease that is back does not hide that it was over
		n.reported(p.ID(), d, sentAt, now)
	}
	n.follow(p, func(f *followed) {
		if d.Renewed {
			f.lag.Store(max(now-sentAt, 1))
		}
		f.view.Store(d.View)
		if d.Reset || !d.InView && d.View != m.Others {
			// Writers look at the views of those that they list (R8b). One that they do not list, and that goes by another ring
			// even without itself, takes a member for an owner that is told nothing.
			f.apply(n, f.follower.Reset(incarnation, d.Seq))
		}
		for i := range d.Invs {
			if a := f.follower.Inv(incarnation, d.Invs[i].Seq); f.apply(n, a) {
				n.event(f, &d.Invs[i])
			}
		}
		for _, r := range d.Revokes {
			if ks := n.keyspace(r.Keyspace); ks != nil {
				ks.local.revoked(r.Key)
			}
		}
		if d.Renewed {
			f.apply(n, f.follower.Renewed(incarnation, d.Seq, sentAt, min(d.NearLease, n.bound)))
		}
	})
	if d.View != m.Ring.Fingerprint() && m.Ring.Index(p.ID()) >= 0 {
		n.hearing.unequal.Store(true) // once its view can be seen: see lookAround
	}
}

// follow runs f with what this node knows of p's log. Messages of one peer come one after the other. What they killed is logged without
// the lock: a handler is the application's, and may call this node.
func (n *Node) follow(p *transport.Peer, f func(*followed)) {
	fo := n.followed(p.ID())
	for _, cause := range fo.locked(f) {
		n.noteKill(fo, cause)
		n.cfg.Logger.Debug("near copies of a member are dropped", "member", fo.id, "cause", cause.String())
	}
}

// locked runs f under the lock and returns what was killed.
func (f *followed) locked(do func(*followed)) (killed []invalidation.Cause) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f)
	killed, f.killed = f.killed, nil
	return killed
}

// apply publishes what a message means and reports whether it counts at all.
func (f *followed) apply(n *Node, a invalidation.Action) bool {
	if a.Ignore {
		return false
	}
	if before := f.source.Incarnation.Swap(a.State.Incarnation); before != 0 && before != a.State.Incarnation {
		f.restarted.Store(n.clock.Exact())
		n.uncopied.began(f.id)
	}
	// Order: the generation before the lease (docs/protocol.md R4).
	if a.Kill != invalidation.CauseNone {
		f.source.Gen.Store(a.State.Gen)
		for _, ks := range *n.keyspaces.Load() {
			ks.local.missed()
		}
		f.killed = append(f.killed, a.Kill)
	}
	f.source.LeaseUntil.Store(a.State.LeaseUntil)
	return true
}

// event drops the near copies that an event of a member is about.
func (n *Node) event(f *followed, e *transport.Inv) {
	ks := n.keyspace(e.Keyspace)
	if ks == nil {
		return
	}
	if e.All && len(e.Tags) > 0 {
		ks.local.forgetTags(tag.Hashes(e.Tags), n.clock.Exact())
		return
	}
	if e.All {
		ks.local.forgetAll()
		return
	}
	ks.local.overtaken(e.Key, f.source, e.Seq)
}

// revoke tells a lease holder that its fill will be refused.
func (ks *keyspace) revoke(r shard.Revoked) {
	if r.Holder == ks.node.id {
		ks.local.revoked(r.Key)
		return
	}
	ks.node.log.Revoke(r.Holder, invalidation.Revoke{Keyspace: ks.name, Key: strings.Clone(r.Key), Token: invalidation.Token(r.Token)})
}
