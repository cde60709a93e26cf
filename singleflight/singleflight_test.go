package singleflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

type group = Group[string, struct{}]

// current returns the flight of key that is under way, or nil.
func current(g *group, key string) (found *Flight[string, struct{}]) {
	g.Visit(key, func(f *Flight[string, struct{}]) { found = f })
	return found
}

func TestCallersShareAFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New[string, struct{}]()
		f, leads := g.Join("k", 1, 0)
		if !leads || f.Key != "k" || f.Started != 1 {
			t.Fatalf("got %+v, %v, want to lead a new flight", f, leads)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				f, leads := g.Join("k", 2, 0)
				if leads {
					t.Error("a second leader")
				}
				if v, err := f.Wait(t.Context()); v != "v" || err != nil {
					t.Errorf("got %q, %v, want v", v, err)
				}
			})
		}
		synctest.Wait()
		f.Finish("v", nil)
		f.Finish("w", nil) // only the first counts
		if v, err := f.Wait(t.Context()); v != "v" || err != nil {
			t.Errorf("the leader: got %q, %v, want v", v, err)
		}
		wg.Wait()
		if g.Len() != 0 || current(g, "k") != nil {
			t.Error("the flight is still in the table")
		}
		if _, leads := g.Join("k", 3, 0); !leads {
			t.Error("joined a flight that is over")
		}
	})
}

// Case L1-15.
func TestTheKeyIsTheFlightsOwn(t *testing.T) {
	for _, n := range []int{0, 1, 1000} {
		g := New[string, struct{}]()
		b := bytes.Repeat([]byte("k"), n+1)[:n]
		f, _ := g.Join(unsafe.String(unsafe.SliceData(b), n), 0, 0)
		want := strings.Repeat("k", n)
		for i := range b {
			b[i] = 'x'
		}
		if f.Key != want || current(g, want) != f {
			t.Errorf("%d bytes: the flight's key is %q after its caller reused the memory", n, f.Key)
		}
	}
}

// Case singleflight-3.
// Case singleflight-4.
func TestEachCallerLeavesOnItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New[string, struct{}]()
		f, _ := g.Join("k", 0, 0)
		type key struct{}
		parent, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), 50*time.Millisecond)
		defer cancel()
		ctx := f.Context(parent)
		if ctx.Value(key{}) != "v" {
			t.Error("the flight's context lacks the caller's values")
		}
		patient, _ := g.Join("k", 0, 0)
		start := time.Now()
		if _, err := f.Wait(parent); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 50*time.Millisecond {
			t.Errorf("the leader: got %v after %v, want its deadline", err, time.Since(start))
		}
		if ctx.Err() != nil || f.IsSplit() {
			t.Error("the flight ended with its leader, somebody waits")
		}
		patient.Leave()
		if ctx.Err() == nil {
			t.Error("the flight goes on although nobody waits")
		}
		if !f.IsSplit() || current(g, "k") != nil {
			t.Error("an abandoned flight is still the key's current one")
		}
		f.Finish("late", nil)
		if next, leads := g.Join("k", 0, 0); !leads || next == f {
			t.Error("joined an abandoned flight")
		}
	})
}

func TestAContextMadeAfterEverybodyLeftIsOver(t *testing.T) {
	g := New[string, struct{}]()
	f, _ := g.Join("k", 0, 0)
	f.Leave()
	if f.Context(t.Context()).Err() == nil {
		t.Error("the context of an abandoned flight is alive")
	}
}

func TestAbortEndsTheContextOnly(t *testing.T) {
	g := New[string, struct{}]()
	f, _ := g.Join("k", 0, 0)
	f.Abort() // nothing to end yet
	ctx := f.Context(t.Context())
	f.Abort()
	if ctx.Err() == nil || f.Over() {
		t.Errorf("got context %v, over %v, want a cancelled context of a flight that is not over", ctx.Err(), f.Over())
	}
	f.Finish("", errors.New("aborted"))
	if !f.Over() {
		t.Error("a finished flight is not over")
	}
}

