package shard

// Limits end what is resident before its lifetime does: the member cannot be sure any more that it heard of every invalidation
// (docs/protocol.md R7). They are immutable; who replaces them never
// lowers Before, Ended or Caused: what they ended would be fresh again.
type Limits struct {
	// A value whose load began before Before is fresh until BeforeEnd at most. One that came from another owner counts from when that one
	// vouched for it (Value.Vouched).
	Before, BeforeEnd int64
	// A value that counts from before Ended is not fresh at all: it ended at an earlier BeforeEnd.
	Ended int64
	// A value that was vouched for before Caused is fresh for Bound at most, counted from then.
	Caused, Bound int64
	// End is when nothing is fresh any more; the largest number: never.
	End int64
}

// missed tells whether an invalidation of v may have gone past this member.
func (l *Limits) missed(v *Value) bool {
	return l != nil && v.since() < max(l.Before, l.Caused, l.Ended)
}

// FreshUntil returns when v stops being fresh, unless Limits.End comes first; 0: one of its tags was invalidated (R15), or an earlier
// limit ended it.
func (s *Shard) FreshUntil(v *Value) int64 {
	if !s.tags.Alive(&v.Mark) {
		return 0
	}
	end := v.Soft
	if first := s.outdated.Load(); first > 0 && v.LoadedAt < first { // what another member loaded may be older than this one's clock
		end = min(end, first-1)
	}
	l := s.cfg.Limits.Load()
	if l == nil {
		return end
	}
	if v.since() < l.Ended {
		return 0
	}
	if v.since() < l.Before {
		end = min(end, l.BeforeEnd)
	}
	if v.Vouched != 0 && v.Vouched < l.Caused {
		end = min(end, v.Vouched+l.Bound)
	}
	return end
}

// Fresh tells whether v is fresh at now: within its lifetime and the limits, not outdated by ExpireAll, and not dead by one of its tags.
func (s *Shard) Fresh(v *Value, now int64) bool {
	if l := s.cfg.Limits.Load(); l != nil && now >= l.End {
		return false
	}
	return now < s.FreshUntil(v)
}
