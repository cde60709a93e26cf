package sim

import "math/rand/v2"

// engine is virtual time: events run one after the other, those of one instant in the order in which they were scheduled.
type engine struct {
	now    int64 // ns
	number uint64
	queue  []event
	rnd    *rand.Rand
}

type event struct {
	at     int64
	number uint64
	run    func()
}

func newEngine(seed uint64) engine {
	return engine{now: 1, rnd: rand.New(rand.NewPCG(seed, 0x6e656172))} //nolint:gosec // a simulation wants a seed
}

func (a event) before(b event) bool { return a.at < b.at || a.at == b.at && a.number < b.number }

// after runs f in d nanoseconds.
func (e *engine) after(d int64, f func()) {
	e.number++
	e.queue = append(e.queue, event{at: e.now + max(d, 0), number: e.number, run: f})
	q := e.queue
	for i := len(q) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q[i].before(q[parent]) {
			return
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}

// run runs events until the time is until, or stop returns true.
func (e *engine) run(until int64, stop func() bool) {
	for len(e.queue) > 0 && e.queue[0].at <= until && !stop() {
		ev := e.pop()
		e.now = ev.at
		ev.run()
	}
	e.now = max(e.now, until)
}

func (e *engine) pop() event {
	q := e.queue
	first, last := q[0], len(q)-1
	q[0], q[last] = q[last], event{}
	q = q[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if !q[child].before(q[i]) {
			break
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
	e.queue = q
	return first
}

// chance is true with probability p.
func (e *engine) chance(p float64) bool { return p > 0 && e.rnd.Float64() < p }

// between returns a time from lo to hi.
func (e *engine) between(lo, hi int64) int64 {
	if hi <= lo {
		return lo
	}
	return lo + e.rnd.Int64N(hi-lo)
}

// exp returns an exponentially distributed time.
func (e *engine) exp(mean int64) int64 { return int64(e.rnd.ExpFloat64() * float64(mean)) }
