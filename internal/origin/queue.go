package origin

import "time"

// Priority says who gets a free slot, and who is shed.
type Priority int8

// The priorities, the lowest first. Loads of Low hold at most half of the slots, so that the others find some free.
const (
	Low Priority = iota - 1
	Normal
	High
)

// lines are those who wait, by priority.
type lines [High - Low + 1]line

func (q *lines) of(p Priority) *line { return &q[p-Low] }

// maxWaiting bounds each priority's line: a longer one is shed from its front, where the wait was longest.
const maxWaiting = 1 << 14

// waiter queues for a slot.
type waiter struct {
	priority   Priority
	since      time.Time
	done       chan bool // gets one value: whether there is a slot
	prev, next *waiter
	queued     bool
}

// line is a queue of waiters, the oldest first.
type line struct {
	first, last *waiter
	n           int
}

func (q *line) push(w *waiter) {
	w.prev, w.queued = q.last, true
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
}

func (q *line) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.n--
}

// pick returns who is next: the oldest, or the newest when the oldest has waited for more than patience.
func (q *line) pick(now time.Time, patience time.Duration) *waiter {
	if now.Sub(q.first.since) > patience {
		return q.last
	}
	return q.first
}

// enter takes a slot, or, if it returns a waiter, queues for one.
func (l *Limiter) enter(p Priority) *waiter {
	now := time.Now()
	w := &waiter{priority: p, since: now, done: make(chan bool, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines.of(p)
	if q.n == maxWaiting {
		oldest := q.first
		q.remove(oldest)
		oldest.done <- false
	}
	q.push(w)
	l.handOutLocked(now)
	if !w.queued {
		return nil
	}
	return w
}

// leave takes w out of its line. It reports whether it has got a slot at this moment.
func (l *Limiter) leave(w *waiter) (got bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.queued {
		return <-w.done
	}
	l.lines.of(w.priority).remove(w)
	return false
}

// handOutLocked gives the free slots to those who wait.
func (l *Limiter) handOutLocked(now time.Time) {
	for p := High; p >= Low; p-- {
		for q := l.lines.of(p); q.n > 0 && l.freeLocked(p); {
			w := q.pick(now, l.queue/2)
			q.remove(w)
			l.inUse++
			if p == Low {
				l.low++
			}
			w.done <- true
		}
	}
}

func (l *Limiter) freeLocked(p Priority) bool {
	if l.max < 0 {
		return true
	}
	return l.inUse < l.max && (p > Low || l.low < max(1, l.max/2))
}
