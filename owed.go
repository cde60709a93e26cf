package nearcache

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nearcache/nearcache/internal/transport"
)

// owed is what this node could not tell: invalidations that an owner has not confirmed (R9). It is told again until it is confirmed, or
// until no copy can be left. It holds a bounded number of keys; beyond it, a member is owed the invalidation of the whole keyspace.
type owed struct {
	some atomic.Bool // anything is owed

	mu   sync.Mutex // guards what follows
	keys map[string]debt
	all  map[string]debt // by member: the whole keyspace
	busy bool            // a goroutine is telling
	next uint64
}

// debt is one invalidation.
type debt struct {
	number uint64 // a later one of the same key has another
	until  int64  // no copy that missed it is left
}

// maxOwed bounds the keys of a keyspace.
const maxOwed = 1 << 16

// owe remembers that member did not confirm the keys, or with none the whole keyspace.
func (o *owed) owe(member string, keys []string, until int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys == nil {
		o.keys, o.all = make(map[string]debt), make(map[string]debt)
	}
	o.next++
	d := debt{number: o.next, until: until}
	if len(keys) == 0 || len(o.keys)+len(keys) > maxOwed {
		o.all[member] = d
	} else {
		for _, k := range keys {
			o.keys[strings.Clone(k)] = d // the caller may reuse its memory
		}
	}
	o.some.Store(true)
}

// take returns what is owed and still matters, if nobody is telling it already. done follows.
func (o *owed) take(now int64) (keys, all map[string]debt, ok bool) {
	if !o.some.Load() {
		return nil, nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy {
		return nil, nil, false
	}
	over := func(_ string, d debt) bool { return now >= d.until }
	maps.DeleteFunc(o.keys, over)
	maps.DeleteFunc(o.all, over)
	if len(o.keys)+len(o.all) == 0 {
		o.some.Store(false)
		return nil, nil, false
	}
	o.busy = true
	return maps.Clone(o.keys), maps.Clone(o.all), true
}

// done ends a telling: what was confirmed is not owed any more, unless it is owed anew.
func (o *owed) done(keys, all map[string]debt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = false
	for k, d := range keys {
		if o.keys[k].number == d.number {
			delete(o.keys, k)
		}
	}
	for m, d := range all {
		if o.all[m].number == d.number {
			delete(o.all, m)
		}
	}
}

// repay tells what is owed. A member that does not answer in time may hear it all the same: then it is told again, which costs nothing.
func (ks *keyspace) repay(now int64) {
	keys, all, ok := ks.owed.take(now)
	if !ok {
		return
	}
	started := ks.node.run("repay", func() {
		m := ks.node.members.Load()
		maps.DeleteFunc(all, func(member string, _ debt) bool { return !ks.repaidAll(m, member) })
		repaid := make(map[string]debt)
		for target, part := range m.byOwner(ks.name, slices.Collect(maps.Keys(keys))) {
			for chunk := range chunks(part) {
				if !ks.repaid(m, target, chunk) {
					break
				}
				for _, k := range chunk {
					repaid[k] = keys[k]
				}
			}
		}
		ks.owed.done(repaid, all)
	})
	if !started {
		ks.owed.done(nil, nil)
	}
}

// repaid tells an owner of keys, and reports whether it has confirmed them.
func (ks *keyspace) repaid(m *members, target int, keys []string) bool {
	if target == m.Self {
		ks.drop(keys, 0)
		return true
	}
	return ks.tellOnce(ks.node.ctx, m, target, keys, 0) == nil
}

// repaidAll tells a member that the whole keyspace is invalid. One that is not a member any more has lost what it held.
func (ks *keyspace) repaidAll(m *members, member string) bool {
	target := m.Ring.Index(member)
	if target < 0 || target == m.Self {
		return true
	}
	return ks.tellOnce(ks.node.ctx, m, target, nil, transport.FlagAll) == nil
}
