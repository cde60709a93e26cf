package invalidation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	ms    = int64(time.Millisecond)
	bound = time.Second
)

// least makes a majority of n reached members.
func least(n int) func([]string) bool {
	return func(reached []string) bool { return len(reached) >= n }
}

func TestReach(t *testing.T) {
	others := []string{"x", "y", "z"}
	const cut = 10_000 * ms // when x was heard for the last time
	heard := func(c *Contacts, now int64) {
		c.Heard("x", cut)
		for _, by := range others[1:] {
			c.Reported(by, []Silence{{"x", time.Duration(now - cut)}}, now, now)
		}
	}
	for _, tt := range []struct {
		name     string
		after    int64 // the cut, in ms
		happens  func(c *Contacts, now int64)
		majority int
		want     Reach
	}{
		{"everybody lost it long ago", 2100, heard, 2, Gone},
		{"it may hold something", 2000, heard, 2, Silent},
		{"too few are reached", 2100, heard, 3, Unknown},
		{"a member hears it", 2100, func(c *Contacts, now int64) {
			heard(c, now)
			c.Reported("z", nil, now, now)
		}, 2, Heard},
		{"this member hears it", 2100, func(c *Contacts, now int64) {
			heard(c, now)
			c.Heard("x", now-500*ms)
		}, 2, Silent},
		{"an answer that says so is old", 2100, func(c *Contacts, now int64) {
			c.Heard("x", cut)
			c.Reported("y", []Silence{{"x", time.Duration(now - cut)}}, now, now)
			c.Reported("z", []Silence{{"x", time.Duration(now - 1000*ms - cut)}}, now-1000*ms, now-1000*ms)
		}, 2, Unknown},
		{"one was asked before the lease of another was over", 2200, func(c *Contacts, now int64) {
			c.Heard("x", cut)
			c.Reported("y", []Silence{{"x", 2200 * time.Millisecond}}, now, now)
			// z heard x for longer; its answer is from before y's silence, as far as leases go.
			c.Reported("z", []Silence{{"x", 0}}, cut+800*ms, cut+800*ms)
			c.Reported("z", []Silence{{"x", 600 * time.Millisecond}}, now-900*ms, now-900*ms)
		}, 2, Silent},
		{"an answer was long under way", 2200, func(c *Contacts, now int64) {
			c.Heard("x", cut)
			c.Reported("y", []Silence{{"x", time.Duration(now - cut)}}, now, now)
			c.Reported("z", []Silence{{"x", 1300 * time.Millisecond}}, now-900*ms, now)
		}, 2, Silent},
		{"an older answer comes late", 2100, func(c *Contacts, now int64) {
			heard(c, now)
			c.Reported("z", nil, now-100*ms, now)
		}, 2, Gone},
	} {
		c := NewContacts(bound, 0)
		now := cut + tt.after*ms
		tt.happens(c, now)
		if got := c.Reach("x", others, least(tt.majority), now); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestSilent(t *testing.T) {
	c := NewContacts(bound, 1000*ms)
	c.Keep([]string{"a", "b", "c"}, 1000*ms)
	c.Heard("a", 2000*ms)
	got := c.Silent(nil, []string{"a", "b", "c"}, 64, 2100*ms)
	want := []Silence{{"b", 1100 * time.Millisecond}, {"c", 1100 * time.Millisecond}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: since this member's own start", got, want)
	}
	if got := c.Silent(nil, []string{"a", "b", "c"}, 1, 2100*ms); len(got) != 1 {
		t.Errorf("got %v, want no more than the limit", got)
	}
	c.Keep([]string{"a", "c"}, 2100*ms)
	c.Keep([]string{"a", "b", "c"}, 3000*ms)
	if got := c.Silent(nil, []string{"b"}, 64, 3100*ms); len(got) != 0 {
		t.Errorf("got %v of a member that has just been listed again, want that nothing is known", got)
	}
}

// Against the truth: members that renew with each other over a network with delays and cuts. Whenever one finds another to be gone, that
// one has had no majority of leases from a life ago until a lease ago.
func TestGoneMeansFenced(t *testing.T) {
	found := 0
	for seed := range uint64(100) {
		found += new(contactWorld).run(t, rand.New(rand.NewPCG(seed, 9)))
	}
	if found < 300 {
		t.Errorf("nobody was found gone but %d times", found)
	}
}

const (
	worldMembers = 5
	step         = 10 * ms
)

type contactWorld struct {
	rng      *rand.Rand
	now      int64
	contacts [worldMembers]*Contacts
	until    [worldMembers][worldMembers]int64 // until[x][y]: x's lease from y
	cut      [worldMembers][worldMembers]bool  // what the first sends to the second is lost
	fenced   [worldMembers][]bool              // had it no majority, in each step
	due      []delivery
}

type delivery struct {
	at int64
	do func()
}

func (w *contactWorld) send(from, to int, do func()) {
	if w.cut[from][to] {
		return
	}
	delay := 1 + w.rng.Int64N(3)
	if w.rng.IntN(20) == 0 {
		delay = w.rng.Int64N(800)
	}
	w.due = append(w.due, delivery{w.now + delay*ms, do})
}

func (w *contactWorld) run(t *testing.T, rng *rand.Rand) (found int) {
	w.rng = rng
	ids := make([]string, worldMembers)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	for i := range ids {
		w.contacts[i] = NewContacts(bound, 0)
	}
	for w.now = 0; w.now < 30_000*ms; w.now += step {
		w.deliver()
		if rng.IntN(150) == 0 {
			a, b := rng.IntN(worldMembers), rng.IntN(worldMembers)
			w.cut[a][b] = !w.cut[a][b]
		}
		if rng.IntN(300) == 0 {
			a, on := rng.IntN(worldMembers), rng.IntN(2) == 0
			for b := range ids {
				w.cut[a][b], w.cut[b][a] = on, on
			}
		}
		for x := range ids {
			if w.now/ms%250 == int64(10*x) {
				w.renew(x, ids)
			}
			held := 0
			for y := range ids {
				if y != x && w.now < w.until[x][y] {
					held++
				}
			}
			w.fenced[x] = append(w.fenced[x], held < worldMembers/2)
		}
		if w.now/ms%50 == 0 {
			found += w.check(t, ids)
		}
	}
	return found
}

func (w *contactWorld) deliver() {
	slices.SortStableFunc(w.due, func(a, b delivery) int { return int(a.at - b.at) })
	for len(w.due) > 0 && w.due[0].at <= w.now {
		do := w.due[0].do
		w.due = w.due[1:]
		do()
	}
}

func (w *contactWorld) renew(x int, ids []string) {
	for y := range ids {
		sent := w.now
		w.send(x, y, func() {
			if x == y {
				return
			}
			w.contacts[y].Heard(ids[x], w.now)
			silent := w.contacts[y].Silent(nil, ids, 64, w.now)
			w.send(y, x, func() {
				w.until[x][y] = max(w.until[x][y], sent+int64(bound))
				w.contacts[x].Reported(ids[y], silent, sent, w.now)
			})
		})
	}
}

func (w *contactWorld) check(t *testing.T, ids []string) (found int) {
	for x := range ids {
		for y := range ids {
			others := slices.Delete(slices.Clone(ids), x, x+1)
			if x == y || w.contacts[x].Reach(ids[y], others, least(worldMembers/2), w.now) != Gone {
				continue
			}
			found++
			life, lease := w.now-w.contacts[x].life, w.now-w.contacts[x].lease
			if slices.Contains(w.fenced[y][(life+step-1)/step:lease/step], false) {
				t.Fatalf("at %d ms %d takes %d for gone, which has had a majority since", w.now/ms, x, y)
			}
		}
	}
	return found
}
