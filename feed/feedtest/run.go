package feedtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcache/nearcache/feed"
)

// Stream is a source and the means to control what it reports.
type Stream struct {
	// Source is what is tested.
	Source feed.Source
	// Append adds changes at the end. Each one of a check has a key of its own.
	Append func(changes ...feed.Change)
	// Clean removes all changes that there are. Nil: lost history is not checked.
	Clean func()
	// Recreate makes the stream anew, as an empty one. Nil: that is not checked.
	Recreate func()
	// Restart ends what is behind the source and starts it again. Read may fail meanwhile. Nil: that is not checked.
	Restart func()
	// Within is how long a change may take to be reported, and Read to end. 0 means 5 s.
	Within time.Duration
}

// Run runs every check as a subtest of t, on a stream of its own.
func Run(t *testing.T, stream func(t *testing.T) Stream) {
	t.Helper()
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			s := stream(t)
			if s.Within == 0 {
				s.Within = 5 * time.Second
			}
			if c.needs != nil && !c.needs(s) {
				t.Skip("the stream cannot do what this needs")
			}
			c.run(t, s)
		})
	}
}

type check struct {
	name  string
	needs func(Stream) bool
	run   func(t *testing.T, s Stream)
}

func checks() []check {
	return []check{
		{"from the tail on", nil, fromTheTail},
		{"from every position", nil, fromEveryPosition},
		{"several readers", nil, severalReaders},
		{"an error of apply ends it", nil, applyFails},
		{"the context ends it", nil, contextEnds},
		{"lost history", func(s Stream) bool { return s.Clean != nil }, lostHistory},
		{"a position of another stream", nil, otherStream},
		{"a stream made anew", func(s Stream) bool { return s.Recreate != nil }, madeAnew},
		{"a restart", func(s Stream) bool { return s.Restart != nil }, restart},
	}
}

const keyspace = "feedtest"

func key(i int) string { return fmt.Sprint("key-", i) }

// add appends the changes of keys from..to-1, a few at a time.
func (s Stream) add(from, to int) {
	const few = 3
	for ; from < to; from += few {
		var part []feed.Change
		for i := from; i < min(from+few, to); i++ {
			part = append(part, feed.Change{Keyspace: keyspace, Key: key(i), Version: uint64(i)})
		}
		s.Append(part...)
	}
}

func (s Stream) tail(t *testing.T) feed.Position {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Within)
	defer cancel()
	p, err := s.Source.Tail(ctx)
	if err != nil || p == "" {
		t.Fatalf("Tail: got %q, %v, want a position", p, err)
	}
	return p
}

// reading is what one Read has brought.
type reading struct {
	seen      map[string]bool
	positions []feed.Position   // after each batch
	by        []map[string]bool // what was seen by then
	gaps      int
}

var errEnough = errors.New("feedtest: enough")

// read reads until enough says so, and checks what holds for every Read.
func (s Stream) read(t *testing.T, after feed.Position, enough func(r *reading) bool) *reading {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Within)
	defer cancel()
	r := &reading{seen: make(map[string]bool)}
	var busy atomic.Bool
	err := s.Source.Read(ctx, after, func(b feed.Batch) error {
		if !busy.CompareAndSwap(false, true) {
			t.Error("apply was called before the call before it had returned")
		}
		defer busy.Store(false)
		if b.Position == "" {
			t.Error("a batch has no position")
		}
		if b.Gap != "" {
			r.gaps++
		}
		for _, c := range b.Changes {
			if c.Keyspace == keyspace {
				r.seen[c.Key] = true
			}
		}
		r.positions, r.by = append(r.positions, b.Position), append(r.by, maps.Clone(r.seen))
		if enough(r) {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("Read: got %v after %d batches with %d keys and %d gaps, want more of it within %v", err, len(r.positions), len(r.seen), r.gaps, s.Within)
	}
	return r
}

// all waits for keys from..to-1.
func all(from, to int) func(r *reading) bool {
	return func(r *reading) bool {
		for i := from; i < to; i++ {
			if !r.seen[key(i)] {
				return false
			}
		}
		return true
	}
}

func wantNoGap(t *testing.T, r *reading) {
	t.Helper()
	if r.gaps > 0 {
		t.Errorf("got %d gaps, want none", r.gaps)
	}
}

func fromTheTail(t *testing.T, s Stream) {
	tail := s.tail(t)
	s.add(0, 10)
	wantNoGap(t, s.read(t, tail, all(0, 10)))
	tail = s.tail(t)
	s.add(10, 20)
	wantNoGap(t, s.read(t, tail, all(10, 20)))
}

func fromEveryPosition(t *testing.T, s Stream) {
	tail := s.tail(t)
	const n = 30
	s.add(0, n)
	first := s.read(t, tail, all(0, n))
	for i, p := range first.positions {
		next := n + i
		s.add(next, next+1)
		r := s.read(t, p, func(r *reading) bool { return r.seen[key(next)] })
		wantNoGap(t, r)
		for k := range n {
			if !first.by[i][key(k)] && !r.seen[key(k)] {
				t.Errorf("%s came neither before position %d nor after it", key(k), i)
			}
		}
	}
}

func severalReaders(t *testing.T, s Stream) {
	tail := s.tail(t)
	for range 3 {
		t.Run("reader", func(t *testing.T) {
			t.Parallel()
			s.read(t, tail, all(0, 10))
		})
	}
	s.add(0, 10)
}

func applyFails(t *testing.T, s Stream) {
	tail := s.tail(t)
	s.add(0, 1)
	s.read(t, tail, func(*reading) bool { return true })
}

func contextEnds(t *testing.T, s Stream) {
	tail := s.tail(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Source.Read(ctx, tail, func(feed.Batch) error { return nil }) }()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
	case <-time.After(s.Within):
		t.Errorf("Read goes on %v after its context has ended", s.Within)
	}
}

func lostHistory(t *testing.T, s Stream) {
	tail := s.tail(t)
	s.add(0, 10)
	s.Clean()
	s.add(10, 20)
	r := s.read(t, tail, all(10, 20))
	if r.gaps == 0 {
		t.Error("got no gap for changes that are gone")
	}
	end := r.positions[len(r.positions)-1]
	s.add(20, 21)
	wantNoGap(t, s.read(t, end, all(20, 21)))
	s.Clean() // what is gone now was read
	end = s.tail(t)
	s.add(21, 22)
	wantNoGap(t, s.read(t, end, all(21, 22)))
}

func otherStream(t *testing.T, s Stream) {
	s.add(0, 1)
	for _, p := range []feed.Position{"", "nonsense", feed.At("another", "1"), feed.At("", "")} {
		if r := s.read(t, p, func(r *reading) bool { return r.gaps > 0 }); r.gaps == 0 {
			t.Errorf("position %q: got no gap", p)
		}
	}
}

func madeAnew(t *testing.T, s Stream) {
	s.add(0, 10)
	before := s.tail(t)
	s.Recreate()
	s.add(10, 30)
	if r := s.read(t, before, all(10, 30)); r.gaps == 0 {
		t.Error("got no gap for a position of the stream before")
	}
}

func restart(t *testing.T, s Stream) {
	tail := s.tail(t)
	s.add(0, 10)
	end := s.read(t, tail, all(0, 10)).positions
	s.Restart()
	s.add(10, 20)
	wantNoGap(t, s.read(t, tail, all(0, 20)))
	wantNoGap(t, s.read(t, end[len(end)-1], all(10, 20)))
}
