package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Whatever is inserted and removed, the index finds what a map finds, and its counts of passed entries return to zero.
func TestIndex(t *testing.T) {
	for _, bits := range []uint64{0, 3, 8, 64} { // how much of a hash differs between keys
		x := newIndex[int](1)
		in := map[string]*Entry[int]{}
		r := rand.New(rand.NewPCG(bits, 4))
		hash := func(key string) uint64 { return stableHash(key) & (1<<bits - 1) }
		for i := range 20_000 {
			key := fmt.Sprint(r.IntN(150))
			if e := in[key]; e != nil && r.IntN(2) == 0 {
				x.remove(e)
				delete(in, key)
			} else if e != nil {
				in[key] = &Entry[int]{Key: key, hash: hash(key), Value: i}
				x.swap(e, in[key])
			} else {
				if x.full() || r.IntN(1000) == 0 {
					x = x.resized()
				}
				in[key] = &Entry[int]{Key: key, hash: hash(key), Value: i}
				x.insert(in[key])
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
			x.remove(e)
		}
		for i := range x.buckets {
			if got := x.buckets[i].tags.Load(); got != 0 {
				t.Errorf("%d bits: bucket %d of the emptied index has tags %#x", bits, i, got)
			}
		}
	}
}

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
		s.add(stableHash(fmt.Sprint(i)), 1, 5000)
	}
	for i := range 1000 {
		got := s.estimate(stableHash(fmt.Sprint(i)))
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

// Within a shard some bits of all hashes are equal. Sketch and ghosts tell the keys apart all the same.
func TestStatisticsWithinAShard(t *testing.T) {
	const shardBits = 0xff << 48
	var s sketch
	var g ghosts
	s.fit(4096)
	g.fit(4096)
	over, wrong := 0, 0
	for i := range 1000 {
		s.add(stableHash(fmt.Sprint(i))&^shardBits, 1, 1<<20)
		g.remember(stableHash(fmt.Sprint(i))&^shardBits, fromWindow)
	}
	for i := range 1000 {
		if s.estimate(stableHash(fmt.Sprint("other", i))&^shardBits) > 0 {
			over++
		}
		if g.recall(stableHash(fmt.Sprint("other", i))&^shardBits, 4096) != nowhere {
			wrong++
		}
	}
	if over > 50 || wrong > 0 {
		t.Errorf("of 1000 keys never seen, %d are in the sketch and %d among the ghosts", over, wrong)
	}
}

func TestGhosts(t *testing.T) {
	var g ghosts
	g.fit(100)
	h := func(i int) uint64 { return stableHash(fmt.Sprint(i)) }
	g.remember(h(1), fromWindow)
	g.remember(h(2), fromMain)
	g.fit(1000)
	tests := []struct {
		h    uint64
		life uint32
		want origin
	}{
		{h(3), 10, nowhere},
		{h(1), 1, nowhere}, // one eviction ago: too long
		{h(1), 2, fromWindow},
		{h(1), 2, nowhere}, // forgotten
		{h(2), 1, fromMain},
	}
	for i, tt := range tests {
		if got := g.recall(tt.h, tt.life); got != tt.want {
			t.Errorf("recall %d = %d, want %d", i, got, tt.want)
		}
	}
}
