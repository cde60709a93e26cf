package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/ring"
)

// owed is what a node could not tell (the root's owed, R9).
type owed struct {
	debts []debt // in the order in which they came
	next  uint64
	busy  int
}

type debt struct {
	member, key string // an empty key: the member is owed the whole keyspace
	number      uint64
	until       int64
}

func (o *owed) owe(member, key string, until int64) {
	o.next++
	o.debts = slices.DeleteFunc(o.debts, func(d debt) bool { return d.key == key && d.member == member })
	o.debts = append(o.debts, debt{member: member, key: key, number: o.next, until: until})
}

// repay tells what is owed (keyspace.repay).
func (n *node) repay(now int64) {
	o := &n.owed
	if o.busy > 0 || !n.w.cfg.Rules.Owed {
		return
	}
	o.debts = slices.DeleteFunc(o.debts, func(d debt) bool { return now >= d.until })
	m := n.members
	for _, d := range slices.Clone(o.debts) {
		o.busy++
		n.repayOne(m, d, func(err error) {
			o.busy--
			if err == nil {
				o.debts = slices.DeleteFunc(o.debts, func(e debt) bool { return e.number == d.number })
			}
		})
	}
}

func (n *node) repayOne(m *members, d debt, done func(error)) {
	target := m.Ring.Index(d.member)
	if d.key != "" && !n.w.cfg.Rules.Targets {
		target = m.Ring.Owner(ring.Hash(keyspaceName, d.key))
	}
	switch {
	case n.w.cfg.Rules.Targets && target < 0:
		if n.goneSilent(d.member) {
			done(nil)
			return
		}
		done(errDown)
	case target < 0:
		done(nil)
	case target == m.Self:
		if d.key != "" {
			n.drop(d.key)
		}
		done(nil)
	default:
		n.tellOnce(m, target, d.key, false, done)
	}
}

// ownView is what this process has invalidated within the last Bound (the root's ownView, R16), without its limits.
type ownView struct {
	keys map[string]ownInvalidation
	all  ownInvalidation
}

type ownInvalidation struct {
	at, until int64
	version   uint64 // of a Set: lower ones are older
}

func (i ownInvalidation) makesOld(loaded, now int64) bool { return loaded < i.at && now < i.until }

func (i ownInvalidation) covering(j ownInvalidation) ownInvalidation {
	return ownInvalidation{at: max(i.at, j.at), until: max(i.until, j.until), version: max(i.version, j.version)}
}

func (o *ownView) invalidated(key string, at, now int64, bound time.Duration) {
	if o.keys == nil {
		o.keys = make(map[string]ownInvalidation)
	}
	o.keys[key] = o.keys[key].covering(ownInvalidation{at: at, until: now + int64(bound)})
}

// wrote remembers the version of a Set (a model: the root remembers nothing).
func (o *ownView) wrote(key string, version uint64, now int64, bound time.Duration) {
	if o.keys == nil {
		o.keys = make(map[string]ownInvalidation)
	}
	o.keys[key] = o.keys[key].covering(ownInvalidation{version: version, until: now + int64(bound)})
}

func (o *ownView) allInvalidated(at, now int64, bound time.Duration) {
	o.all = o.all.covering(ownInvalidation{at: at, until: now + int64(bound)})
}

func (o *ownView) old(key string, loaded int64, version uint64, now int64) bool {
	i := o.keys[key]
	return i.makesOld(loaded, now) || o.all.makesOld(loaded, now) || version < i.version && now < i.until
}

func (o *ownView) tick(now int64) {
	for k, i := range o.keys {
		if now >= i.until {
			delete(o.keys, k)
		}
	}
}
