package shard

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// table is what the leases and tombstones of one shard of the store are kept in.
//
// Invariant: a waiter is queued behind a lease in the table, and a lease in the table has one holder and one token. All
// fields but s and maxLeases are guarded by the lock of the store's shard of the same index.
type table struct {
	s         *Shard
	maxLeases int
	leases    map[string]*lease
	due       deadlines
	tombs     *simplelru.LRU[string, tombstone]
	floor     int64  // no forgotten tombstone is later
	view      uint64 // of the last Move
	asides    asides
}

// lease is the permission to fill one key, and the queue behind it.
type lease struct {
	key         string
	token       Token
	holder      string
	asker       any  // Ask.Waiter of the grant, or who said last that the load goes on
	lost        bool // asker is gone
	granted     int64
	tagPos      int64 // of the Shard's tags when it was granted: its load begins after that (R15)
	cap         int64 // what was loaded lives so long at most; 0: as long as its filler says
	expires     int64 // its granted life is over
	view        uint64
	passed      bool // its last holder was short of loader slots
	due         deadline
	first, last *waiter
}

// waiter is an ask that was answered Waiting.
type waiter struct {
	lease      *lease
	ask        Ask
	after      uint64 // only a lease with a higher number answers it
	due        deadline
	prev, next *waiter
}

func (t *table) init(s *Shard, maxLeases, maxTombstones int) {
	t.s, t.maxLeases = s, maxLeases
	t.leases = make(map[string]*lease)
	t.tombs = t.newTombstones(maxTombstones)
}

// eachTable calls f for one table after the other, with its lock held.
func (s *Shard) eachTable(f func(*table)) {
	for i := range s.tables {
		s.withTable(i, f)
	}
}

func (s *Shard) withTable(i int, f func(*table)) {
	s.store.Lock(i)
	defer s.store.Unlock(i)
	f(&s.tables[i])
}

// Leased describes the lease of a key.
type Leased struct {
	Holder           string // as Ask.Holder
	Granted, Expires int64
	Waiters          int // queued behind it
}

// Leased returns what is known of the lease of a key, for onlookers; false: there is none. Its cost grows with the queue.
func (s *Shard) Leased(key string) (Leased, bool) {
	tx := s.store.Begin(key)
	defer tx.End()
	l := s.tables[tx.Shard()].leases[key]
	if l == nil {
		return Leased{}, false
	}
	v := Leased{Holder: l.holder, Granted: l.granted, Expires: l.expires}
	for w := l.first; w != nil; w = w.next {
		v.Waiters++
	}
	return v, true
}

// add puts a lease without a holder into the table: grant follows under the same lock.
func (t *table) add(key string) *lease {
	l := &lease{key: key}
	l.due.lease, l.due.pos = l, -1
	t.leases[key] = l
	t.s.leases.Add(1)
	return l
}

// all returns the leases in the order of their grants, so that what becomes of them and of those who wait does not depend on chance.
func (t *table) all() []*lease {
	if len(t.leases) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Values(t.leases), func(a, b *lease) int { return cmp.Compare(a.token.Number, b.token.Number) })
}

// remove ends a lease nobody is queued behind any more.
func (t *table) remove(l *lease) {
	t.due.remove(&l.due)
	delete(t.leases, l.key)
	t.s.leases.Add(-1)
}

// grant makes the asker the holder of l, under a new token.
func (t *table) grant(l *lease, ask Ask, now int64) Result {
	l.token = Token{Incarnation: t.s.cfg.Incarnation, Number: t.s.tokens.Add(1)}
	l.holder, l.view, l.passed = ask.Holder, ask.View, false
	l.asker, l.lost = ask.Waiter, false
	l.granted, l.expires, l.tagPos = now, now+ask.Life, t.s.tags.Pos()
	l.cap = int64(t.s.cfg.Cap(l.key, now))
	t.due.set(&l.due, l.expires)
	return Result{Kind: Lease, Token: l.token, Seq: t.s.cfg.Seq()}
}

// live returns the lease of key if token is its token and its life is not over. Otherwise it returns nil, after the
// lease, if it is that token's, was passed on.
func (t *table) live(key string, token Token, now int64, eff *Effect) *lease {
	l := t.leases[key]
	if l == nil || l.token != token {
		return nil
	}
	if l.due.at <= now {
		t.expire(l, now, eff)
		return nil
	}
	return l
}

// expire passes on a lease whose life is over.
func (t *table) expire(l *lease, now int64, eff *Effect) {
	t.s.expired.Add(1)
	t.revoke(l, eff)
	t.next(l, now, eff)
}

// revoke notes that the holder of l has lost it. next, or remove, follows.
func (t *table) revoke(l *lease, eff *Effect) {
	eff.Revoked = append(eff.Revoked, Revoked{Key: l.key, Token: l.token, Holder: l.holder})
}

// next passes l on to whoever has waited longest, or removes it.
func (t *table) next(l *lease, now int64, eff *Effect) {
	for w := l.first; w != nil; w = l.first {
		if w.ask.Until > now {
			t.passTo(l, w, now, eff)
			return
		}
		t.wake(w, t.instead(w, Result{Kind: TimedOut}, now), eff)
	}
	t.remove(l)
}

// passTo makes w the holder of the lease it waited behind.
func (t *table) passTo(l *lease, w *waiter, now int64, eff *Effect) {
	t.wake(w, t.grant(l, w.ask, now), eff)
}

// answer wakes everybody whom l can answer with r, passes l on if somebody is left, and removes it otherwise.
func (t *table) answer(l *lease, r Result, now int64, eff *Effect) {
	for w := l.first; w != nil; {
		next := w.next
		if w.after < l.token.Number {
			t.wake(w, r, eff)
		}
		w = next
	}
	t.next(l, now, eff)
}

// dismiss wakes everybody with r and removes l.
func (t *table) dismiss(l *lease, r Result, eff *Effect) {
	for l.first != nil {
		t.wake(l.first, r, eff)
	}
	t.remove(l)
}

func (t *table) wake(w *waiter, r Result, eff *Effect) {
	t.unqueue(w)
	eff.Wakes = append(eff.Wakes, Wake{Waiter: w.ask.Waiter, Result: r})
}

func (t *table) enqueue(l *lease, ask Ask, now int64) {
	w := &waiter{lease: l, ask: ask, prev: l.last}
	w.due.lease, w.due.waiter, w.due.pos = l, w, -1
	limit := l.cap
	if limit == 0 {
		limit = int64(t.s.cfg.Cap(l.key, now))
	}
	// Half of it is for the load, the other half for those who join the asker while it waits: what they get is as old as both.
	if ask.Fresh || limit > 0 && now-l.granted > limit/2 {
		w.after = l.token.Number
	}
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	t.due.set(&w.due, ask.Until)
	t.s.waiters.Add(1)
}

func (t *table) unqueue(w *waiter) {
	l := w.lease
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	t.due.remove(&w.due)
	t.s.waiters.Add(-1)
}
