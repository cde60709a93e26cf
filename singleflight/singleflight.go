// Package singleflight shares one call among all callers of a key in this process.
//
// A caller joins the key's flight and is told whether it leads it. The leader runs the call and finishes the flight;
// everybody waits on its own context and leaves without disturbing the others. The flight's own context ends when the
// last caller has left. Splitting a flight takes it out of the table: callers that come later start a new one, and its
// result must not be stored (docs/protocol.md, R1).
//
// Why not golang.org/x/sync/singleflight: its callers cannot leave, a flight has no age and no leader that can hand it
// over, a batch cannot share flights with single calls, and DoChan costs a goroutine a call, which on the path of a
// remote hit is more than the hit. What panics and Goexit need is done where loaders run, in internal/origin.
package singleflight

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
)

const buckets = 1 << 10 // a power of two

// Group is a table of flights. T is what a flight brings back; S is state that its users keep in it. The zero Group is
// not usable: see New. It is safe for concurrent use.
type Group[T, S any] struct {
	seed    maphash.Seed
	buckets [buckets]bucket[T, S]
	pool    sync.Pool // of *Flight[T, S]
}

// bucket is a list of the flights whose keys have one hash. Why not a map of them: two thirds of the time of a flight were its hashing, and there
// are seldom more flights than buckets.
type bucket[T, S any] struct {
	mu    sync.Mutex // a leaf; guards first, and of each flight that was ever in the list what its comment says
	first *Flight[T, S]
}

// Flight is one shared call.
type Flight[T, S any] struct {
	// Key is what the flight fetches. It is the flight's own copy, which may outlive every caller's string.
	Key string
	// Started is when it began, on the clock of whoever called Join.
	Started int64
	// State belongs to the users of the group; they make it safe for concurrent use.
	State S

	split atomic.Bool
	home  *bucket[T, S] // where it is, or was; home.mu guards what follows

	next     *Flight[T, S] // in home's list
	joinable bool
	over     bool // value and err are final
	refs     int  // callers that have not left
	done     chan struct{}
	cancel   context.CancelFunc
	value    T
	err      error
}

// New returns an empty group.
func New[T, S any]() *Group[T, S] { return &Group[T, S]{seed: maphash.MakeSeed()} }

func (g *Group[T, S]) bucket(key string) *bucket[T, S] {
	return &g.buckets[maphash.String(g.seed, key)&(buckets-1)]
}

func (b *bucket[T, S]) find(key string) *Flight[T, S] {
	f := b.first
	for f != nil && f.Key != key {
		f = f.next
	}
	return f
}

// remove takes f out of the list, if it is there.
func (b *bucket[T, S]) remove(f *Flight[T, S]) {
	for at := &b.first; *at != nil; at = &(*at).next {
		if *at == f {
			*at, f.next = f.next, nil
			return
		}
	}
}

// Join returns the flight of key. It joins the one under way if that began at or after oldest and still takes callers;
// otherwise it starts a new one, which splits the old, and reports that the caller leads it. A leader must see to it
// that Finish is called. Every caller must call Wait or Leave once. key may alias a buffer.
func (g *Group[T, S]) Join(key string, now, oldest int64) (f *Flight[T, S], leads bool) {
	b := g.bucket(key)
	b.mu.Lock()
	defer b.mu.Unlock()
	if f = b.find(key); f != nil {
		if f.joinable && f.Started >= oldest {
			f.refs++
			return f, false
		}
		f.split.Store(true)
		b.remove(f)
	}
	if f, _ = g.pool.Get().(*Flight[T, S]); f == nil {
		f = new(Flight[T, S])
	}
	f.Started, f.home, f.joinable, f.refs, f.next = now, b, true, 1, b.first
	f.Key = strings.Clone(key)
	b.first = f
	return f, true
}

// Reuse lets the memory of f, but for Key, become another flight's if nobody but the caller has it any more: it is over, was never shared, and
// nobody has asked for its Context. Otherwise it does nothing. It may follow the caller's Wait, and f must not be used after it. Whoever calls
// Finish without having asked for the Context must not use f after that either.
func (g *Group[T, S]) Reuse(f *Flight[T, S]) {
	if f.unshared() {
		*f = Flight[T, S]{}
		g.pool.Put(f)
	}
}

func (f *Flight[T, S]) unshared() bool {
	f.home.mu.Lock()
	defer f.home.mu.Unlock()
	return f.over && f.refs == 1 && f.done == nil && f.cancel == nil
}

// Visit calls visit for the flight of key that is under way, if there is one. It runs under a lock: it must be quick, must not use the group,
// and must not keep the flight, which may be another one's afterwards (see Reuse).
func (g *Group[T, S]) Visit(key string, visit func(f *Flight[T, S])) {
	b := g.bucket(key)
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.find(key); f != nil {
		visit(f)
	}
}

