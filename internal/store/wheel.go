package store

import "math"

// wheel finds the entries whose deadline has passed: deadline buckets of 2^22 ns (4 ms) for the next quarter of a second, and four
// coarser levels, whose buckets are spread over the finer level when their time comes (hierarchical timing
// wheels, Varghese and Lauck, 1987). Adding and removing are O(1), an entry is moved four times at most however
// long it lives, and the memory does not depend on how far the deadlines lie apart. The zero wheel is empty. The buckets hold places of the
// index that the methods take.
type wheel[V any] struct {
	levels [wheelLevels]*wheelLevel[V]
	tick   int64 // the next one to drain: no entry's bucket lies before it
	n      int
}

type wheelLevel[V any] struct {
	buckets [wheelSlots][]place
	n       int
}

const (
	tickBits    = 22
	slotBits    = 6
	wheelSlots  = 1 << slotBits
	wheelLevels = 5      // the horizon is 2^(22+5*6) ns, 52 days; later deadlines wait in its last bucket
	noBucket    = 0xffff // Entry.bucket of an entry without a deadline
	keepBucket  = 128    // an emptied bucket keeps at most this capacity
	never       = math.MaxInt64
)

// add puts e, which is at that place, in the bucket of its deadline.
func (w *wheel[V]) add(e *Entry[V], at place, now int64) {
	if e.Deadline == never {
		e.bucket = noBucket
		return
	}
	if w.n == 0 {
		w.tick = max(w.tick, now>>tickBits)
	}
	w.n++
	w.put(e, at)
}

func (w *wheel[V]) put(e *Entry[V], at place) {
	tick := max(e.Deadline>>tickBits, w.tick)
	level, ahead := 0, tick-w.tick
	for ahead >= wheelSlots && level < wheelLevels-1 {
		level++
		ahead >>= slotBits
	}
	shift := slotBits * level
	if ahead >= wheelSlots {
		tick = w.tick + (wheelSlots-1)<<shift
	}
	l := w.levels[level]
	if l == nil {
		l = new(wheelLevel[V])
		w.levels[level] = l
	}
	slot := int(tick>>shift) & (wheelSlots - 1)
	e.bucket = uint16(level<<slotBits | slot)
	e.bucketPos = uint32(len(l.buckets[slot]))
	l.buckets[slot] = append(l.buckets[slot], at)
	l.n++
}

// remove takes e out, if it is in.
func (w *wheel[V]) remove(x *index[V], e *Entry[V]) {
	if e.bucket == noBucket {
		return
	}
	w.n--
	w.take(x, e)
	e.bucket = noBucket
}

func (w *wheel[V]) take(x *index[V], e *Entry[V]) {
	l := w.levels[e.bucket>>slotBits]
	b := &l.buckets[e.bucket&(wheelSlots-1)]
	if last := len(*b) - 1; int(e.bucketPos) < last {
		moved := (*b)[last]
		(*b)[e.bucketPos], x.at(moved).bucketPos = moved, e.bucketPos
	}
	*b = (*b)[:len(*b)-1]
	l.n--
	if len(*b) == 0 && cap(*b) > keepBucket {
		*b = nil
	}
}

// moved notes that the place of e is another one now.
func (w *wheel[V]) moved(e *Entry[V], at place) {
	if e.bucket != noBucket {
		w.levels[e.bucket>>slotBits].buckets[e.bucket&(wheelSlots-1)][e.bucketPos] = at
	}
}

// expired takes at most *budget steps, each of which moves an entry to a finer bucket or takes one out that is past its
// deadline, and yields the latter. What is left of the budget tells that everything due was yielded: all entries whose
// deadline lies a tick (4 ms) or more before now.
func (w *wheel[V]) expired(x *index[V], now int64, budget *int, yield func(*Entry[V])) {
	for end := now >> tickBits; w.tick < end; w.tick++ {
		w.skip(end)
		if w.tick == end {
			return
		}
		for level := wheelLevels - 1; level > 0; level-- {
			if w.tick&(1<<(slotBits*level)-1) == 0 && !w.cascade(x, level, budget) {
				return
			}
		}
		l := w.levels[0]
		if l == nil {
			continue
		}
		for b := &l.buckets[w.tick&(wheelSlots-1)]; len(*b) > 0; {
			if *budget == 0 {
				return
			}
			*budget--
			e := x.at((*b)[len(*b)-1])
			w.remove(x, e)
			yield(e)
		}
	}
}

// overdue returns how many entries are past their deadline at now. It looks at the entries of buckets that are due in part, and counts those
// that are due as a whole: while expired is called as it should be, a bucket or two.
func (w *wheel[V]) overdue(x *index[V], now int64) (n int) {
	end := now >> tickBits
	for level, l := range w.levels {
		if l == nil || l.n == 0 {
			continue
		}
		shift := slotBits * level
		first, last := (w.tick+1<<shift-1)>>shift, end>>shift // what lies before first has been spread already
		for slot := first; slot <= min(last, first+wheelSlots-1); slot++ {
			b := l.buckets[slot&(wheelSlots-1)]
			if level == 0 && slot < end {
				n += len(b)
				continue
			}
			for _, at := range b {
				if x.at(at).Deadline <= now {
					n++
				}
			}
		}
	}
	return n
}

// skip moves the wheel over ticks at which nothing can happen, up to end.
func (w *wheel[V]) skip(end int64) {
	if w.n == 0 {
		w.tick = end
		return
	}
	step := int64(0) // the next tick that is a multiple of it is the first one at which something happens
	for level := range wheelLevels {
		if l := w.levels[level]; l != nil && l.n > 0 {
			break
		}
		step = 1 << (slotBits * (level + 1))
	}
	if step > 0 {
		w.tick = min(end, (w.tick+step-1)&^(step-1))
	}
}

// cascade spreads the bucket of level whose time has come over the finer levels. It tells whether it is done.
func (w *wheel[V]) cascade(x *index[V], level int, budget *int) bool {
	l := w.levels[level]
	if l == nil {
		return true
	}
	for b := &l.buckets[int(w.tick>>(slotBits*level))&(wheelSlots-1)]; len(*b) > 0; {
		if *budget == 0 {
			return false
		}
		*budget--
		at := (*b)[len(*b)-1]
		e := x.at(at)
		w.take(x, e)
		w.put(e, at)
	}
	return true
}