func TestWhoMayJoin(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(g *group, f *Flight[string, struct{}])
		oldest int64
		joins  bool
		split  bool // the first flight, afterwards
	}{
		"young enough": {func(*group, *Flight[string, struct{}]) {}, 10, true, false},
		"too old":      {func(*group, *Flight[string, struct{}]) {}, 11, false, true},
		"closed":       {func(_ *group, f *Flight[string, struct{}]) { f.Close() }, 0, false, true},
		"split":        {func(g *group, _ *Flight[string, struct{}]) { g.Split("k") }, 0, false, true},
		"another":      {func(g *group, _ *Flight[string, struct{}]) { g.Split("l") }, 0, true, false},
		"all split":    {func(g *group, _ *Flight[string, struct{}]) { g.SplitAll() }, 0, false, true},
		"over":         {func(_ *group, f *Flight[string, struct{}]) { f.Finish("v", nil) }, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := New[string, struct{}]()
			f, _ := g.Join("k", 10, 0)
			tt.change(g, f)
			next, leads := g.Join("k", 20, tt.oldest)
			if leads == tt.joins || (next == f) != tt.joins {
				t.Errorf("got leads %v, want joins %v", leads, tt.joins)
			}
			if f.IsSplit() != tt.split {
				t.Errorf("the first flight: got split %v, want %v", f.IsSplit(), tt.split)
			}
			if current(g, "k") != next {
				t.Error("the table does not have the newest flight")
			}
			// The end of the first one does not disturb the second.
			f.Finish("old", nil)
			if !tt.joins && current(g, "k") != next {
				t.Error("the old flight took the new one out of the table")
			}
		})
	}
}

// A closed flight stays where events of its key find it, until another one begins.
func TestAClosedFlightStaysCurrent(t *testing.T) {
	g := New[string, struct{}]()
	f, _ := g.Join("k", 0, 0)
	f.Close()
	if current(g, "k") != f || f.IsSplit() {
		t.Error("a closed flight is not current any more")
	}
}

// The memory of a flight is another one's only after its only caller has done with it.
func TestReuse(t *testing.T) {
	ctx := t.Context()
	left, leave := context.WithCancel(ctx)
	leave()
	for name, tt := range map[string]struct {
		use    func(g *group, f *Flight[string, struct{}])
		reused bool
	}{
		"over":           {func(_ *group, f *Flight[string, struct{}]) { f.Finish("v", nil) }, true},
		"split and over": {func(g *group, f *Flight[string, struct{}]) { g.Split("k"); f.Finish("v", nil) }, true},
		"under way":      {func(*group, *Flight[string, struct{}]) {}, false},
		"left":           {func(_ *group, f *Flight[string, struct{}]) { _, _ = f.Wait(left); f.Finish("v", nil) }, false},
		"shared":         {func(g *group, f *Flight[string, struct{}]) { g.Join("k", 0, 0); f.Finish("v", nil) }, false},
		"awaited":        {func(_ *group, f *Flight[string, struct{}]) { _, _ = f.Await(left); f.Finish("v", nil) }, false},
		"with a context": {func(_ *group, f *Flight[string, struct{}]) { f.Context(ctx); f.Finish("v", nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := New[string, struct{}]()
			f, _ := g.Join("k", 0, 0)
			tt.use(g, f)
			g.Reuse(f)
			if got := f.Key == ""; got != tt.reused {
				t.Errorf("got reused %v, want %v", got, tt.reused)
			}
		})
	}
}

func TestRacingCallers(t *testing.T) {
	g := New[string, struct{}]()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 2000 {
				key := fmt.Sprint("k", n%3)
				f, leads := g.Join(key, int64(n), int64(n-5))
				switch {
				case leads && n%2 == 0:
					f.Finish(key, nil)
				case leads:
					ctx := f.Context(t.Context())
					go func() {
						if n%7 == 0 {
							select {
							case <-ctx.Done(): // nobody waits any more
							case <-time.After(time.Millisecond):
							}
						}
						f.Finish(f.Key, nil)
					}()
				}
				ctx, cancel := context.WithCancel(t.Context())
				if n%7 == 0 || i%5 == 0 {
					cancel()
				}
				if v, err := f.Wait(ctx); err == nil && v != key {
					t.Errorf("got %q for %q", v, key)
				}
				cancel()
				g.Reuse(f)
				switch n % 11 {
				case 0:
					g.Split(key)
				case 1:
					g.SplitAll()
				}
			}
		})
	}
	wg.Wait()
	if g.Len() > 3 {
		t.Errorf("got %d flights in the table, want at most one a key", g.Len())
	}
}
