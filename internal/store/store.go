// Package store is a stand-in with the API of the real engine: one mutex and map per shard, no eviction policy.
package store

import (
	"sync"
)

// Overhead is what an entry costs beside its key and value.
const Overhead = 128

// Config of a store.
type Config struct {
	MaxBytes   int64
	Shards     int
	MaxEntries int64
}

// Entry is one resident value.
type Entry[V any] struct {
	Key      string
	Value    V
	Deadline int64
	cost     int64
}

// Stats of a store.
type Stats struct {
	Entries, Bytes, MaxBytes         int64
	Evictions, Expirations, TooLarge uint64
}

type shard[V any] struct {
	mu    sync.RWMutex
	m     map[string]*Entry[V]
	bytes int64
}

// Store holds entries.
type Store[V any] struct {
	max    int64
	shards []shard[V]
	mu     sync.Mutex
	stats  Stats
}

// Tx is a locked shard.
type Tx[V any] struct {
	s   *Store[V]
	i   int
	key string
}

// New makes a store.
func New[V any](cfg Config) *Store[V] {
	n := cfg.Shards
	if n == 0 {
		n = 16
	}
	s := &Store[V]{max: cfg.MaxBytes, shards: make([]shard[V], n)}
	for i := range s.shards {
		s.shards[i].m = map[string]*Entry[V]{}
	}
	return s
}

// ShardOf is the shard of key.
func (s *Store[V]) ShardOf(key string) int {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(len(s.shards)))
}

// Shards is their number.
func (s *Store[V]) Shards() int { return len(s.shards) }

// Get reads.
func (s *Store[V]) Get(key string, now int64) *Entry[V] {
	e := s.Find(key)
	if e == nil || now >= e.Deadline {
		return nil
	}
	return e
}

// Find reads uncounted.
func (s *Store[V]) Find(key string) *Entry[V] {
	sh := &s.shards[s.ShardOf(key)]
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.m[key]
}

// Begin locks the key's shard.
func (s *Store[V]) Begin(key string) Tx[V] {
	i := s.ShardOf(key)
	s.shards[i].mu.Lock()
	return Tx[V]{s, i, key}
}

// Entry is the current one.
func (t *Tx[V]) Entry() *Entry[V] { return t.s.shards[t.i].m[t.key] }

// Put inserts.
func (t *Tx[V]) Put(key string, v V, bytes int64, deadline, _ int64) (*Entry[V], bool) {
	t.Delete()
	sh := &t.s.shards[t.i]
	cost := bytes + int64(len(key)) + Overhead
	share := t.s.max / int64(len(t.s.shards))
	if cost > share {
		return nil, false
	}
	for k, e := range sh.m {
		if sh.bytes+cost <= share {
			break
		}
		delete(sh.m, k)
		sh.bytes -= e.cost
	}
	e := &Entry[V]{Key: key, Value: v, Deadline: deadline, cost: cost}
	sh.m[key] = e
	sh.bytes += cost
	return e, true
}

// Delete removes.
func (t *Tx[V]) Delete() *Entry[V] {
	sh := &t.s.shards[t.i]
	e := sh.m[t.key]
	if e != nil {
		delete(sh.m, t.key)
		sh.bytes -= e.cost
	}
	return e
}

// Shard is the index of the locked shard.
func (t *Tx[V]) Shard() int { return t.i }

// End unlocks.
func (t *Tx[V]) End() { t.s.shards[t.i].mu.Unlock() }

// Lock locks a shard.
func (s *Store[V]) Lock(i int) { s.shards[i].mu.Lock() }

// Unlock unlocks a shard.
func (s *Store[V]) Unlock(i int) { s.shards[i].mu.Unlock() }

// Resize changes the budget.
func (s *Store[V]) Resize(maxBytes int64) { s.max = maxBytes }

// Sweep drops expired entries.
func (s *Store[V]) Sweep(now int64) int {
	return s.DeleteFunc(func(e *Entry[V]) bool { return now >= e.Deadline })
}

// Range visits all.
func (s *Store[V]) Range(yield func(*Entry[V]) bool) {
	for i := range s.shards {
		var es []*Entry[V]
		s.Lock(i)
		for _, e := range s.shards[i].m {
			es = append(es, e)
		}
		s.Unlock(i)
		for _, e := range es {
			if !yield(e) {
				return
			}
		}
	}
}

// DeleteFunc deletes what del says.
func (s *Store[V]) DeleteFunc(del func(*Entry[V]) bool) int {
	n := 0
	for i := range s.shards {
		s.Lock(i)
		for k, e := range s.shards[i].m {
			if del(e) {
				delete(s.shards[i].m, k)
				s.shards[i].bytes -= e.cost
				n++
			}
		}
		s.Unlock(i)
	}
	return n
}

// Stats counts.
func (s *Store[V]) Stats() Stats {
	st := Stats{MaxBytes: s.max}
	for i := range s.shards {
		s.shards[i].mu.RLock()
		st.Entries += int64(len(s.shards[i].m))
		st.Bytes += s.shards[i].bytes
		s.shards[i].mu.RUnlock()
	}
	return st
}
