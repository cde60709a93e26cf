package sim

import (
	"time"

	"github.com/nearcache/nearcache/invalidation"
)

// repay tells what is owed to those that can be told, and writes off what is owed to those that can hold nothing any more (keyspace.repay).
func (n *node) repay(now int64) {
	if !n.w.cfg.Rules.Owed {
		return
	}
	for _, owed := range []*invalidation.Owed{n.owed, n.owedTags} {
		for _, member := range owed.Members(now) {
			p := n.peers[member]
			switch {
			case n.gone(member, now):
				owed.Settle(member)
			case p.connected() || len(n.relays(member, now)) > 0:
				n.soon(func() { n.payOff(owed, member) })
			}
		}
	}
}

// payOff tells one member what it is owed (keyspace.payOff).
func (n *node) payOff(owed *invalidation.Owed, member string) {
	d, ok := owed.Take(member, n.exact())
	if !ok {
		return
	}
	req := n.invalidateRequest(d.Keys)
	if owed == n.owedTags {
		req = n.tagsRequest(d.Keys)
	}
	n.tellSomehow(member, req, func(confirmed bool) {
		count := 0
		if confirmed {
			count = max(len(d.Keys), 1)
		}
		owed.Done(d, count)
		if confirmed {
			n.payOff(owed, member)
		}
	})
}

// tellSomehow tells a member itself, or else through others that hear it (keyspace.tellSomehow).
func (n *node) tellSomehow(member string, req request, done func(confirmed bool)) {
	p := n.peers[member]
	if p == nil {
		done(true)
		return
	}
	ready := p.ready()
	via := n.relays(member, n.exact())
	var next func()
	next = func() {
		if len(via) == 0 {
			if ready || !p.connected() {
				done(false)
				return
			}
			n.pass(p, req, func(err error) { done(err == nil) })
			return
		}
		relayed := req
		relayed.relay = member
		through := via[0]
		via = via[1:]
		n.pass(through, relayed, func(err error) {
			if err == nil {
				done(true)
				return
			}
			next()
		})
	}
	if !ready {
		next()
		return
	}
	n.pass(p, req, func(err error) {
		if err == nil {
			done(true)
			return
		}
		next()
	})
}

// pass passes an invalidation to a peer (Node.pass). The breaker does not keep it away.
func (n *node) pass(p *peer, req request, done func(error)) {
	p.startAnyway(req, func(rep *reply, err error) {
		if err != nil {
			n.unanswered(p)
		} else if rep.status != statusOK {
			err = errDown
		}
		done(err)
	})
}

// invalidateRequest makes the request to drop keys, or with none the whole keyspace.
func (n *node) invalidateRequest(keys []string) request {
	return request{op: opInvalidate, keys: keys, all: len(keys) == 0, budget: 3 * int64(n.w.cfg.Bound)}
}

// tagsRequest makes the request to drop what has one of the tags (Node.tagsRequest).
func (n *node) tagsRequest(tags []string) request {
	req := n.invalidateRequest(nil)
	req.tags = tags
	return req
}

// ownVersions is what a process has set (a model: the root remembers nothing of a Set, R16).
type ownVersions map[string]ownVersion

type ownVersion struct {
	version uint64
	until   int64
}

func (o ownVersions) wrote(key string, version uint64, now int64, keep time.Duration) {
	v := o[key]
	o[key] = ownVersion{version: max(v.version, version), until: max(v.until, now+int64(keep))}
}

func (o ownVersions) old(key string, version uint64, asked int64) bool {
	v := o[key]
	return version < v.version && asked < v.until
}

// maxOwed bounds what is owed.
const maxOwed = 1 << 16

func newOwed() *invalidation.Owed { return invalidation.NewOwed(maxOwed) }
