package tag

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// naive remembers every invalidation.
type naive struct{ done []invalidated }

type invalidated struct {
	places map[uint64]bool
	at     int64
}

// dead tells whether what was marked after the first since invalidations is dead.
func (n *naive) dead(m Mark, since int) bool {
	hashes, known := m.Tags()
	for _, i := range n.done[since:] {
		if !known {
			return true
		}
		for _, h := range hashes {
			if i.places[h%places] {
				return true
			}
		}
	}
	return false
}

// newest returns the time of the last invalidation that concerns m, or 0.
func (n *naive) newest(m Mark) int64 {
	for i, in := range slices.Backward(n.done) {
		if n.dead(m, i) {
			return in.at
		}
	}
	return 0
}

// What is invalidated after a mark was made kills it, and nothing else does, but for tags that share a place.
func TestTableAgainstNaive(t *testing.T) {
	type value struct {
		mark  Mark
		since int
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		tags := func(n int) []uint64 {
			hashes := make([]uint64, n)
			for i := range hashes {
				hashes[i] = Hash(fmt.Sprint(rng.IntN(40)))
				if rng.IntN(10) == 0 {
					hashes[i] += places // another tag in the same place
				}
			}
			return hashes
		}
		var table Table
		var model naive
		var values []value
		now := int64(1)
		for step := range 500 {
			now += int64(rng.IntN(3)) // often the same instant
			switch rng.IntN(4) {
			case 0:
				hashes := tags(1 + rng.IntN(3))
				in := invalidated{places: map[uint64]bool{}, at: now}
				for _, h := range hashes {
					in.places[h%places] = true
				}
				table.Invalidate(hashes, now)
				model.done = append(model.done, in)
			case 1:
				values = append(values, value{mark: Mark{}.At(table.Pos()), since: len(model.done)})
			default:
				values = append(values, value{mark: Of(tags(rng.IntN(4))).At(table.Pos()), since: len(model.done)})
			}
			for i := range values {
				v := &values[i]
				if got, want := table.Alive(&v.mark), !model.dead(v.mark, v.since); got != want {
					t.Fatalf("seed %d, step %d: value %d with %v: alive %v, want %v", seed, step, i, v.mark, got, want)
				}
				// Positions are times, but for invalidations that come more often than the clock moves.
				if got, want := table.Newest(&v.mark), model.newest(v.mark); got < want || got > want+int64(len(model.done)) {
					t.Fatalf("seed %d, step %d: value %d: newest %d, want %d or a little more", seed, step, i, got, want)
				}
			}
			if len(values) > 50 {
				values = values[25:]
			}
		}
	}
}

func TestMark(t *testing.T) {
	tests := []struct {
		name  string
		mark  Mark
		tags  int
		known bool
		bytes int64
	}{
		{"not known", Mark{}, 0, false, 0},
		{"none", Of(nil), 0, true, 0},
		{"two", Of(Hashes([]string{"a", "b"})), 2, true, 16},
	}
	for _, tt := range tests {
		for _, m := range []Mark{tt.mark, tt.mark.At(7)} {
			if hashes, known := m.Tags(); len(hashes) != tt.tags || known != tt.known || m.Bytes() != tt.bytes {
				t.Errorf("%s: %d tags, known %v, %d bytes; want %d, %v, %d", tt.name, len(hashes), known, m.Bytes(), tt.tags, tt.known, tt.bytes)
			}
		}
	}
	// Part of the protocol between members.
	if got, want := Hash("category:7"), uint64(0x49d1c0a090495e3); got != want {
		t.Errorf("Hash = %#x, want %#x", got, want)
	}
}

// However many tags are invalidated, none is missed, and of the others few are taken for one of them.
func TestTableWithManyTags(t *testing.T) {
	var table Table
	const n = 10_000
	marks := make([]Mark, n)
	for i := range marks {
		marks[i] = Of([]uint64{Hash(fmt.Sprintf("kept:%d", i))}).At(table.Pos())
	}
	for i := range n {
		table.Invalidate([]uint64{Hash(fmt.Sprintf("gone:%d", i))}, 1)
	}
	died := 0
	for i := range marks {
		if !table.Alive(&marks[i]) {
			died++
		}
	}
	// 1 - (1 - 1/65536)^10000 = 14 %
	if died < n/10 || died > n/5 {
		t.Errorf("%d of %d values died of other tags, want about 14 %%", died, n)
	}
	for i := range 20 * n {
		m := Of([]uint64{Hash(fmt.Sprintf("gone:%d", i))}).At(table.Pos())
		if !table.Alive(&m) {
			t.Fatalf("a value that is newer than all invalidations is dead after %d", i)
		}
		table.Invalidate([]uint64{Hash(fmt.Sprintf("gone:%d", i))}, 1)
		if table.Alive(&m) {
			t.Fatalf("invalidation %d was missed", i)
		}
	}
}
