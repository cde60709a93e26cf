package store

import (
	"fmt"
	"math"
	"testing"
)

func putKept(s *Store[int], key string, bytes int64, keep bool) {
	tx := s.Begin(key)
	defer tx.End()
	tx.Kept = keep
	tx.Put(1, bytes, math.MaxInt64, 0)
}

// crowdOut stores many entries that are in use.
func crowdOut(s *Store[int], round int) {
	for i := range 2000 {
		key := fmt.Sprint("other:", round, i)
		for range 3 {
			s.Get(key, 0)
			put(s, key, 1, 0, math.MaxInt64, 0)
		}
	}
}

// What is kept stays, whatever else comes, and until it is kept no more.
func TestKeptEntriesAreNotDisplaced(t *testing.T) {
	s := New[int](Config{MaxBytes: 100 * (EntryOverhead + 10), Shards: 1})
	put(s, "resident", 1, 0, math.MaxInt64, 0)
	tx := s.Begin("resident")
	tx.Keep(true)
	tx.End()
	crowdOut(s, 0)
	putKept(s, "new", 0, true)
	crowdOut(s, 1)
	for _, key := range []string{"new", "resident"} {
		if s.Find(key) == nil {
			t.Errorf("%s: displaced, want it kept", key)
		}
		putKept(s, key, 5, true) // the next version of it is kept too
	}
	crowdOut(s, 2)
	check(t, s)
	putKept(s, "new", 0, false)
	tx = s.Begin("resident")
	tx.Keep(false)
	tx.End()
	check(t, s)
	crowdOut(s, 3)
	for _, key := range []string{"new", "resident"} {
		if s.Find(key) != nil {
			t.Errorf("%s: still there, want it displaced", key)
		}
	}
	check(t, s)
}

// Not more than half of the budget is for what is kept; a smaller budget holds for it too.
func TestKeptEntriesAreWithinTheBudget(t *testing.T) {
	const cost = EntryOverhead + 10
	s := New[int](Config{MaxBytes: 100 * cost, Shards: 1})
	for i := range 100 {
		putKept(s, fmt.Sprintf("kept:%05d", i), 0, true)
	}
	check(t, s)
	if got := s.shards[0].kept.n; got != 50 {
		t.Errorf("%d of 100 entries are kept, want half of them", got)
	}
	putKept(s, "kept:00000", cost, true)
	if got := s.shards[0].kept.bytes; got > 50*cost {
		t.Errorf("%d bytes are kept, want %d at most", got, 50*cost)
	}
	check(t, s)
	s.Resize(10 * cost)
	check(t, s)
	if got := s.Stats().Entries; got != 10 {
		t.Errorf("%d entries fit, want 10", got)
	}
	s.Sweep(math.MaxInt64)
	s.Resize(0)
	check(t, s)
}
