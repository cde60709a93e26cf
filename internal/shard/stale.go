package shard

import "github.com/nearcache/nearcache/internal/store"

// servable tells whether v is a stale copy that may be served: it is not fresh, has not reached its end, and is not known to be invalidated. What
// ExpireAll left has no time beyond its lifetime.
func (s *Shard) servable(v *Value, now int64) bool {
	end := v.Hard
	if s.outdates(v) && !v.Expired {
		end = v.Soft
	}
	kept := v.Hard > v.Soft && !v.Expired // StaleOnError; without it nothing is left of what doubt ends early
	return (kept || s.left(v)) && now < end && !v.Absent && !s.Fresh(v, now) && s.tags.Alive(&v.Mark)
}

// stale is the result of who gets a stale copy.
func (s *Shard) stale(v *Value) Result { return Result{Kind: Stale, Value: v, Lapsed: !s.left(v)} }

// spare returns the stale copy of key, or nil. A lock of the key's shard may be held.
func (s *Shard) spare(key string, now int64) *Value {
	if v := valueOf(s.store.Find(key)); v != nil && s.servable(v, now) {
		return v
	}
	return nil
}

// inherit lets v, which ends early since its filler or this member was not sure of itself, be served as a stale copy for as long as what it
// replaces: it is newer.
func (s *Shard) inherit(v, replaced *Value, now int64) {
	if replaced.Hard > v.Hard && s.servable(replaced, now) {
		v.Hard, v.Inherits = replaced.Hard, true
	}
}

// postpone lets no load of the key begin for a while, if it has a stale copy.
func (t *table) postpone(tx *store.Tx[packed], now int64) {
	if v := resident(tx); v != nil && t.s.servable(v, now) {
		v.Retry = now + t.s.cfg.Retry
		put(tx, v, now)
	}
}

// instead returns what w gets for want of a value: the stale copy, if there is one and it does, else r.
func (t *table) instead(w *waiter, r Result, now int64) Result {
	if w.ask.Fresh {
		return r
	}
	if v := t.s.spare(w.lease.key, now); v != nil {
		return t.s.stale(v)
	}
	return r
}
