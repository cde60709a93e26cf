package invalidation

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Defaults of a LogConfig.
const (
	DefaultMaxEvents = 1 << 16
	DefaultMaxBytes  = 8 << 20
)

// LogConfig bounds what a Log keeps for subscribers that have not taken it yet. Too little, and a burst of invalidations makes slow
// subscribers lose all their near copies; too much is only memory, used while there is a subscriber.
type LogConfig struct {
	MaxEvents int   // 0 means DefaultMaxEvents
	MaxBytes  int64 // strings and 96 bytes an event; 0 means DefaultMaxBytes
}

// LogStats is a snapshot of a log's counters.
type LogStats struct {
	Seq         uint64 // events appended so far
	Subscribers int
	Held        int    // events kept for subscribers
	HeldBytes   int64  // what they count in MaxBytes
	Resets      uint64 // times that a subscriber fell behind and lost its place
}

// Log is an owner's list of what it dropped, numbered from 1 in the order of the drops, and its subscribers. One bounded ring of
// events serves them all; who falls out of it gets a Reset. Nobody ever waits for a subscriber.
//
// Lock order: a store's shard lock, then the log's mutex, and nothing inside. That is why Append does not wake anybody: Wake does,
// after the shard lock is free.
//
// All methods are safe for concurrent use.
type Log struct {
	cfg LogConfig

	// seq is the number of the newest event. It is written under mu.
	seq atomic.Uint64

	// subs is a snapshot, replaced under mu and never changed.
	subs atomic.Pointer[[]*Subscriber]

	// mu guards everything below and the queues of all subscribers.
	mu     sync.Mutex
	ring   []Event // event n is at n & (len-1); the length is a power of two or 0
	tail   uint64  // events tail+1 to seq are in the ring
	bytes  int64   // of the events in the ring
	resets uint64
}

// NewLog returns an empty log: its newest number is 0.
func NewLog(cfg LogConfig) *Log {
	if cfg.MaxEvents <= 0 {
		cfg.MaxEvents = DefaultMaxEvents
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	l := &Log{cfg: cfg}
	l.subs.Store(&[]*Subscriber{})
	return l
}

// Append takes the next number for e and keeps it for the subscribers. It must be called inside the critical section that made the old
// value unreachable, after it did so; it never blocks beyond the log's own mutex. Call Wake when the lock is released.
func (l *Log) Append(e Event) uint64 {
	size := eventBytes(&e)
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := l.seq.Load() + 1
	e.Seq = seq
	if len(*l.subs.Load()) == 0 || size > l.cfg.MaxBytes {
		// Nobody to keep it for, or too large to be kept: whoever has not got it is reset.
		l.dropLocked(seq - 1)
		l.tail = seq
		l.seq.Store(seq)
		return seq
	}
	for l.bytes+size > l.cfg.MaxBytes || seq-l.tail > uint64(l.cfg.MaxEvents) {
		l.dropLocked(l.tail + 1)
	}
	if seq-l.tail > uint64(len(l.ring)) {
		l.growLocked()
	}
	*l.slotLocked(seq) = e
	l.bytes += size
	l.seq.Store(seq)
	return seq
}

// Seq returns the number of the newest event. It does not block.
//
// A value that leaves for another member carries a number read *before* the value, or under the lock that the value's drop
// needs. Interleaving that shows why:
//
//  1. A reads the old value. 2. B drops it and appends event 6. 3. A reads the number: 6.
//  4. The asker has seen event 6 and takes the answer for newer than it (R3): a stale copy that nothing removes.
func (l *Log) Seq() uint64 { return l.seq.Load() }

// Wake signals every subscriber that there may be something to take. It does not block. It must not be called under a store's lock.
func (l *Log) Wake() {
	for _, s := range *l.subs.Load() {
		s.signal()
	}
}

// Subscribe adds a reader for a member, whose place is behind the newest event. It is told of nothing older: its follower sees from the
// first number it hears whether it missed anything. A member may have several subscribers for a while, when it reconnects.
func (l *Log) Subscribe(member string) *Subscriber {
	s := &Subscriber{log: l, member: member, ready: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.cursor = l.seq.Load()
	subs := append(slices.Clone(*l.subs.Load()), s)
	l.subs.Store(&subs)
	return s
}

// Revoke queues r for every subscriber of the member and wakes them. It reports whether there was one; if not, the holder learns it from
// the refused fill. It does not block and must not be called under a store's lock.
func (l *Log) Revoke(member string, r Revoke) bool {
	found := false
	for _, s := range *l.subs.Load() {
		if s.member == member {
			s.revoke(r)
			found = true
		}
	}
	return found
}

// Reset tells every subscriber that what it holds is void: this member may have missed invalidations that it would have passed on (R7). It
// is told before any renewal is answered that has none yet. Like Append it does not wake anybody.
//
// It takes a number that no event has. Why: a reset may be lost with its stream, like an event, and the next stream begins behind it. Then
// the first number heard on that one shows the hole.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := l.seq.Load() + 1
	l.dropLocked(seq - 1)
	l.tail = seq
	l.seq.Store(seq)
}

// Stats returns the log's counters.
func (l *Log) Stats() LogStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := l.seq.Load()
	return LogStats{
		Seq:         seq,
		Subscribers: len(*l.subs.Load()),
		Held:        int(seq - l.tail),
		HeldBytes:   l.bytes,
		Resets:      l.resets,
	}
}

// slotLocked returns the place of event seq.
func (l *Log) slotLocked(seq uint64) *Event { return &l.ring[seq&uint64(len(l.ring)-1)] }

// dropLocked forgets the events up to and including seq.
func (l *Log) dropLocked(seq uint64) {
	for l.tail < seq {
		l.tail++
		e := l.slotLocked(l.tail)
		l.bytes -= eventBytes(e)
		*e = Event{}
	}
}

// growLocked doubles the ring. The events keep their numbers and thus move.
func (l *Log) growLocked() {
	old := l.ring
	l.ring = make([]Event, max(64, 2*len(old)))
	for n := l.tail + 1; n <= l.seq.Load(); n++ {
		*l.slotLocked(n) = old[n&uint64(len(old)-1)]
	}
}

// removeLocked takes s out. Without subscribers the log keeps nothing.
func (l *Log) removeLocked(s *Subscriber) {
	subs := slices.Clone(*l.subs.Load())
	subs = slices.DeleteFunc(subs, func(o *Subscriber) bool { return o == s })
	l.subs.Store(&subs)
	if len(subs) == 0 {
		l.ring, l.bytes, l.tail = nil, 0, l.seq.Load()
	}
}
