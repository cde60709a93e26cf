package store

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Every entry comes out at the first call whose time is a tick or more after its deadline, none before, whatever the
// distance of the deadlines, the steps of time and the budgets.
func TestWheel(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var w wheel[int]
		x := newIndex[int](3000)
		in := map[*Entry[int]]bool{}
		now := r.Int64N(int64(100 * time.Hour))
		life := []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 100 * time.Hour, 5000 * time.Hour}
		for range 3000 {
			switch r.IntN(10) {
			case 0, 1, 2, 3, 4:
				e := &Entry[int]{Deadline: now + r.Int64N(int64(life[r.IntN(len(life))])), hash: r.Uint32()}
				if r.IntN(50) == 0 {
					e.Deadline = math.MaxInt64
				}
				w.add(e, x.insert(e), now)
				in[e] = true
			case 5:
				for e := range in {
					w.remove(x, e)
					w.remove(x, e) // harmless
					delete(in, e)
					break
				}
			default:
				now += r.Int64N(int64(life[r.IntN(5)]))
				checkOverdue(t, &w, x, in, now)
				drainWheel(t, &w, x, in, now, 1+r.IntN(20))
			}
			due := 0
			for e := range in {
				if e.Deadline != never {
					due++
				}
			}
			checkOverdue(t, &w, x, in, now)
			if w.n != due {
				t.Fatalf("seed %d: %d entries counted, want %d", seed, w.n, due)
			}
		}
	}
}

func checkOverdue(t *testing.T, w *wheel[int], x *index[int], in map[*Entry[int]]bool, now int64) {
	t.Helper()
	over := 0
	for e := range in {
		if e.Deadline <= now {
			over++
		}
	}
	if got := w.overdue(x, now); got != over {
		t.Fatalf("at %d: %d entries overdue, want %d", now, got, over)
	}
}

func drainWheel(t *testing.T, w *wheel[int], x *index[int], in map[*Entry[int]]bool, now int64, budget int) {
	t.Helper()
	for done := false; !done; {
		left := budget
		w.expired(x, now, &left, func(e *Entry[int]) {
			if !in[e] || e.Deadline > now {
				t.Fatalf("at %d: an entry with deadline %d came out (was in: %v)", now, e.Deadline, in[e])
			}
			delete(in, e)
		})
		done = left > 0
	}
	for e := range in {
		if e.Deadline>>tickBits < now>>tickBits-1 {
			t.Fatalf("at %d: an entry with deadline %d is still in", now, e.Deadline)
		}
	}
}

// A long pause is skipped, not walked through tick by tick.
func TestWheelSkipsQuietTimes(t *testing.T) {
	var w wheel[int]
	x := newIndex[int](1)
	e := &Entry[int]{Deadline: int64(70 * time.Hour)}
	w.add(e, x.insert(e), 0)
	out := 0
	start := time.Now()
	for now := int64(0); now < int64(80*time.Hour); now += int64(time.Hour) {
		budget := 100
		w.expired(x, now, &budget, func(*Entry[int]) { out++ })
	}
	if out != 1 {
		t.Errorf("%d entries came out, want 1", out)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("80 quiet hours took %v", d)
	}
}
