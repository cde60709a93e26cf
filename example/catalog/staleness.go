package main

import "time"

// ack is an invalidation that was confirmed: from at on, nobody should be given a version below this one for longer than the bound.
type ack struct {
	at      time.Duration // when Invalidate returned nil
	version uint64        // committed before Invalidate was called
	node    int           // that called it
}

// seen is one answer: which version of which product a reader got.
type seen struct {
	start   time.Duration // when the read was asked for
	key     string
	version uint64
	node    int
}

// staleness compares every answer with the history of versions. An answer is stale when its version had been replaced by one that was
// committed, and whose invalidation had been confirmed, before the read began; it is as stale as the oldest such confirmation is old.
//
// Answers and confirmations come from different processes, so in no reliable order: an answer is judged only once the confirmations from
// before it must have arrived. Not safe for concurrent use.
type staleness struct {
	history  map[string]*versions
	waiting  []seen // not judged yet, in order of arrival
	stale    int
	beyond   int           // of those, by more than the bound
	worst    time.Duration // over all stale answers
	ownStale int           // stale answers on the very node that had invalidated
	unknown  int           // answers with a version that was never committed
	judged   int
	bound    time.Duration
}

// versions is the history of one product.
type versions struct {
	committed uint64
	acks      []ack // in order of arrival
}

// keepAcks is how long the confirmations of a product are kept apart. Older ones are merged into the newest of them, so that a run of
// hours needs no more memory; only the size of a staleness beyond it is then understated.
const keepAcks = time.Minute

// firstVersion is the version of every product at the start.
const firstVersion = 1

func newStaleness(bound time.Duration) *staleness {
	return &staleness{history: make(map[string]*versions), bound: bound}
}

// commit records that version of key exists. It is called before anybody can read it.
func (s *staleness) commit(key string, version uint64) {
	s.of(key).committed = version
}

// confirm records a confirmed invalidation.
func (s *staleness) confirm(key string, a ack) {
	v := s.of(key)
	v.acks = append(v.acks, a)
	for len(v.acks) > 1 && v.acks[1].at < a.at-keepAcks {
		v.acks = v.acks[1:]
	}
}

// read queues an answer.
func (s *staleness) read(r seen) { s.waiting = append(s.waiting, r) }

// judge judges the answers to reads that began before the given time, up to the first in line that did not.
func (s *staleness) judge(before time.Duration) {
	n := 0
	for n < len(s.waiting) && s.waiting[n].start < before {
		s.judgeOne(s.waiting[n])
		n++
	}
	s.waiting = s.waiting[n:]
}

func (s *staleness) judgeOne(r seen) {
	s.judged++
	v := s.history[r.key]
	if v == nil {
		if r.version != firstVersion {
			s.unknown++
		}
		return
	}
	if r.version < firstVersion || r.version > v.committed {
		s.unknown++
		return
	}
	age, own := time.Duration(0), false
	for _, a := range v.acks {
		if a.version > r.version && a.at < r.start {
			age = max(age, r.start-a.at)
			own = own || a.node == r.node
		}
	}
	if age == 0 {
		return
	}
	s.stale++
	s.worst = max(s.worst, age)
	if age > s.bound {
		s.beyond++
	}
	if own {
		s.ownStale++
	}
}

func (s *staleness) of(key string) *versions {
	v := s.history[key]
	if v == nil {
		v = &versions{committed: firstVersion}
		s.history[key] = v
	}
	return v
}
