package store

import (
	"fmt"
	"math"
	"testing"
)

func put[V any](s *Store[V], key string, v V, bytes, deadline, now int64) bool {
	tx := s.Begin(key)
	defer tx.End()
	_, ok := tx.Put(v, bytes, deadline, now)
	return ok
}

func del[V any](s *Store[V], key string) bool {
	tx := s.Begin(key)
	defer tx.End()
	return tx.Delete() != nil
}

func TestPutGetDelete(t *testing.T) {
	s := New[int](Config{MaxBytes: 1 << 30, MaxEntries: 1000, Shards: 4})
	for i := range 20000 {
		k := fmt.Sprint(i % 3000)
		if e := s.Get(k, 0); e != nil && e.Value != i%3000 {
			t.Fatal(k, e.Value)
		}
		put(s, k, i%3000, 10, math.MaxInt64, 0)
		if e := s.Get(k, 0); e == nil || e.Value != i%3000 {
			t.Fatal("after put", k, e)
		}
		if i%7 == 0 {
			del(s, k)
			if s.Get(k, 0) != nil {
				t.Fatal("deleted", k)
			}
		}
		if n := s.Stats().Entries; n > 1000 {
			t.Fatal("entries", n)
		}
	}
}
