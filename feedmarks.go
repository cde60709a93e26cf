package nearcache

import "github.com/nearcache/nearcache/feed"

// marks are positions that were read up to and may not be saved yet: before them there were changes that an owner did not confirm. They
// are told again until they are (R9), but by this process: one that goes on from a saved position in its place would not know of them. So
// a position waits until no copy can be left that missed what was before it.
type marks struct {
	list    []mark // in the order in which they were read; what may be saved is at most one, the first
	staleAt int64  // of what was read since the last mark
}

// mark is a position, and until when there may be copies that missed something before it.
type mark struct {
	position feed.Position
	staleAt  int64
}

// maxMarks bounds them; beyond it they become coarser.
const maxMarks = 1 << 10

// unconfirmed notes that copies which missed something that was just read may live until then.
func (m *marks) unconfirmed(staleAt int64) { m.staleAt = max(m.staleAt, staleAt) }

// add notes that all up to p was read.
func (m *marks) add(p feed.Position) {
	n := len(m.list)
	switch {
	case n > 0 && m.list[n-1].position == p, n == maxMarks:
		m.list[n-1] = mark{p, max(m.list[n-1].staleAt, m.staleAt)}
	default:
		m.list = append(m.list, mark{p, m.staleAt})
	}
	m.staleAt = 0
}

// settled returns the last position that may be saved; false: there is none yet.
func (m *marks) settled(now int64) (feed.Position, bool) {
	n := 0
	for n < len(m.list) && m.list[n].staleAt <= now {
		n++
	}
	if n == 0 {
		return "", false
	}
	m.list = append(m.list[:0], m.list[n-1:]...)
	return m.list[0].position, true
}
