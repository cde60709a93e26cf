package nearcache

import (
	"slices"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// maxOwed bounds the keys that a keyspace owes others.
const maxOwed = 1 << 16

// repay tells what is owed to those that can be told, and writes off what is owed to those that can hold nothing any more (R9).
func (ks *keyspace) repay(now int64) {
	m := ks.node.members.Load()
	for _, owed := range []*invalidation.Owed{ks.owed, ks.owedTags} {
		for _, member := range owed.Members(now) {
			switch {
			case ks.node.gone(m, member, now):
				owed.Settle(member)
			case m.peer(member).Connected() || len(ks.node.relays(m, member, now)) > 0:
				ks.node.run("repay", func() { ks.payOff(owed, member) })
			}
		}
	}
}

// payOff tells one member what it is owed, until it does not confirm or nothing is owed. One that does not answer in time may hear it all the
// same: then it is told again, which costs nothing.
func (ks *keyspace) payOff(owed *invalidation.Owed, member string) {
	for {
		d, ok := owed.Take(member, ks.node.clock.Exact())
		if !ok {
			return
		}
		confirmed, all := ks.pay(d, owed == ks.owedTags)
		owed.Done(d, confirmed)
		ks.settled.ring()
		if !all {
			return
		}
	}
}

// pay tells debts, of tags or of keys, and returns how many were confirmed.
func (ks *keyspace) pay(d invalidation.Debts, tags bool) (confirmed int, all bool) {
	n := ks.node
	if d.All {
		if !ks.tellSomehow(d.Member, n.invalidateRequest(ks.name, nil, 0)) {
			return 0, false
		}
		return 1, true
	}
	parts := chunks(d.Keys)
	request := func(part []string) *transport.Request { return n.invalidateRequest(ks.name, part, 0) }
	if tags {
		parts = slices.Chunk(d.Keys, transport.MaxTags)
		request = func(part []string) *transport.Request { return n.tagsRequest(ks.name, part) }
	}
	for chunk := range parts {
		if !ks.tellSomehow(d.Member, request(chunk)) {
			return confirmed, false
		}
		confirmed += len(chunk)
	}
	return confirmed, true
}

// tellSomehow tells a member itself, or else through others that hear it. One that left a call unanswered is told by others first.
func (ks *keyspace) tellSomehow(member string, req *transport.Request) bool {
	m, now := ks.node.members.Load(), ks.node.clock.Exact()
	p := m.peer(member)
	if p == nil {
		return true // it has left
	}
	n := ks.node
	ready := p.Ready()
	if ready && n.pass(n.ctx, p, req) == nil {
		return true
	}
	relayed := *req
	relayed.Op, relayed.Key = transport.OpRelay, member
	for _, via := range n.relays(m, member, now) {
		if n.pass(n.ctx, via, &relayed) == nil {
			return true
		}
	}
	return !ready && p.Connected() && n.pass(n.ctx, p, req) == nil
}
