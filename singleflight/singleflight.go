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
	"unsafe"
)

const shards = 64 // a power of two

// Group is a table of flights. T is what a flight brings back; S is state that its users keep in it. The zero Group is
// not usable: see New. It is safe for concurrent use.
type Group[T, S any] struct {
	seed   maphash.Seed
	shards [shards]shard[T, S]
}

type shard[T, S any] struct {
	mu      sync.Mutex // guards flights and, of each of them, Flight.joinable
	flights map[string]*Flight[T, S]
	_       [40]byte // own cache line
}

// Flight is one shared call.
type Flight[T, S any] struct {
	// Key is what the flight fetches. It belongs to the flight, which may outlive every caller's string.
	Key string
	// Started is when it began, on the clock of whoever called Join.
	Started int64
	// State belongs to the users of the group; they make it safe for concurrent use.
	State S

	home     *shard[T, S] // where it is, or was, in the table
	joinable bool         // guarded by home.mu
	split    atomic.Bool

	mu     sync.Mutex // guards what follows
	refs   int        // callers that have not left
	over   bool       // value and err are final
	done   chan struct{}
	cancel context.CancelFunc
	value  T
	err    error

	short [shortKey]byte // holds Key if it fits, which spares an allocation
}

// shortKey is the length of keys that need no memory of their own.
const shortKey = 40

// New returns an empty group.
func New[T, S any]() *Group[T, S] {
	g := &Group[T, S]{seed: maphash.MakeSeed()}
	for i := range g.shards {
		g.shards[i].flights = make(map[string]*Flight[T, S])
	}
	return g
}

func (g *Group[T, S]) shard(key string) *shard[T, S] {
	return &g.shards[maphash.String(g.seed, key)&(shards-1)]
}

// Join returns the flight of key. It joins the one under way if that began at or after oldest and still takes callers;
// otherwise it starts a new one, which splits the old, and reports that the caller leads it. A leader must see to it
// that Finish is called. Every caller must call Wait or Leave once. key may alias a buffer.
func (g *Group[T, S]) Join(key string, now, oldest int64) (f *Flight[T, S], leads bool) {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f = s.flights[key]; f != nil {
		if f.joinable && f.Started >= oldest && f.enter() {
			return f, false
		}
		f.split.Store(true)
	}
	f = &Flight[T, S]{Started: now, home: s, joinable: true, refs: 1}
	f.Key = f.own(key)
	s.flights[f.Key] = f
	return f, true
}

// own returns a copy of key that belongs to the flight.
func (f *Flight[T, S]) own(key string) string {
	if len(key) > shortKey {
		return strings.Clone(key)
	}
	n := copy(f.short[:], key)
	return unsafe.String(&f.short[0], n) // short is written once, before anybody has seen the flight
}

// Current returns the flight of key that is under way, or nil.
func (g *Group[T, S]) Current(key string) *Flight[T, S] {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flights[key]
}

// Split takes the flight of key out of the table: it serves the callers it has, later ones start a new flight.
func (g *Group[T, S]) Split(key string) {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[key]; f != nil {
		f.split.Store(true)
		delete(s.flights, key)
	}
}

// SplitAll splits every flight.
func (g *Group[T, S]) SplitAll() {
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for key, f := range s.flights {
			f.split.Store(true)
			delete(s.flights, key)
		}
		s.mu.Unlock()
	}
}

// CloseAll closes every flight.
func (g *Group[T, S]) CloseAll() {
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for _, f := range s.flights {
			f.joinable = false
		}
		s.mu.Unlock()
	}
}

// Len returns how many flights are in the table.
func (g *Group[T, S]) Len() int {
	n := 0
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		n += len(s.flights)
		s.mu.Unlock()
	}
	return n
}

// enter counts one more caller, unless the flight is over or everybody has left it.
func (f *Flight[T, S]) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.refs == 0 {
		return false
	}
	f.refs++
	return true
}

// Close lets nobody join any more; the flight stays the key's current one until another begins.
func (f *Flight[T, S]) Close() {
	s := f.home
	s.mu.Lock()
	f.joinable = false
	s.mu.Unlock()
}

// IsSplit tells whether the flight has lost its place in the table: its result must not be stored.
func (f *Flight[T, S]) IsSplit() bool { return f.split.Load() }

// Context returns the context of the shared call: it carries the values of parent, none of its cancellation, and ends
// when the last caller has left or the flight is over. It may be called once.
func (f *Flight[T, S]) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel = cancel
	if f.over || f.refs == 0 {
		cancel()
	}
	return ctx
}

// Abort ends the context of the shared call. Whoever runs it finishes the flight.
func (f *Flight[T, S]) Abort() {
	f.mu.Lock()
	cancel := f.cancel
	f.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Finish gives the result to all callers and ends the flight. Only the first call has an effect.
func (f *Flight[T, S]) Finish(value T, err error) {
	s := f.home
	s.mu.Lock()
	if s.flights[f.Key] == f {
		delete(s.flights, f.Key)
	}
	s.mu.Unlock()

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.over, f.value, f.err = true, value, err
	if f.done != nil {
		close(f.done)
	}
	if f.cancel != nil {
		f.cancel()
	}
}

// Over tells whether the flight is finished: Wait returns at once then.
func (f *Flight[T, S]) Over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
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

// Await is Wait for somebody who is no caller.
func (f *Flight[T, S]) Await(ctx context.Context) (T, error) {
	v, _, err := f.await(ctx)
	return v, err
}

func (f *Flight[T, S]) await(ctx context.Context) (_ T, over bool, err error) {
	f.mu.Lock()
	if f.over {
		defer f.mu.Unlock()
		return f.value, true, f.err
	}
	if f.done == nil {
		f.done = make(chan struct{})
	}
	done := f.done
	f.mu.Unlock()

	select {
	case <-done:
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.value, true, f.err
	case <-ctx.Done():
		var zero T
		return zero, false, ctx.Err()
	}
}

// Leave takes the caller out of the flight. When it was the last one the flight's context ends, and the flight is split:
// whoever comes later does not wait for a call that nobody wanted any more.
func (f *Flight[T, S]) Leave() {
	f.mu.Lock()
	f.refs--
	last := f.refs == 0 && !f.over
	cancel := f.cancel
	f.mu.Unlock()
	if !last {
		return
	}
	s := f.home
	s.mu.Lock()
	f.split.Store(true)
	if s.flights[f.Key] == f {
		delete(s.flights, f.Key)
	}
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
