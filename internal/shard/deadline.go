package shard

import "container/heap"

// deadline is when a lease expires, or a waiter gives up.
type deadline struct {
	at     int64
	pos    int // in the heap, or -1
	lease  *lease
	waiter *waiter // nil: the lease's own
}

// deadlines is a heap of them, the earliest first.
type deadlines []*deadline

// set puts d into the heap, or moves it.
func (h *deadlines) set(d *deadline, at int64) {
	d.at = at
	if d.pos < 0 {
		heap.Push(h, d)
		return
	}
	heap.Fix(h, d.pos)
}

// remove takes d out, if it is in.
func (h *deadlines) remove(d *deadline) {
	if d.pos >= 0 {
		heap.Remove(h, d.pos)
	}
}

// Len is part of heap.Interface.
func (h deadlines) Len() int { return len(h) }

// Less is part of heap.Interface.
func (h deadlines) Less(i, j int) bool { return h[i].at < h[j].at }

// Swap is part of heap.Interface.
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

// Push is part of heap.Interface.
func (h *deadlines) Push(x any) {
	d := x.(*deadline)
	d.pos = len(*h)
	*h = append(*h, d)
}

// Pop is part of heap.Interface.
func (h *deadlines) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	d.pos = -1
	return d
}
