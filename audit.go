package nearcache

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/transport"
)

// AuditConfig makes a keyspace check in production what it promises, a sample at a time. What it finds is in KeyspaceStats.Audit, and in the
// log.
type AuditConfig struct {
	// Invalidations is how many of this node's own Invalidates are followed up, at most a second, each by one of its keys: a Bound
	// after it returned nil all members are asked whether they serve a value loaded before the call, and as long as one does, again after
	// twice the time, up to an hour. 0: none.
	Invalidations int
	// Values is how many cached values are compared with the origin, at most a minute: a key that was read from its owner is loaded once more,
	// and a Bound later this node must not serve anything older than that. By VersionOf, or else by the encoded value, which must then be
	// the same for equal values; with OriginLag it needs VersionOf. Such loads count as any other. 0: none.
	Values int
}

// AuditStats is what the audit has found. Old and Drifted stay 0 while the promise holds and every change is announced.
type AuditStats struct {
	Invalidations uint64 // that were followed up
	Unanswered    uint64 // questions about them that a member did not answer
	Old           uint64 // answers with a value from before the invalidation, by the time since it returned: up to ten Bounds
	OldTenBounds  uint64 // up to a hundred
	OldHundred    uint64 // more: bounded by the lifetime alone
	Values        uint64 // that were compared with the origin
	Uncompared    uint64 // of which there was nothing to compare any more, or which could not be loaded
	Drifted       uint64 // older than what the origin had a Bound before: a change that was not announced, or came too late
}

// audit is the audit of a keyspace.
type audit struct {
	invalidations, values pace
	running               atomic.Int64
	stats                 struct {
		invalidations, unanswered, values, uncompared, drifted atomic.Uint64
		old                                                    [3]atomic.Uint64
	}
}

const (
	maxAuditRate = 100 // of each kind

	maxAudits  = 128                   // under way at once in a keyspace; what comes beyond it is not checked
	longAudit  = time.Hour             // nothing is asked about for longer
	auditSlack = 50 * time.Millisecond // of the bound: the coarse clock's lag
)

// pace lets something happen now and then. The zero one never does.
type pace struct {
	every int64
	next  atomic.Int64
}

// due tells whether it is time. It is cheap: it is asked on every occasion.
func (p *pace) due(now int64) bool {
	if p.every == 0 {
		return false
	}
	at := p.next.Load()
	return now >= at && p.next.CompareAndSwap(at, now+p.every)
}

func (a *audit) set(cfg AuditConfig) {
	if cfg.Invalidations > 0 {
		a.invalidations.every = int64(time.Second) / int64(cfg.Invalidations)
	}
	if cfg.Values > 0 {
		a.values.every = int64(time.Minute) / int64(cfg.Values)
	}
}

// runAudit runs a check of a key in the background.
func (ks *keyspace) runAudit(key string, check func(key string)) {
	a := &ks.audit
	key = strings.Clone(key)
	started := a.running.Add(1) <= maxAudits && ks.node.run("audit", func() {
		defer a.running.Add(-1)
		check(key)
	})
	if !started {
		a.running.Add(-1)
	}
}

// followUp follows up an Invalidate of the key, which began at began and has just returned nil.
func (ks *keyspace) followUp(key string, began int64) {
	n, a := ks.node, &ks.audit
	returned := n.clock.Exact()
	a.stats.invalidations.Add(1)
	for wait := n.bound + auditSlack; wait < longAudit && sleep(ks.ctx, wait); wait *= 2 {
		old := ks.older(key, began)
		if len(old) == 0 {
			return
		}
		late := time.Duration(n.clock.Exact() - returned)
		switch {
		case late <= 10*n.bound:
			a.stats.old[0].Add(uint64(len(old)))
		case late <= 100*n.bound:
			a.stats.old[1].Add(uint64(len(old)))
		default:
			a.stats.old[2].Add(uint64(len(old)))
		}
		n.cfg.Logger.Error("nearcache: audit: members serve what was invalidated", "keyspace", ks.name, "key", key, "members", old, "since", late)
	}
}

