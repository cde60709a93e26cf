package sim

import (
	"math"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
)

// The methods of followed that hand what was heard to the follower: a rule that is off changes what it hears.

func (f *followed) contact(incarnation uint64) invalidation.Action {
	return f.follower.Contact(f.speaker(incarnation))
}

// speaker is the incarnation that is followed: where it does not count, all are one.
func (f *followed) speaker(incarnation uint64) uint64 {
	if f.rules.Incarnation {
		return incarnation
	}
	return 1
}

// received applies a message of the coherence stream (Node.Received).
func (n *node) received(s *stream, d *down) {
	b, inc := &d.batch, d.incarnation
	s.c.p.leaving = s.c.p.leaving || d.frame.leaving
	if !d.frame.inView {
		n.unlisted()
	}
	if b.Renewed {
		now := n.exact()
		n.keepTenure(now)
		n.hearing.contacts.Reported(s.c.p.id, d.silent, s.renewed[b.Nonce], now)
	}
	n.follow(s.c.p, func(f *followed) {
		f.view = d.frame.view
		unlisted := !d.frame.inView && d.frame.view != n.members.Others && n.w.cfg.Rules.Unlisted
		if b.Reset || unlisted {
			f.apply(n, f.follower.Reset(f.speaker(inc), b.Seq))
		}
		for i := range b.Events {
			if a := f.follower.Inv(f.speaker(inc), b.Events[i].Seq); f.apply(n, a) {
				n.w.checker.hears(n, s.c.to, &b.Events[i])
				n.happened(f, &b.Events[i])
			}
		}
		for _, r := range b.Revokes {
			n.revoked(r.Key)
		}
		if b.Renewed {
			sent := s.renewed[b.Nonce]
			if !n.w.cfg.Rules.SentLease {
				sent = n.exact()
			}
			f.apply(n, f.follower.Renewed(f.speaker(inc), b.Seq, sent, n.w.cfg.Bound))
		}
	})
	if d.frame.view != n.members.Ring.Fingerprint() && n.members.Ring.Index(s.c.p.id) >= 0 {
		n.hearing.unequal = true
	}
}

// follow runs f with what this node knows of the peer's log (Node.follow).
func (n *node) follow(p *peer, f func(*followed)) { f(n.followed(p.id)) }

// apply publishes what a message means (followed.apply).
func (f *followed) apply(n *node, a invalidation.Action) bool {
	if a.Ignore {
		return false
	}
	if before := f.source.Incarnation.Swap(a.State.Incarnation); before != 0 && before != a.State.Incarnation {
		f.restarted = n.exact()
	}
	if a.Kill != invalidation.CauseNone && (f.rules.Holes || a.Kill == invalidation.CauseRestart) {
		f.source.Gen.Store(a.State.Gen)
		n.missed()
	}
	until := a.State.LeaseUntil
	if !f.rules.NearLease {
		until = 1 << 62
	}
	f.source.LeaseUntil.Store(until)
	return true
}

// happened drops the near copies that an event of a member is about (Node.event).
func (n *node) happened(f *followed, e *invalidation.Event) {
	n.w.note(e.Key, "%s hears event %d", n.id, e.Seq)
	if e.All && len(e.Tags) > 0 {
		n.forgetTags(tag.Hashes(e.Tags))
		return
	}
	if e.All {
		n.forgetAll()
		return
	}
	n.overtaken(e.Key, f.source, e.Seq)
}

// revoke tells a lease holder that its fill will be refused (keyspace.revoke).
func (n *node) revoke(r shard.Revoked) {
	if !n.w.cfg.Rules.Revoke {
		return
	}
	if r.Holder == n.id {
		n.revoked(r.Key)
		return
	}
	n.log.Revoke(r.Holder, invalidation.Revoke{Keyspace: keyspaceName, Key: r.Key, Token: invalidation.Token(r.Token)})
	n.wake()
}

// What follows is the root's local.go.

// forget drops the near copy of key and splits its flight (Cache.forget).
func (n *node) forget(key string) {
	n.split(key)
	n.near.Delete(key)
}

// split ends the sharing of the key's flight. Where nobody does that it takes callers all the same, but what it brings is not kept.
func (n *node) split(key string) {
	if n.w.cfg.Rules.Split {
		n.flights.Split(key)
		n.renewing.Split(key)
	}
}

func (n *node) splitAll() {
	if n.w.cfg.Rules.Split {
		n.flights.SplitAll()
		n.renewing.SplitAll()
	}
}

// forgetAll does so for all keys (Cache.forgetAll).
func (n *node) forgetAll() {
	n.splitAll()
	n.near.Clear()
}

// forgetTags drops the near copies that have one of the tags (Cache.forgetTags).
func (n *node) forgetTags(hashes []uint64) {
	if n.w.cfg.Rules.TagFlights {
		n.flights.CloseAll()
		n.renewing.CloseAll()
	}
	n.near.InvalidateTags(hashes, n.exact())
}

// overtaken applies an event of the member that src stands for (Cache.overtaken).
func (n *node) overtaken(key string, src *near.Source, seq uint64) {
	for _, g := range []*flights{n.flights, n.renewing} {
		g.Visit(key, func(f *flight) {
			switch a := f.State.current; {
			case a == nil:
			case a.source == src:
				a.fetch.Seen(seq)
			case n.w.cfg.Rules.Foreign:
				a.fetch.Seen(math.MaxUint64)
			}
		})
		if n.w.cfg.Rules.Split {
			g.Close(key)
		}
	}
	n.near.Invalidate(key, src, seq)
}

// missed ends the sharing of all flights (Cache.missed).
func (n *node) missed() { n.splitAll() }

// revoked ends the sharing of the flight that holds a lease (Cache.revoked, R1b).
func (n *node) revoked(key string) { n.split(key) }
