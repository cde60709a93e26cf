package shard

import "time"

// ExpireAll is Expire for whatever is resident: nothing that was loaded by now is fresh any more, values among it may be served as
// stale copies until their hard end, and all leases are revoked. It takes as long for many entries as for few. What it left is replaced as
// it is asked for, by Config.Refreshes loads a second at most; whoever asks beyond that gets the stale copy and no lease.
//
// It forgets no lowest version and does not call Config.Dropped: the caller numbers one event for the whole keyspace after it. It locks one
// part after the other.
func (s *Shard) ExpireAll(now int64) (eff Effect) {
	// Order: the mark first. A load that read the old value and fills its key before its lease is revoked began by the mark.
	for {
		first := s.outdated.Load()
		if first > now || s.outdated.CompareAndSwap(first, now+1) {
			break
		}
	}
	s.eachTable(func(t *table) {
		t.asides.clear()
		for _, l := range t.all() {
			t.revoke(l, &eff)
			t.next(l, now, &eff)
		}
	})
	return eff
}

// left tells whether v is not fresh because of Expire or ExpireAll, and not for its age or for what it may have missed.
func (s *Shard) left(v *Value) bool {
	return (v.Expired || s.outdates(v)) && !s.cfg.Limits.Load().missed(v)
}

// outdates tells whether ExpireAll concerns v.
func (s *Shard) outdates(v *Value) bool {
	first := s.outdated.Load()
	return first > 0 && v.LoadedAt < first
}

// mayRefresh tells whether a lease may be granted now to replace a stale copy. Only what ExpireAll left waits for a turn: that may be all keys
// at once.
func (s *Shard) mayRefresh(stale *Value, now int64) bool {
	if now < stale.Retry {
		return false
	}
	if stale.Expired || !s.outdates(stale) || s.cfg.Refreshes <= 0 {
		return true
	}
	next := s.refresh.Load()
	return now >= next && s.refresh.CompareAndSwap(next, now+int64(time.Second)/int64(s.cfg.Refreshes))
}