// older asks all members and returns those that serve a value of the key whose load began before began.
func (ks *keyspace) older(key string, began int64) (ids []string) {
	n := ks.node
	m := n.members.Load()
	old := make([]bool, len(m.Members))
	var g errgroup.Group
	g.SetLimit(tellers)
	for i := range m.Members {
		if i != m.Self && m.peers[i] == nil {
			continue
		}
		g.Go(func() error {
			req := &transport.Request{
				Op: transport.OpPeek, Flags: transport.FlagCopies, Keyspace: ks.name, Key: key, Budget: n.cfg.PeerTimeout,
			}
			rep, err := ks.exchange(ks.ctx, m, i, req)
			if err != nil {
				ks.audit.stats.unanswered.Add(1)
				return nil //nolint:nilerr // it is counted
			}
			served := rep.Status == transport.StatusHit || rep.Status == transport.StatusAbsent
			// The age is that at some time before now, by a clock that may run faster than this one.
			old[i] = served && n.clock.Exact()-int64(rep.Age-rep.Age/64) < began
			return nil
		})
	}
	_ = g.Wait() // none of them fails
	for i, is := range old {
		if is {
			ids = append(ids, m.Members[i].ID)
		}
	}
	return ids
}

// peekCopies answers what this member serves of a key, to its own callers or to others: of a near copy and an entry of its shard the older
// one, without the value.
func (ks *keyspace) peekCopies(req *transport.Request, rep *transport.Reply) {
	ks.peek(req, rep)
	rep.Value, rep.HasValue, rep.Tags = nil, false, nil
	c := ks.local.nearView(req.Key, ks.node.clock.Exact())
	if c == nil || rep.Status != transport.StatusMiss && rep.Age >= c.Age {
		return
	}
	*rep = transport.Reply{Status: transport.StatusHit, Age: c.Age, TTL: c.Left, Version: c.Version}
	if c.Absent {
		rep.Status = transport.StatusAbsent
	}
}

// compare compares what this node serves of a key with what the origin had a Bound before.
func (c *Cache[V]) compare(key string) {
	s := &c.audit.stats
	s.values.Add(1)
	l, err := c.callLoader(c.keyspace.ctx, key)
	if err != nil || !sleep(c.keyspace.ctx, c.node.bound+auditSlack) {
		s.uncompared.Add(1)
		return
	}
	served, ok := c.serves(c.keyspace.ctx, key)
	switch {
	case !ok:
		s.uncompared.Add(1)
	case served.start >= l.start, served.absent && l.absent: // younger, or the same
	case c.cfg.VersionOf != nil && !served.absent && !l.absent && served.version >= l.version:
	case c.cfg.VersionOf == nil && served.absent == l.absent && bytes.Equal(served.bytes, l.bytes):
	default:
		s.drifted.Add(1)
		c.node.cfg.Logger.Warn("nearcache: audit: a cached value is older than the origin's", "keyspace", c.name, "key", key)
	}
}

// serves returns what a reader on this node would get without a load. False: there is nothing, or its owner did not answer.
func (c *Cache[V]) serves(ctx context.Context, key string) (l loaded[V], ok bool) {
	if it, ok := c.near.Peek(key, c.clock.Now()); ok {
		l = loaded[V]{absent: it.Absent(), version: it.Version(), start: it.LoadedAt()}
		if !it.Absent() {
			b, err := encode(c.cfg.Codec, it.Value)
			if err != nil {
				return l, false
			}
			l.bytes = b
		}
		return l, true
	}
	r := c.route(key)
	if r.owner < 0 {
		return l, false
	}
	rep, err := c.exchange(ctx, r.m, r.owner, &transport.Request{Op: transport.OpPeek, Keyspace: c.name, Key: key, Budget: c.node.cfg.PeerTimeout})
	if err != nil || rep.Status != transport.StatusHit && rep.Status != transport.StatusAbsent {
		return l, false
	}
	start := c.clock.Exact() - int64(rep.Age)
	return loaded[V]{absent: rep.Status == transport.StatusAbsent, version: rep.Version, bytes: rep.Value, start: start}, true
}

func (a *audit) snapshot() AuditStats {
	s := &a.stats
	return AuditStats{
		Invalidations: s.invalidations.Load(), Unanswered: s.unanswered.Load(),
		Old: s.old[0].Load(), OldTenBounds: s.old[1].Load(), OldHundred: s.old[2].Load(),
		Values: s.values.Load(), Uncompared: s.uncompared.Load(), Drifted: s.drifted.Load(),
	}
}
