package peers

import (
	"context"
	"slices"
	"sync"
)

// List is a discovery that the program itself drives. Any number of nodes can watch one list. See NewList.
type List struct {
	mu      sync.Mutex    // guards the fields below
	members []Member      // never changed in place
	changed chan struct{} // closed and replaced by Set
}

// NewList returns a list of these members, none included.
func NewList(members ...Member) *List {
	return &List{members: slices.Clone(members), changed: make(chan struct{})}
}

// Set replaces the list. It never blocks: a watcher that is busy sees only the last list when it is done. An empty list is
// taken at its word.
func (l *List) Set(members ...Member) {
	members = slices.Clone(members)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members = members
	close(l.changed)
	l.changed = make(chan struct{})
}

// Watch reports the list now and after every Set until ctx ends, whose error it returns.
func (l *List) Watch(ctx context.Context, update func([]Member)) error {
	for ctx.Err() == nil {
		members, changed := l.current()
		update(slices.Clone(members))
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func (l *List) current() ([]Member, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.members, l.changed
}
