package shard

import "github.com/nearcache/nearcache/internal/store"

// Cause says why a lease is given back without a value.
type Cause uint8

// The causes.
const (
	// LoadFailed: the load ended in an error, a panic or a timeout. Everybody who waits gets the stale copy, if there is one, else the
	// failure, once: a failing key is not loaded by every waiter in turn.
	LoadFailed Cause = iota + 1
	// Abandoned: nobody at the holder wants the value any more, or the holder stops. The longest waiter gets the next lease.
	Abandoned
	// Shed: the holder has no loader slot. The lease passes once to the longest waiter on another member; if there is
	// none, or that one is short of slots too, everybody who waits gets the failure.
	Shed
)

// Cond restricts a Set.
type Cond struct {
	IfAbsent  bool   // store only where no fresh value is resident; a negative entry is none
	IfPresent bool   // store only where one is
	View      uint64 // as Ask.View
}

// Fill ends a lease with the loaded value or absence and stores it (R2). Stored: it is resident, and everybody who
// waited gets it. Passed: they get it, but it is expired or larger than the store takes, so nothing is resident.
// Rejected: the lease is not live, and nothing happens; or v is older than what is known of the key or of one of its tags, and those
// who waited get the newer resident value, or else the longest waiter the next lease. The holder may give a rejected value
// to callers that were waiting when its load began, and to nobody else.
//
// An ask with Fresh that was queued after the lease was granted is not answered by it: the first of them gets the next
// lease. v.Bytes belongs to the Shard from here on, whatever the outcome; key may alias a buffer.
func (s *Shard) Fill(key string, token Token, v Value, now int64) Effect {
	return s.fill(key, token, v, now, true)
}

// Pass is Fill for a value that must not be kept: no lifetime, too large, or loaded in doubt. Its outcome is Passed or
// Rejected. What was resident is older and is removed.
func (s *Shard) Pass(key string, token Token, v Value, now int64) Effect {
	return s.fill(key, token, v, now, false)
}

func (s *Shard) fill(key string, token Token, v Value, now int64, keep bool) (eff Effect) {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	l := t.live(key, token, now, &eff)
	if l == nil {
		s.refused.lease.Add(1)
		eff.Outcome = Rejected
		return eff
	}
	v.beganBy(l.granted)
	if l.cap > 0 && v.Vouched == 0 { // what another owner vouched for is as long as that one says
		v.endBy(v.LoadedAt + l.cap)
	}
	v.Mark = v.Mark.At(l.tagPos)
	if !s.tags.Alive(&v.Mark) {
		s.refused.tag.Add(1)
		eff.Outcome = Rejected
		t.next(l, now, &eff)
		return eff
	}
	old := resident(&tx)
	if old != nil && now < old.Hard && v.older(old.Version) {
		s.refused.version.Add(1)
		eff.Outcome = Rejected
		if s.Fresh(old, now) {
			t.answer(l, Result{Kind: Hit, Value: old, Seq: s.cfg.Seq()}, now, &eff)
		} else {
			t.next(l, now, &eff)
		}
		return eff
	}
	if _, least := t.tombstone(key); v.older(least) {
		s.refused.version.Add(1)
		eff.Outcome = Rejected
		t.next(l, now, &eff)
		return eff
	}
	if l.cap > 0 && old != nil {
		s.inherit(&v, old, now)
	}
	if end := max(t.lagEnd(key), s.tagLagEnd(&v)); end > 0 && v.LoadedAt < end { // what another member loaded may be older than this one's clock
		v.endBy(end)
	}
	r := t.place(&tx, key, v, now, keep)
	r.Seq = s.cfg.Seq()
	eff.Outcome, eff.Seq, eff.Until, eff.Lasts = outcome(r), r.Seq, s.FreshUntil(r.Value), r.Value.Lasts()
	t.answer(l, r, now, &eff)
	return eff
}

// place makes v the resident value of the key, or removes what is resident if v cannot be kept, and returns what those who
// wait get, but for the log number.
func (t *table) place(tx *store.Tx[packed], key string, v Value, now int64, keep bool) Result {
	t.asides.drop(key)
	if keep && now < v.Hard {
		if put(tx, &v, now) {
			t.asides.fit(tx.Room())
			return Result{Kind: Hit, Value: &v}
		}
	}
	tx.Delete()
	return Result{Kind: Hit, Value: &v, Uncached: true}
}

func outcome(placed Result) Outcome {
	if placed.Uncached {
		return Passed
	}
	return Stored
}

// Release ends a lease without a value; failure is what those who waited get in Result.Failure where cause says so. A
// token that is not live changes nothing.
func (s *Shard) Release(key string, token Token, cause Cause, failure any, now int64) (eff Effect) {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	l := t.live(key, token, now, &eff)
	if l == nil {
		return eff
	}
	switch cause {
	case Abandoned:
		t.next(l, now, &eff)
		return eff
	case Shed:
		if w := l.elsewhere(now); w != nil && !l.passed {
			t.passTo(l, w, now, &eff)
			l.passed = true
			return eff
		}
	case LoadFailed:
	}
	t.postpone(&tx, now)
	for l.first != nil {
		t.wake(l.first, t.instead(l.first, Result{Kind: Failed, Failure: failure}, now), &eff)
	}
	t.remove(l)
	return eff
}

// elsewhere returns the longest waiter on another member than the holder's.
func (l *lease) elsewhere(now int64) *waiter {
	for w := l.first; w != nil; w = w.next {
		if w.ask.Holder != l.holder && w.ask.Until > now {
			return w
		}
	}
	return nil
}

// Set stores a value that was written to the origin, without a lease: Stored, or Passed if it cannot be kept, Rejected
// if cond or a higher version forbids it, Outdated. When stored or passed it is a change of the key: Config.Dropped is
// called, a lease is revoked, since its load may have read the old value (R1), and everybody who waited gets the new one.
// v.Bytes belongs to the Shard from here on; key may alias a buffer.
func (s *Shard) Set(key string, v Value, cond Cond, now int64) (eff Effect) {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	if cond.View < t.view {
		eff.Outcome = Outdated
		return eff
	}
	old := resident(&tx)
	if old != nil && now >= old.Hard {
		old = nil
	}
	if !t.allowed(key, old, v, cond, now) {
		eff.Outcome = Rejected
		return eff
	}
	l := t.leases[key]
	if l != nil {
		t.revoke(l, &eff)
	}
	v.Mark = v.Mark.At(s.tags.Pos())
	r := t.place(&tx, key, v, now, !s.held(key))
	if v.Version > 0 {
		t.rememberSet(key, v.Version) // a Set that was under way for longer finds it, even if this value is gone by then
	}
	s.cfg.Dropped(key)
	r.Seq = s.cfg.Seq()
	eff.Outcome, eff.Seq, eff.Until, eff.Lasts = outcome(r), r.Seq, s.FreshUntil(r.Value), r.Value.Lasts()
	if l != nil {
		t.dismiss(l, r, &eff)
	}
	return eff
}

// allowed tells whether a Set may replace old, which may be nil.
func (t *table) allowed(key string, old *Value, v Value, cond Cond, now int64) bool {
	present := old != nil && t.s.Fresh(old, now) && !old.Absent
	if cond.IfAbsent && present || cond.IfPresent && !present {
		return false
	}
	if old != nil && v.older(old.Version) {
		return false
	}
	tomb, _ := t.tombs.Peek(key)
	return !v.older(max(tomb.least, tomb.set))
}
