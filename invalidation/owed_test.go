package invalidation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestOwed(t *testing.T) {
	o := NewOwed(4)
	buf := []byte("k1")
	first := o.Owe("b", []string{string(buf), "k2"}, 100)
	o.Owe("b", []string{"k2", "k1"}, 90) // the same once more
	o.Owe("a", nil, 50)
	if got := o.Members(10); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("got %v", got)
	}
	d, ok := o.Take("b", 10)
	if !ok || !slices.Equal(d.Keys, []string{"k1", "k2"}) || d.All {
		t.Fatalf("got %v, %v, want each key once", d, ok)
	}
	if _, again := o.Take("b", 10); again || slices.Contains(o.Members(10), "b") {
		t.Error("it is told by two at once")
	}
	second := o.Owe("b", []string{"k2"}, 100) // while it is being told
	if o.Settled("b", first) {
		t.Error("settled before it was told")
	}
	o.Done(d, 2)
	if !o.Settled("b", first) || o.Settled("b", second) {
		t.Errorf("got %v, %v, want what was owed before the telling to be settled, and nothing else", o.Settled("b", first), o.Settled("b", second))
	}
	// Only a part is confirmed.
	o.Owe("b", []string{"k3"}, 100)
	d, _ = o.Take("b", 10)
	o.Done(d, 1)
	if o.Settled("b", second) {
		t.Error("settled although the last key was not confirmed")
	}
	if d, _ = o.Take("b", 10); !slices.Equal(d.Keys, []string{"k3"}) {
		t.Errorf("got %v, want the rest", d.Keys)
	}
	o.Done(d, 1)
	if !o.Settled("b", second) || !slices.Equal(o.Members(10), []string{"a"}) {
		t.Errorf("got %v, %v", o.Settled("b", second), o.Members(10))
	}
	if got := o.Members(50); got != nil {
		t.Errorf("got %v, want that nothing is owed for ever", got)
	}
}

func TestOwedHasNoRoom(t *testing.T) {
	o := NewOwed(4)
	o.Owe("a", []string{"1", "2"}, 100)
	round := o.Owe("b", []string{"1", "2", "3"}, 200)
	if d, _ := o.Take("b", 10); !d.All || len(d.Keys) != 0 {
		t.Fatalf("got %v, want the whole keyspace", d)
	} else {
		o.Owe("b", []string{"4"}, 100)
		o.Done(d, 0)
	}
	if d, _ := o.Take("b", 150); !d.All || o.Settled("b", round) {
		t.Fatalf("got %v, want it still owed", d)
	} else {
		o.Done(d, 1)
	}
	if !o.Settled("b", round) {
		t.Error("not settled")
	}
	if d, _ := o.Take("a", 10); len(d.Keys) != 2 {
		t.Errorf("got %v, want the other member's keys untouched", d)
	}
	o.Settle("a")
	if o.Members(10) != nil {
		t.Error("something is left")
	}
}

// Whatever happens, nothing counts as settled that was neither told since, nor written off, nor is over.
func TestOwedByChance(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		o := NewOwed(8)
		type owing struct {
			member, key string
			round       uint64
			until       int64
			paid        bool
		}
		var all []*owing
		taken := map[string]Debts{}
		before := map[string][]*owing{} // what is covered by what was taken
		for now := int64(1); now < 400; now++ {
			m := fmt.Sprint("m", rng.IntN(3))
			switch rng.IntN(6) {
			case 0, 1:
				key := fmt.Sprint(rng.IntN(6))
				keys := []string{key}
				if rng.IntN(20) == 0 {
					key, keys = "", nil
				}
				until := now + 1 + rng.Int64N(100)
				all = append(all, &owing{m, key, o.Owe(m, keys, until), until, false})
			case 2, 3:
				if d, ok := o.Take(m, now); ok {
					taken[m] = d
					before[m] = slices.Clone(all)
				}
			case 4:
				d, ok := taken[m]
				if !ok {
					continue
				}
				delete(taken, m)
				n := len(d.Keys)
				if d.All {
					n = 1
				}
				n = rng.IntN(n + 1)
				for _, w := range before[m] {
					if w.member == m && (d.All && n == 1 || w.key != "" && slices.Contains(d.Keys[:min(n, len(d.Keys))], w.key)) {
						w.paid = true
					}
				}
				o.Done(d, n)
			case 5:
				if rng.IntN(10) == 0 {
					o.Settle(m)
					delete(taken, m)
					for _, w := range all {
						w.paid = w.paid || w.member == m
					}
				}
				o.Members(now)
			}
			for _, w := range all {
				if !w.paid && now < w.until && o.Settled(w.member, w.round) {
					t.Fatalf("seed %d at %d: %+v counts as settled", seed, now, *w)
				}
			}
			if o.keys < 0 || o.keys > 8 {
				t.Fatalf("seed %d: %d keys, want at most 8", seed, o.keys)
			}
		}
	}
}
