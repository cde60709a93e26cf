package shard

import "strings"

// Ask describes who asks for a key on a miss.
type Ask struct {
	Holder string // the asking member: holds the lease if one is granted
	// Waiter identifies the asker in Wake, Leave and Forget: a pointer, unique among those queued for the key. Nil: the asker does not wait,
	// Busy stands for Waiting.
	Waiter any
	Life   int64 // ns a granted lease lives
	Until  int64 // a queued asker is answered TimedOut from then on
	// Fresh asks for a value whose load begins after this call: neither a resident entry nor a load under way does.
	Fresh bool
	// Ahead asks for a value whose load begins now, while a fresh entry is still there. That does where somebody else loads.
	Ahead bool
	// View is the number of the ring (see Move) by which the caller found this member responsible for the key.
	View uint64
}

// Acquire answers an ask that Get could not: Hit (somebody filled the key meanwhile, or Get was not asked), Lease (load
// it yourself), Held (likewise, without a lease), Waiting (somebody else does: the result comes in a Wake of a later Effect, perhaps before Acquire
// returns to its caller), Stale (somebody else does, or will when the turn comes, and until then there is a stale copy; where that is no more
// than past its lifetime, Config.Patience is over), Moved or Busy. key may alias a buffer.
//
// Whoever gets Lease ends it with one Fill, Pass or Release. If the asker may keep a near copy, its interest in the key
// must be on record before this call, for as long as it may wait and keep the copy.
//
// A lease that expired with others queued behind it stays until Tick passes it on to the longest of them.
func (s *Shard) Acquire(key string, ask Ask, now int64) Result {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	if ask.View < t.view {
		return Result{Kind: Moved}
	}
	if s.held(key) {
		return Result{Kind: Held}
	}
	var stale *Value
	if v := resident(&tx); v != nil && !ask.Fresh {
		if s.Fresh(v, now) && !(ask.Ahead && t.leases[key] == nil) {
			return Result{Kind: Hit, Value: v, Seq: s.cfg.Seq()}
		}
		if s.servable(v, now) {
			stale = v
		}
	}
	l := t.leases[key]
	if l != nil && l.due.at <= now && l.first == nil {
		s.expired.Add(1)
		t.remove(l)
		l = nil
	}
	if l != nil {
		return t.join(l, ask, stale, now)
	}
	full := len(t.leases) >= t.maxLeases
	if stale != nil && (full || !s.mayRefresh(stale, now)) {
		return s.stale(stale)
	}
	if full {
		return Result{Kind: Busy}
	}
	l = t.add(strings.Clone(key))
	res := t.grant(l, ask, now)
	res.Value, res.Lapsed = stale, stale != nil && !s.left(stale)
	return res
}

// join lets an asker wait for the load of l, or have the stale copy, if there is one.
func (t *table) join(l *lease, ask Ask, stale *Value, now int64) Result {
	s := t.s
	full := ask.Waiter == nil || s.waiters.Load() >= int64(s.cfg.MaxWaiters)
	if stale != nil {
		patience := l.granted + s.cfg.Patience
		if full || s.left(stale) || now >= patience {
			return s.stale(stale)
		}
		ask.Until = min(ask.Until, patience)
	}
	if full {
		return Result{Kind: Busy}
	}
	t.enqueue(l, ask, now)
	return Result{Kind: Waiting}
}

// held tells whether nothing of the key is to be kept now. The order of a hold and an operation on its key is that of the Invalidate that
// follows the hold, and the operation, under the shard's lock.
func (s *Shard) held(key string) bool { return s.cfg.Held != nil && s.cfg.Held(key) }

// Leave takes waiter out of the queue for key. False: it is not queued, so its Wake was returned to somebody, who may
// not have delivered it yet. Its cost grows with the queue of the key.
func (s *Shard) Leave(key string, waiter any) bool {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	l := t.leases[key]
	if l == nil {
		return false
	}
	for w := l.first; w != nil; w = w.next {
		if w.ask.Waiter == waiter {
			t.unqueue(w)
			return true
		}
	}
	return false
}

// Forget takes every queued waiter out for which gone returns true, and returns their number. It looks at all of them.
// gone runs with a shard lock held and must only look.
func (s *Shard) Forget(gone func(waiter any) bool) int {
	n := 0
	s.eachTable(func(t *table) {
		for _, l := range t.all() {
			for w := l.first; w != nil; {
				next := w.next
				if gone(w.ask.Waiter) {
					t.unqueue(w)
					n++
				}
				w = next
			}
		}
	})
	return n
}
