package invalidation

// Bounds of a subscriber's queues and of one batch.
const (
	maxRevokes     = 1024    // queued; more, and the subscriber is reset
	maxRevokeBytes = 1 << 20 // queued; likewise
	maxRenewals    = 8       // unanswered; more, and the oldest, useless by then, is forgotten
	maxBatchBytes  = 256 << 10
)

// Subscriber is one member's place in an owner's Log, with what is queued for it alone. One goroutine, the writer of the
// stream, takes; everything else may be called concurrently. No method blocks but for the log's mutex.
type Subscriber struct {
	log    *Log
	member string
	ready  chan struct{} // holds one signal

	// The fields below are guarded by log.mu.
	cursor      uint64 // number of the last event taken
	closed      bool
	overflowed  bool // a revocation was lost: reset
	revokes     []Revoke
	revokeBytes int64
	queued      uint64 // revocations ever queued
	renewals    []renewal
}

// renewal waits for its answer until everything that was there when it came has been taken.
type renewal struct {
	nonce  uint64
	seq    uint64 // of the newest event when it came
	queued uint64 // revocations ever queued when it came
}

// Member returns the member it was made for.
func (s *Subscriber) Member() string { return s.member }

// Ready returns a channel that yields a value when there may be something to take. The writer calls Take until it returns false, then
// receives from Ready, and so on: a signal is never lost, and may be superfluous.
func (s *Subscriber) Ready() <-chan struct{} { return s.ready }

// Renew queues the answer to a renewal of the member's lease. The answer comes out of Take, behind all that was appended or queued before
// Renew was called. Answering the newest of several renewals answers the older ones.
func (s *Subscriber) Renew(nonce uint64) {
	s.log.mu.Lock()
	if len(s.renewals) == maxRenewals {
		s.renewals = append(s.renewals[:0], s.renewals[1:]...)
	}
	s.renewals = append(s.renewals, renewal{nonce: nonce, seq: s.log.seq.Load(), queued: s.queued})
	s.log.mu.Unlock()
	s.signal()
}

// Take moves the next part of the stream into b, at most limit events (at least one) and about 256 KiB, and reports whether there
// was anything. b's slices are reused; what was in b before is gone.
func (s *Subscriber) Take(b *Batch, limit int) bool {
	b.clear()
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.closed {
		return false
	}
	if s.overflowed || s.cursor < s.log.tail {
		s.resetLocked(b)
	}
	room := int64(maxBatchBytes)
	room = s.takeEventsLocked(b, limit, room)
	s.takeRevokesLocked(b, room)
	s.takeRenewalLocked(b)
	b.Seq = s.cursor
	return !b.Empty()
}

// Close ends the subscription: Take returns false from now on. It may be called twice.
func (s *Subscriber) Close() {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.revokes, s.renewals = nil, nil
	s.log.removeLocked(s)
}

func (s *Subscriber) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *Subscriber) revoke(r Revoke) {
	size := revokeBytes(&r)
	s.log.mu.Lock()
	switch {
	case s.closed || s.overflowed:
	case len(s.revokes) == maxRevokes || s.revokeBytes+size > maxRevokeBytes:
		s.overflowed = true
	default:
		s.revokes = append(s.revokes, r)
		s.revokeBytes += size
		s.queued++
	}
	s.log.mu.Unlock()
	s.signal()
}

// resetLocked gives up what the subscriber has not taken and puts it behind the newest event.
func (s *Subscriber) resetLocked(b *Batch) {
	b.Reset = true
	s.cursor = s.log.seq.Load()
	s.overflowed = false
	s.revokes, s.revokeBytes = nil, 0
	s.log.resets++
}

func (s *Subscriber) takeEventsLocked(b *Batch, limit int, room int64) int64 {
	head := s.log.seq.Load()
	for s.cursor < head && (len(b.Events) == 0 || len(b.Events) < limit && room > 0) {
		e := s.log.slotLocked(s.cursor + 1)
		room -= eventBytes(e)
		b.Events = append(b.Events, *e)
		s.cursor++
	}
	return room
}

func (s *Subscriber) takeRevokesLocked(b *Batch, room int64) {
	n := 0
	for n < len(s.revokes) && room > 0 {
		size := revokeBytes(&s.revokes[n])
		room -= size
		s.revokeBytes -= size
		n++
	}
	if n == 0 {
		return
	}
	b.Revokes = append(b.Revokes, s.revokes[:n]...)
	rest := copy(s.revokes, s.revokes[n:])
	clear(s.revokes[rest:])
	s.revokes = s.revokes[:rest]
}

// takeRenewalLocked answers the newest renewal that everything before it has been taken for, and forgets the older ones.
//
// Invariant: a renewal is answered behind every event and revocation that was there when it came. The follower counts its lease from the
// sending of the renewal, so an invalidation that was acknowledged before is in its hands when the lease begins.
func (s *Subscriber) takeRenewalLocked(b *Batch) {
	taken := s.queued - uint64(len(s.revokes))
	for len(s.renewals) > 0 {
		r := s.renewals[0]
		if r.seq > s.cursor || r.queued > taken {
			return
		}
		b.Renewed, b.Nonce = true, r.nonce
		s.renewals = append(s.renewals[:0], s.renewals[1:]...)
	}
}
