package nearcache

import (
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// maxOwed bounds the keys that a keyspace owes others.
const maxOwed = 1 << 16

// repay tells what is owed to those that can be told, and writes off what is owed to those that can hold nothing any more (R9).
func (ks *keyspace) repay(now int64) {
	m := ks.node.members.Load()
	for _, member := range ks.owed.Members(now) {
		switch {
		case ks.node.gone(m, member, now):
			ks.owed.Settle(member)
		case m.peer(member).Connected() || len(ks.node.relays(m, member, now)) > 0:
			ks.node.run("repay", func() { ks.payOff(member) })
		}
	}
}

// payOff tells one member what it is owed, until it does not confirm or nothing is owed. One that does not answer in time may hear it all the
// same: then it is told again, which costs nothing.
func (ks *keyspace) payOff(member string) {
	for {
		d, ok := ks.owed.Take(member, ks.node.clock.Exact())
		if !ok {
			return
		}
		confirmed, all := ks.pay(d)
		ks.owed.Done(d, confirmed)
		ks.settled.ring()
		if !all {
			return
		}
	}
}

// pay tells debts and returns how many were confirmed.
func (ks *keyspace) pay(d invalidation.Debts) (confirmed int, all bool) {
	if d.All {
		if !ks.tellSomehow(d.Member, nil) {
			return 0, false
		}
		return 1, true
	}
	for chunk := range chunks(d.Keys) {
		if !ks.tellSomehow(d.Member, chunk) {
			return confirmed, false
		}
		confirmed += len(chunk)
	}
	return confirmed, true
}

// tellSomehow tells a member itself, or else through others that hear it. One that left a call unanswered is told by others first.
func (ks *keyspace) tellSomehow(member string, keys []string) bool {
	m, now := ks.node.members.Load(), ks.node.clock.Exact()
	p := m.peer(member)
	if p == nil {
		return true // it has left
	}
	n := ks.node
	req := n.invalidateRequest(ks.name, keys, 0)
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
