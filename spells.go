package nearcache

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxSpells bounds the keys of one spells.
const maxSpells = 1024

// spells are keys of which something holds for a while. The zero value has none. It is safe for concurrent use.
type spells struct {
	number atomic.Int64 // of the keys, so that has costs next to nothing while there are none

	mu   sync.Mutex        // guards keys
	keys map[string]*int64 // until when
}

// has tells whether it holds of key.
func (s *spells) has(key string, now int64) bool {
	if s.number.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	until := s.keys[key]
	return until != nil && now < *until
}

// put lets it hold of key, which may alias a buffer, for d from now on. It does nothing where there are too many others.
func (s *spells) put(key string, now int64, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(key, now, d)
}

// begin is put, and reports whether it did not hold of key before and does now.
func (s *spells) begin(key string, now int64, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := s.keys[key]
	return (until == nil || now >= *until) && s.putLocked(key, now, d)
}

func (s *spells) putLocked(key string, now int64, d time.Duration) bool {
	until := s.keys[key]
	if until == nil {
		if len(s.keys) >= maxSpells {
			return false
		}
		if s.keys == nil {
			s.keys = make(map[string]*int64)
		}
		until = new(int64)
		s.keys[strings.Clone(key)] = until
		s.number.Add(1)
	}
	// Why a pointer: to assign to a key that is in a map makes the map refer to the new string, which may alias a buffer.
	*until = now + int64(d)
	return true
}

// tick forgets what is over.
func (s *spells) tick(now int64) {
	if s.number.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, until := range s.keys {
		if *until <= now {
			delete(s.keys, key)
			s.number.Add(-1)
		}
	}
}
