package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// What an entry takes besides its value and the texts: the sizes that docs/performance.md counts with.
func TestSizes(t *testing.T) {
	if got := unsafe.Sizeof(Entry[struct{ int64 }]{}) - 8; got > 48 {
		t.Errorf("an entry has %d bytes beside its value, want 48 at most", got)
	}
	if got := unsafe.Sizeof(bucket[int]{}); got > 64 {
		t.Errorf("a bucket of the index has %d bytes, want 64: a cache line", got)
	}
}

// Whatever is inserted and removed, the index finds what a map finds, and its counts of passed entries return to zero.
func TestIndex(t *testing.T) {
	for _, bits := range []uint64{0, 3, 8, 32} { // how much of a hash differs between keys
		x := newIndex[int](1)
		in := map[string]*Entry[int]{}
		r := rand.New(rand.NewPCG(bits, 4))
		hash := func(key string) uint32 { return uint32(stableHash(key) & (1<<bits - 1)) }
		places := map[*Entry[int]]place{}
		moved := func(e *Entry[int], at place) { places[e] = at }
		for i := range 20_000 {
			key := fmt.Sprint(r.IntN(150))
			if e := in[key]; e != nil && r.IntN(2) == 0 {
				x.remove(places[e])
				delete(in, key)
			} else if e != nil {
				in[key] = &Entry[int]{Key: key, hash: hash(key), Value: i}
				x.swap(places[e], in[key])
				places[in[key]] = places[e]
			} else {
				if x.full() || r.IntN(1000) == 0 {
					x = x.resized(moved)
				}
				in[key] = &Entry[int]{Key: key, hash: hash(key), Value: i}
				places[in[key]] = x.insert(in[key])
			}
			key = fmt.Sprint(r.IntN(200))
			if got := x.find(hash(key), key); got != in[key] {
				t.Fatalf("%d bits, step %d: find(%s) = %v, want %v", bits, i, key, got, in[key])
			}
			if x.used != len(in) {
				t.Fatalf("%d bits, step %d: used = %d, want %d", bits, i, x.used, len(in))
			}
		}
		for _, e := range in {
			x.remove(places[e])
		}
		for i := range x.buckets {
			if got := x.buckets[i].tags.Load(); got != 0 {
				t.Errorf("%d bits: bucket %d of the emptied index has tags %#x", bits, i, got)
			}
		}
	}
}

// hash32 is what an entry has of a key's hash.
func hash32(key any) uint32 { return uint32(stableHash(fmt.Sprint(key))) }

func TestSketch(t *testing.T) {
	var s sketch
	s.fit(1000)
	for range 9 {
		s.add(12345, 1, 1000)
	}
	if got := s.estimate(12345); got != 9 {
		t.Errorf("estimate after 9 additions = %d", got)
	}
	s.add(12345, 100, 1000)
	if got := s.estimate(12345); got != sketchMax {
		t.Errorf("estimate of a full counter = %d, want %d", got, sketchMax)
	}
	s.fit(5000)
	if got := s.estimate(12345); got != sketchMax {
		t.Errorf("estimate after growth = %d, want %d", got, sketchMax)
	}
	s.halve()
	if got := s.estimate(12345); got != sketchMax/2 {
		t.Errorf("estimate after aging = %d, want %d", got, sketchMax/2)
	}
	// The estimates of a thousand keys, a quarter of the capacity, seen once each are mostly exact.
	over := 0
	for i := range 1000 {
		s.add(hash32(i), 1, 5000)
	}
	for i := range 1000 {
		got := s.estimate(hash32(i))
		if got < 1 {
			t.Fatalf("key %d is underestimated", i)
		}
		if got > 1 {
			over++
		}
	}
	if over > 50 {
		t.Errorf("%d of 1000 keys are overestimated", over)
	}
}

// Where some bits of all hashes are equal sketch and ghosts tell the keys apart all the same.
func TestStatisticsOfSimilarHashes(t *testing.T) {
	const equal = 0xff << 20
	var s sketch
	var g ghosts
	s.fit(4096)
	g.fit(4096)
	over, wrong := 0, 0
	for i := range 1000 {
		s.add(hash32(i)&^equal, 1, 1<<20)
		g.remember(hash32(i)&^equal, fromWindow)
	}
	for i := range 1000 {
		if s.estimate(hash32(fmt.Sprint("other", i))&^equal) > 0 {
			over++
		}
		if g.recall(hash32(fmt.Sprint("other", i))&^equal, 4096) != nowhere {
			wrong++
		}
	}
	if over > 50 || wrong > 0 {
		t.Errorf("of 1000 keys never seen, %d are in the sketch and %d among the ghosts", over, wrong)
	}
}

func TestGhosts(t *testing.T) {
	var g ghosts
	g.fit(1000)
	g.remember(hash32(1), fromWindow)
	g.remember(hash32(2), fromMain)
	g.remember(hash32(3), fromMain)
	tests := []struct {
		h    uint32
		life uint32
		want origin
	}{
		{hash32(4), 10, nowhere},
		{hash32(1), 2, nowhere}, // two evictions ago: too long
		{hash32(1), 3, fromWindow},
		{hash32(1), 3, nowhere}, // forgotten
		{hash32(2), 2, fromMain},
	}
	for i, tt := range tests {
		if got := g.recall(tt.h, tt.life); got != tt.want {
			t.Errorf("recall %d = %d, want %d", i, got, tt.want)
		}
	}
	if g.fit(2000); g.recall(hash32(3), 3) != nowhere {
		t.Error("a table that has grown remembers what was elsewhere in the old one")
	}
}

// A large table tells the time in larger units, and is as exact as that.
func TestGhostsOfManyEntries(t *testing.T) {
	const entries, life = 1 << 18, 1 << 17
	var g ghosts
	g.fit(entries)
	for i := range uint32(4 * entries) {
		g.remember(hash32(i), fromWindow)
	}
	unit, wrong := uint32(1)<<g.unit, 0
	for i := range uint32(4 * entries) {
		if past := g.seq - 1 - i; g.recall(hash32(i), life) != nowhere && past >= life+unit {
			wrong++
		}
	}
	if wrong > 4*entries/(1<<14) { // one in 2^16 has the fingerprint of another one in its slot
		t.Errorf("%d entries are remembered although they were evicted more than %d evictions ago", wrong, life)
	}
	for i := range uint32(1000) { // one after the other, as nobody else may take their slots
		g.remember(hash32(i), fromMain)
		g.seq += life - unit
		if got := g.recall(hash32(i), life); got != fromMain {
			t.Fatalf("%d evictions later an entry is not remembered", life-unit)
		}
	}
}
