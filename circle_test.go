package nearcache

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// naiveWaits knows which call of which load waits for what.
type naiveWaits []struct {
	l *load
	n need
}

// waits tells whether some load of from waits for to.
func (w naiveWaits) waits(from, to need) bool {
	for _, c := range w {
		if c.n == to && !c.l.over && slices.Contains(c.l.keys, from) {
			return true
		}
	}
	return false
}

// reached returns n and all that its loads wait for, by themselves or through others.
func (w naiveWaits) reached(n need) []need {
	all := []need{n}
	for i := 0; i < len(all); i++ {
		for _, c := range w {
			if w.waits(all[i], c.n) && !slices.Contains(all, c.n) {
				all = append(all, c.n)
			}
		}
	}
	return all
}

// Random loads need random keys. A call is refused exactly if it would close a circle, the circle named is one, and nothing is left in the
// end.
func TestRefusedExactlyInACircle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	node := new(Node)
	spaces := []*keyspace{{name: "x", node: node}, {name: "y", node: node}}
	byName := make(map[string]need)
	randomNeed := func() need {
		n := need{spaces[rng.IntN(2)], strconv.Itoa(rng.IntN(6))}
		byName[circularLoad([]need{n}).Circle[0]] = n
		return n
	}
	var loads []*load
	var calls naiveWaits
	refused := 0
	for range 20_000 {
		switch rng.IntN(10) {
		case 0:
			n := randomNeed()
			keys := []string{n.key, strconv.Itoa(rng.IntN(6))}
			l, _ := n.ks.beginLoad(t.Context(), keys[:1+rng.IntN(2)]...)
			loads = append(loads, l)
		case 1:
			if len(loads) > 6 {
				i := rng.IntN(len(loads))
				loads[i].end()
				loads = slices.Delete(loads, i, i+1)
			}
		case 2, 3, 4:
			if len(calls) > 20 || len(calls) > 0 && rng.IntN(4) == 0 {
				i := rng.IntN(len(calls))
				calls[i].l.leave(calls[i].n)
				calls = slices.Delete(calls, i, i+1)
			}
		default:
			if len(loads) == 0 || len(calls) > 40 {
				continue
			}
			l, n := loads[rng.IntN(len(loads))], randomNeed()
			reached := calls.reached(n)
			want := slices.ContainsFunc(l.keys, func(k need) bool { return slices.Contains(reached, k) })
			err := l.await(n)
			circular, got := errors.AsType[*CircularLoadError](err)
			if got != want {
				t.Fatalf("%v needs %v: got %v, want it refused: %v", l.keys, n, err, want)
			}
			if !got {
				calls = append(calls, struct {
					l *load
					n need
				}{l, n})
				continue
			}
			refused++
			c := circular.Circle
			for i := range c[1:] {
				if !calls.waits(byName[c[i]], byName[c[i+1]]) {
					t.Errorf("%v: nothing that loads %s waits for %s", c, c[i], c[i+1])
				}
			}
			if byName[c[0]] != n || !slices.Contains(l.keys, byName[c[len(c)-1]]) {
				t.Errorf("%v needs %v: got %v", l.keys, n, c)
			}
		}
	}
	if refused < 1000 || len(calls) < 10 {
		t.Errorf("%d were refused and %d wait, want many", refused, len(calls))
	}
	for _, l := range loads {
		l.end()
	}
	for _, c := range calls {
		c.l.leave(c.n)
	}
	if got := len(node.waits.by); got != 0 {
		t.Errorf("%d keys are left in the table, want none", got)
	}
}
