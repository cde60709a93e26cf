package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const msec = time.Millisecond

func TestCapacityAdmit(t *testing.T) {
	for _, c := range []struct {
		name      string
		perSecond int
		latency   time.Duration
		arrivals  []time.Duration
		done      []time.Duration
	}{
		{"one slot queues", 50, 20 * msec, []time.Duration{0, 0, 0}, []time.Duration{20 * msec, 40 * msec, 60 * msec}},
		{"two slots", 100, 20 * msec, []time.Duration{0, 0, 0, 5 * msec}, []time.Duration{20 * msec, 20 * msec, 40 * msec, 40 * msec}},
		{"idle in between", 50, 20 * msec, []time.Duration{0, 100 * msec}, []time.Duration{20 * msec, 120 * msec}},
		{"at least one slot", 1, msec, []time.Duration{0, 0}, []time.Duration{time.Second, 2 * time.Second}},
		{"whole slots, exact rate", 140, 20 * msec, []time.Duration{0}, []time.Duration{3 * time.Second / 140}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newCapacity(c.perSecond, c.latency)
			for i, at := range c.arrivals {
				if _, done := q.admit(at); done != c.done[i] {
					t.Errorf("load %d: got done at %s, want %s", i, done, c.done[i])
				}
			}
		})
	}
}

// TestCapacityModel compares with a second implementation that steps through time.
func TestCapacityModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		n := 1 + rnd.IntN(5)
		q := newCapacity(n*100, 10*msec)
		arrivals := make([]time.Duration, 200)
		for i := range arrivals {
			arrivals[i] = time.Duration(rnd.IntN(500)) * msec
		}
		slices.Sort(arrivals)
		busy := make([]time.Duration, n) // ends of the loads under way
		for i, at := range arrivals {
			want := at
			for slices.Min(busy) > want {
				want += msec
			}
			busy[slices.Index(busy, slices.Min(busy))] = want + 10*msec
			if begin, _ := q.admit(at); begin != want {
				t.Fatalf("%d slots, load %d at %s: got begin %s, want %s", n, i, at, begin, want)
			}
		}
	}
}

func TestCost(t *testing.T) {
	c := newCost(100, 10*msec) // one slot
	for i := range 300 {
		c.load(time.Duration(i) * 5 * msec) // twice the capacity
	}
	if c.loads != 300 || c.busiest() != 200 || c.busiestFrom(1) != 100 || c.busiestFrom(9) != 0 {
		t.Errorf("got %d loads, busiest %d, from second 1 on %d; want 300, 200, 100", c.loads, c.busiest(), c.busiestFrom(1))
	}
	if want := 299 * 5 * msec; c.longest != want || c.last != want {
		t.Errorf("got longest wait %s, last %s; want %s, %[3]s", c.longest, c.last, want)
	}
}