// Close closes the flight of key (see Flight.Close).
func (g *Group[T, S]) Close(key string) {
	g.Visit(key, func(f *Flight[T, S]) { f.joinable = false })
}

// Split takes the flight of key out of the table: it serves the callers it has, later ones start a new flight.
func (g *Group[T, S]) Split(key string) {
	b := g.bucket(key)
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.find(key); f != nil {
		f.split.Store(true)
		b.remove(f)
	}
}

// SplitAll splits every flight.
func (g *Group[T, S]) SplitAll() {
	for i := range g.buckets {
		b := &g.buckets[i]
		b.mu.Lock()
		for f := b.first; f != nil; f = b.first {
			f.split.Store(true)
			b.remove(f)
		}
		b.mu.Unlock()
	}
}

// CloseAll closes every flight.
func (g *Group[T, S]) CloseAll() {
	for i := range g.buckets {
		b := &g.buckets[i]
		b.mu.Lock()
		for f := b.first; f != nil; f = f.next {
			f.joinable = false
		}
		b.mu.Unlock()
	}
}

// Len returns how many flights are in the table.
func (g *Group[T, S]) Len() int {
	n := 0
	for i := range g.buckets {
		b := &g.buckets[i]
		b.mu.Lock()
		for f := b.first; f != nil; f = f.next {
			n++
		}
		b.mu.Unlock()
	}
	return n
}

// Close lets nobody join any more; the flight stays the key's current one until another begins.
func (f *Flight[T, S]) Close() {
	f.home.mu.Lock()
	defer f.home.mu.Unlock()
	f.joinable = false
}

// IsSplit tells whether the flight has lost its place in the table: its result must not be stored.
func (f *Flight[T, S]) IsSplit() bool { return f.split.Load() }

// Context returns the context of the shared call: it carries the values of parent, none of its cancellation, and ends
// when the last caller has left or the flight is over. It may be called once.
func (f *Flight[T, S]) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	f.home.mu.Lock()
	f.cancel = cancel
	unwanted := f.over || f.refs == 0
	f.home.mu.Unlock()
	if unwanted {
		cancel()
	}
	return ctx
}

// Abort ends the context of the shared call. Whoever runs it finishes the flight.
func (f *Flight[T, S]) Abort() {
	f.home.mu.Lock()
	cancel := f.cancel
	f.home.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Finish gives the result to all callers and ends the flight. Only the first call has an effect.
func (f *Flight[T, S]) Finish(value T, err error) {
	if cancel := f.finish(value, err); cancel != nil {
		cancel()
	}
}

func (f *Flight[T, S]) finish(value T, err error) (cancel context.CancelFunc) {
	f.home.mu.Lock()
	defer f.home.mu.Unlock()
	if f.over {
		return nil
	}
	f.home.remove(f)
	f.over, f.value, f.err = true, value, err
	if f.done != nil {
		close(f.done)
	}
	return f.cancel
}

// Over tells whether the flight is finished: Wait returns at once then.
func (f *Flight[T, S]) Over() bool {
	f.home.mu.Lock()
	defer f.home.mu.Unlock()
	return f.over
}

// Wait returns the flight's result, or the context's error if that ends first: then the caller has left.
func (f *Flight[T, S]) Wait(ctx context.Context) (T, error) {
	v, over, err := f.await(ctx)
	if !over {
		f.Leave()
	}
	return v, err
}

// Await is Wait for somebody who is no caller. Somebody has asked for the flight's Context.
func (f *Flight[T, S]) Await(ctx context.Context) (T, error) {
	v, _, err := f.await(ctx)
	return v, err
}

func (f *Flight[T, S]) await(ctx context.Context) (_ T, over bool, err error) {
	done := f.doneUnlessOver()
	if done == nil {
		return f.value, true, f.err
	}
	select {
	case <-done:
		return f.value, true, f.err
	case <-ctx.Done():
		var zero T
		return zero, false, ctx.Err()
	}
}

// doneUnlessOver returns what is closed when the flight is over, or nil if it is. After either its result does not change any more.
func (f *Flight[T, S]) doneUnlessOver() <-chan struct{} {
	f.home.mu.Lock()
	defer f.home.mu.Unlock()
	if f.over {
		return nil
	}
	if f.done == nil {
		f.done = make(chan struct{})
	}
	return f.done
}

// Leave takes the caller out of the flight. When it was the last one the flight's context ends, and the flight is split:
// whoever comes later does not wait for a call that nobody wanted any more.
func (f *Flight[T, S]) Leave() {
	if cancel := f.leave(); cancel != nil {
		cancel()
	}
}

func (f *Flight[T, S]) leave() (cancel context.CancelFunc) {
	f.home.mu.Lock()
	defer f.home.mu.Unlock()
	f.refs--
	if f.refs > 0 || f.over {
		return nil
	}
	f.split.Store(true)
	f.home.remove(f)
	return f.cancel
}
