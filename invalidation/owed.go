package invalidation

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Owed is what a member could not tell others of one keyspace (R9): each of them is told again until it has confirmed, or until no copy can
// be left. What is owed twice is told once. It holds a bounded number of keys; a member for which there is no room is owed the
// invalidation of the whole keyspace instead, which costs that member entries and loses nothing.
//
// It is safe for concurrent use. Times are nanoseconds on the member's own clock.
type Owed struct {
	some atomic.Bool // anything is owed

	mu       sync.Mutex // guards what follows
	max      int        // keys, of all members
	keys     int        // owed, and not being told
	round    uint64     // of what is owed next: it begins when a member is told
	accounts map[string]*account
}

// account is what one member is owed.
type account struct {
	until   map[string]int64 // by key: no copy that missed its invalidation is left then
	order   []string         // the keys of until, as they came
	all     bool             // the whole keyspace is owed
	latest  int64            // no copy that missed any of it is left then
	settled uint64           // what was owed in this round, or before it, is not any more
	telling bool             // between Take and Done
}

// Debts are what one member is told.
type Debts struct {
	Member string
	Keys   []string // in the order in which they were owed first
	All    bool     // the whole keyspace; Keys is empty then

	account *account
	round   uint64
	until   []int64 // of Keys; one for All
}

// NewOwed returns an Owed for so many keys, of all members together.
func NewOwed(keys int) *Owed {
	return &Owed{max: keys, round: 1, accounts: make(map[string]*account)}
}

// Owe remembers until the time until that member did not confirm keys, or with none the whole keyspace. It returns the debt's round, for
// Settled. keys may be used again.
func (o *Owed) Owe(member string, keys []string, until int64) (round uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.oweLocked(member, keys, len(keys) == 0, func(int) int64 { return until })
	return o.round
}

func (o *Owed) oweLocked(member string, keys []string, all bool, until func(i int) int64) {
	a := o.accounts[member]
	if a == nil {
		a = &account{until: make(map[string]int64), settled: o.round - 1}
		o.accounts[strings.Clone(member)] = a
	}
	o.some.Store(true)
	for i, k := range keys {
		a.latest = max(a.latest, until(i))
		all = all || o.keys == o.max
		if all {
			continue
		}
		_, known := a.until[k]
		k = strings.Clone(k) // also if it is known: the map refers to the key of the last assignment
		if !known {
			a.order = append(a.order, k)
			o.keys++
		}
		a.until[k] = max(a.until[k], until(i))
	}
	if all {
		if len(keys) == 0 {
			a.latest = max(a.latest, until(0))
		}
		a.all = true
		o.emptyLocked(a)
	}
}

// emptyLocked takes an account's keys out.
func (o *Owed) emptyLocked(a *account) {
	o.keys -= len(a.order)
	a.order = nil
	clear(a.until)
}

// Members returns who is owed anything and is not being told, ordered. Of those that were owed it for long enough nothing is owed any more.
func (o *Owed) Members(now int64) []string {
	if !o.some.Load() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var members []string
	for m, a := range o.accounts {
		switch {
		case a.telling:
		case now >= a.latest:
			o.settleLocked(m, a)
		default:
			members = append(members, m)
		}
	}
	o.some.Store(len(o.accounts) > 0)
	slices.Sort(members)
	return members
}

// Take returns all that member is owed, for it to be told; Done follows. False: there is nothing, or it is being told already.
func (o *Owed) Take(member string, now int64) (Debts, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.accounts[member]
	if a == nil || a.telling {
		return Debts{}, false
	}
	d := Debts{Member: member, account: a, round: o.round}
	if a.all {
		d.All, d.until = true, []int64{a.latest}
	} else {
		for _, k := range a.order {
			if until := a.until[k]; now < until {
				d.Keys, d.until = append(d.Keys, k), append(d.until, until)
			}
		}
	}
	if !d.All && len(d.Keys) == 0 {
		o.settleLocked(member, a)
		return Debts{}, false
	}
	o.emptyLocked(a)
	a.all, a.latest, a.telling = false, 0, true
	o.round++
	return d, true
}

// Done ends a telling: confirmed is how many of the keys were, from the first on, or for the whole keyspace 1. The rest is owed still.
func (o *Owed) Done(d Debts, confirmed int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.accounts[d.Member]
	if a != d.account {
		return // settled meanwhile
	}
	a.telling = false
	switch {
	case confirmed < len(d.until):
		rest := d.until[confirmed:]
		if d.All {
			o.oweLocked(d.Member, nil, true, func(int) int64 { return rest[0] })
		} else {
			o.oweLocked(d.Member, d.Keys[confirmed:], false, func(i int) int64 { return rest[i] })
		}
	case a.latest == 0:
		o.settleLocked(d.Member, a)
	default:
		a.settled = d.round
	}
}

// Settle ends all that member is owed: it can hold nothing that missed an invalidation.
func (o *Owed) Settle(member string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a := o.accounts[member]; a != nil {
		o.settleLocked(member, a)
		o.round++
	}
}

func (o *Owed) settleLocked(member string, a *account) {
	o.emptyLocked(a)
	delete(o.accounts, member)
}

// Settled reports whether what member was owed in a round is not owed any more.
func (o *Owed) Settled(member string, round uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.accounts[member]
	return a == nil || round <= a.settled
}
