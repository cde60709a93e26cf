package feed

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Memory is a stream in memory, for tests and examples. It is safe for concurrent use. See NewMemory.
type Memory struct {
	keep int

	mu      sync.Mutex // guards what follows
	epoch   int
	first   int // number of entries[0]
	entries []entry
	broken  error
	changed chan struct{} // closed and replaced when anything above changes
}

type entry struct {
	change Change
	at     time.Time
}

// NewMemory returns an empty stream that keeps the last keep changes. 0: all of them.
func NewMemory(keep int) *Memory {
	return &Memory{keep: keep, epoch: 1, changed: make(chan struct{})}
}

// Append adds changes at the end. It never blocks.
func (m *Memory) Append(changes ...Change) {
	m.change(func() {
		for _, c := range changes {
			c.Tags = slices.Clone(c.Tags)
			m.entries = append(m.entries, entry{c, time.Now()})
		}
		if m.keep > 0 {
			m.cleanLocked(m.keep)
		}
	})
}

// Clean forgets all but the last keep changes, read or not.
func (m *Memory) Clean(keep int) { m.change(func() { m.cleanLocked(keep) }) }

// Recreate makes the stream an empty one with another epoch, as a database that was made anew does.
func (m *Memory) Recreate() {
	m.change(func() { m.epoch, m.first, m.entries = m.epoch+1, 0, nil })
}

// Break makes Tail and Read fail with err, until it is called with nil.
func (m *Memory) Break(err error) { m.change(func() { m.broken = err }) }

func (m *Memory) change(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Memory) cleanLocked(keep int) {
	if n := len(m.entries) - keep; n > 0 {
		m.first += n
		m.entries = slices.Clone(m.entries[n:])
	}
}

// Tail returns the position behind the last change.
func (m *Memory) Tail(ctx context.Context) (Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return "", m.broken
	}
	return m.atLocked(m.first + len(m.entries)), ctx.Err()
}

// Read implements Source.
func (m *Memory) Read(ctx context.Context, after Position, apply func(Batch) error) error {
	for ctx.Err() == nil {
		b, changed, err := m.next(after)
		if err == nil && b.Position != after {
			err = apply(b)
		}
		if err != nil {
			return err
		}
		if b.Position != after {
			after = b.Position
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// memoryBatch bounds the changes of a batch.
const memoryBatch = 1000

// next returns what comes after a position, and a channel that is closed when that changes.
func (m *Memory) next(after Position) (Batch, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return Batch{}, nil, m.broken
	}
	var b Batch
	from := m.first
	epoch, place, _ := after.Split()
	switch n, err := strconv.Atoi(place); {
	case err != nil || epoch != strconv.Itoa(m.epoch) || n > m.first+len(m.entries):
		b.Gap = "the position is of another stream"
	case n < m.first:
		b.Gap = "changes were forgotten before they were read"
	default:
		from = n
	}
	rest := m.entries[from-m.first:]
	n := min(len(rest), memoryBatch)
	for _, e := range rest[:n] {
		b.Changes = append(b.Changes, e.change)
	}
	if n < len(rest) {
		b.Behind, b.Lag = len(rest)-n, time.Since(rest[n].at)
	}
	b.Position = m.atLocked(from + n)
	return b, m.changed, nil
}

func (m *Memory) atLocked(number int) Position {
	return At(strconv.Itoa(m.epoch), strconv.Itoa(number))
}
