package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// watch runs d.Watch until the test ends and returns the lists that it reports; ended is closed when it returns. Use it in
// a bubble.
func watch(t *testing.T, d Discovery) (lists func() [][]Member, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex // guards got
	var got [][]Member
	done := make(chan error, 1)
	go func() {
		done <- d.Watch(ctx, func(members []Member) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, slices.Clone(members))
			for i := range members {
				members[i].Addr = "changed by the callee" // the list is the callee's
			}
		})
	}()
	lists = func() [][]Member {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
	return lists, func() error {
		cancel()
		return <-done
	}
}

func addrsOf(lists [][]Member) string {
	var parts []string
	for _, list := range lists {
		var one []string
		for _, m := range list {
			one = append(one, m.Addr)
		}
		parts = append(parts, strings.Join(one, " "))
	}
	return strings.Join(parts, ", ")
}

func TestStatic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addrs := []string{"b:1", " A:01 ", "localhost:2", "a:1", "127.0.0.1:2"}
		d := Static(addrs...)
		addrs[0] = "changed:1"
		for range 2 { // several nodes may watch it
			lists, stop := watch(t, d)
			if got, want := addrsOf(lists()), "b:1 a:1 127.0.0.1:2"; got != want {
				t.Errorf("got %q, want %q once", got, want)
			}
			time.Sleep(time.Hour)
			if got := len(lists()); got != 1 {
				t.Errorf("after an hour: got %d lists, want 1", got)
			}
			if err := stop(); !errors.Is(err, context.Canceled) {
				t.Errorf("Watch after the end of its context: got %v", err)
			}
		}
	})
}

// Case transport-9.
func TestStaticRefusesBadAddresses(t *testing.T) {
	err := Static("good:1", "::1:7946", "bad", "0.0.0.0:1").Watch(t.Context(), func([]Member) { t.Error("update called") })
	if err == nil {
		t.Fatal("Watch: want an error")
	}
	for _, want := range []string{`"::1:7946"`, `"bad"`, `"0.0.0.0:1"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Watch: got error %q, want one with %s", err, want)
		}
	}
}

func TestStaticOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists, stop := watch(t, Static())
		if got := lists(); len(got) != 1 || len(got[0]) != 0 {
			t.Errorf("got %v, want one empty list", got)
		}
		_ = stop() // the context's error
	})
}

func TestFunc(t *testing.T) {
	want := errors.New("registry gone")
	called := false
	err := Func(func(_ context.Context, update func([]Member)) error {
		update(nil)
		return want
	}).Watch(t.Context(), func([]Member) { called = true })
	if !errors.Is(err, want) || !called {
		t.Errorf("Watch: got %v, called %v, want %v, true", err, called, want)
	}
	if err := Func(nil).Watch(t.Context(), nil); err == nil {
		t.Error("Watch of a nil Func: want an error")
	}
}

func TestListReportsEachState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewList(Member{Addr: "a:1"})
		first, stopFirst := watch(t, l)
		first()
		l.Set(Member{Addr: "a:1"}, Member{Addr: "b:1"})
		second, stopSecond := watch(t, l)
		second()
		l.Set()
		if got, want := addrsOf(first()), "a:1, a:1 b:1, "; got != want {
			t.Errorf("the first watcher got %q, want %q", got, want)
		}
		if got, want := addrsOf(second()), "a:1 b:1, "; got != want {
			t.Errorf("the second watcher got %q, want %q", got, want)
		}
		_, _ = stopFirst(), stopSecond() // the context's error
	})
}

// Case ring-7, as far as the list goes: the last Set wins and none blocks, however slow the watcher.
func TestListConflates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewList()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		release, count, last := make(chan struct{}), 0, ""
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Watch(ctx, func(members []Member) { // the context's error
				<-release
				count++
				last = addrsOf([][]Member{members})
			})
		}()
		var setters sync.WaitGroup
		for i := range 4 {
			setters.Go(func() {
				for j := range 500 {
					l.Set(Member{Addr: fmt.Sprintf("n%d-%d:1", i, j)})
				}
			})
		}
		setters.Wait() // the watcher is still in its first update
		l.Set(Member{Addr: "final:1"})
		close(release)
		synctest.Wait()
		if count > 2 || last != "final:1" {
			t.Errorf("got %d updates, the last %q, want at most 2, the last final:1", count, last)
		}
		cancel()
		<-done
	})
}
