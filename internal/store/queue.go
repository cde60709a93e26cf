package store

// queue is a FIFO of entries in a ring of their places. An entry knows its position; one that is taken out leaves a hole.
// The zero queue is empty. Its methods take the index that the places are of.
type queue[V any] struct {
	ring       []place // a power of two
	head, tail uint32  // positions, modulo 2^32; head is the oldest
	n          int
	bytes      int64
}

const minRing = 16

// push adds e, which is at a place of x, as the newest.
func (q *queue[V]) push(x *index[V], e *Entry[V], at place) {
	if int(q.tail-q.head) == len(q.ring) {
		q.compact(x)
	}
	e.pos = q.tail
	*q.at(e.pos) = at
	q.tail++
	q.n++
	q.bytes += int64(e.cost)
}

// oldest returns the oldest entry; the queue is not empty.
func (q *queue[V]) oldest(x *index[V]) *Entry[V] {
	for *q.at(q.head) == noPlace {
		q.head++
	}
	return x.at(*q.at(q.head))
}

// any returns an entry that draw's random numbers choose; the queue is not empty. At least one place in sixteen is taken.
func (q *queue[V]) any(x *index[V], draw func() uint64) *Entry[V] {
	for {
		if at := *q.at(uint32(draw() >> 32)); at != noPlace {
			return x.at(at)
		}
	}
}

// remove takes e out, and returns its place.
func (q *queue[V]) remove(x *index[V], e *Entry[V]) place {
	at := *q.at(e.pos)
	*q.at(e.pos) = noPlace
	q.n--
	q.bytes -= int64(e.cost)
	if len(q.ring) > minRing && q.n*8 < len(q.ring) {
		q.compact(x)
	}
	return at
}

// swap gives e the position of old, whose place in the index it takes too.
func (q *queue[V]) swap(old, e *Entry[V]) {
	e.pos = old.pos
	q.bytes += int64(e.cost) - int64(old.cost)
}

// compact drops the holes and sizes the ring so that at most half of it is used.
func (q *queue[V]) compact(x *index[V]) {
	size := minRing
	for size < 2*q.n {
		size *= 2
	}
	ring := make([]place, size)
	tail := uint32(0)
	for i := q.head; i != q.tail; i++ {
		if at := *q.at(i); at != noPlace {
			ring[tail], x.at(at).pos = at, tail
			tail++
		}
	}
	q.ring, q.head, q.tail = ring, 0, tail
}

func (q *queue[V]) at(pos uint32) *place { return &q.ring[pos&uint32(len(q.ring)-1)] }
