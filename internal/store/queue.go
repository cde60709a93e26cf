package store

// queue is a FIFO of entries in a ring. An entry knows its position; one that is taken out leaves a hole.
// The zero queue is empty.
type queue[V any] struct {
	ring       []*Entry[V] // a power of two
	head, tail uint32      // positions, modulo 2^32; head is the oldest
	n          int
	bytes      int64
}

const minRing = 16

// push adds e as the newest.
func (q *queue[V]) push(e *Entry[V]) {
	if int(q.tail-q.head) == len(q.ring) {
		q.compact()
	}
	e.pos = q.tail
	*q.at(e.pos) = e
	q.tail++
	q.n++
	q.bytes += int64(e.cost)
}

// oldest returns the oldest entry; the queue is not empty.
func (q *queue[V]) oldest() *Entry[V] {
	for *q.at(q.head) == nil {
		q.head++
	}
	return *q.at(q.head)
}

// any returns an entry that draw's random numbers choose; the queue is not empty. At least one place in sixteen is taken.
func (q *queue[V]) any(draw func() uint64) *Entry[V] {
	for {
		if e := *q.at(uint32(draw() >> 32)); e != nil {
			return e
		}
	}
}

// remove takes e out.
func (q *queue[V]) remove(e *Entry[V]) {
	*q.at(e.pos) = nil
	q.n--
	q.bytes -= int64(e.cost)
	if len(q.ring) > minRing && q.n*8 < len(q.ring) {
		q.compact()
	}
}

// swap gives e the place of old.
func (q *queue[V]) swap(old, e *Entry[V]) {
	e.pos = old.pos
	*q.at(e.pos) = e
	q.bytes += int64(e.cost) - int64(old.cost)
}

// compact drops the holes and sizes the ring so that at most half of it is used.
func (q *queue[V]) compact() {
	size := minRing
	for size < 2*q.n {
		size *= 2
	}
	ring := make([]*Entry[V], size)
	tail := uint32(0)
	for i := q.head; i != q.tail; i++ {
		if e := *q.at(i); e != nil {
			ring[tail], e.pos = e, tail
			tail++
		}
	}
	q.ring, q.head, q.tail = ring, 0, tail
}

func (q *queue[V]) at(pos uint32) **Entry[V] { return &q.ring[pos&uint32(len(q.ring)-1)] }
