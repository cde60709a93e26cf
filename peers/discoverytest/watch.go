package discoverytest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/peers"
)

// watcher is a node as far as discovery sees it: it runs Watch, again when it ends before its time, and keeps the lists.
type watcher struct {
	s       Source
	ctx     context.Context //nolint:containedctx // the lifetime of the Watch, not a request's
	cancel  context.CancelFunc
	label   string          // of the goroutines that Watch starts
	release <-chan struct{} // the first update waits for it; nil: it does not
	entered chan struct{}   // closed by the first update
	done    chan struct{}   // closed when Watch has returned for good
	mayEnd  atomic.Bool     // Watch may end with an error

	mu       sync.Mutex // guards the fields below
	lists    [][]peers.Member
	changed  chan struct{} // closed and replaced with each list
	inside   bool          // an update is running
	problems []error
}

func newWatcher(s Source, release <-chan struct{}) *watcher {
	w := &watcher{s: s, release: release, entered: make(chan struct{}), done: make(chan struct{}), changed: make(chan struct{})}
	w.label = fmt.Sprintf("%p", w)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

func watch(s Source, release <-chan struct{}) *watcher {
	w := newWatcher(s, release)
	w.start()
	return w
}

func (w *watcher) start() {
	go pprof.Do(w.ctx, pprof.Labels("discoverytest", w.label), func(context.Context) {
		defer close(w.done)
		for w.once() {
			t := time.NewTimer(w.s.Within / 100)
			select {
			case <-t.C:
			case <-w.ctx.Done():
			}
		}
	})
}

// once runs Watch and reports whether it has to be started again.
func (w *watcher) once() bool {
	var over atomic.Bool
	err := w.s.Discovery.Watch(w.ctx, func(list []peers.Member) {
		if over.Load() {
			w.problem(errors.New("update was called after Watch had returned"))
			return
		}
		w.update(list)
	})
	over.Store(true)
	switch {
	case w.ctx.Err() != nil:
		return false
	case err == nil:
		w.problem(errors.New("the Watch returned nil before its context had ended"))
		return false
	case !w.mayEnd.Load():
		w.problem(fmt.Errorf("the Watch ended although nothing was wrong: %w", err))
		return false
	}
	return true
}

// update keeps a copy and spoils the list, which belongs to it.
func (w *watcher) update(list []peers.Member) {
	w.mu.Lock()
	first := len(w.lists) == 0 && !w.inside
	if w.inside {
		w.problems = append(w.problems, errors.New("two calls of update overlap"))
	}
	w.inside = true
	w.mu.Unlock()
	if first {
		close(w.entered)
		if w.release != nil {
			<-w.release
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside = false
	w.lists = append(w.lists, slices.Clone(list))
	for i := range list {
		list[i] = peers.Member{ID: "spoiled by whoever got the list"}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watcher) problem(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, err)
}

// trouble returns what was wrong so far.
func (w *watcher) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.problems...)
}

// begun waits for the first update.
func (w *watcher) begun() error {
	if !within(w.s.Within, w.entered) {
		return fmt.Errorf("no list within %v", w.s.Within)
	}
	return nil
}

// await waits until list is the last one reported.
func (w *watcher) await(list []peers.Member) error {
	t := time.NewTimer(w.s.Within)
	defer t.Stop()
	for {
		w.mu.Lock()
		got, changed := "no list", w.changed
		if n := len(w.lists); n > 0 {
			got = text(w.lists[n-1])
		}
		w.mu.Unlock()
		if got == text(list) {
			return nil
		}
		select {
		case <-changed:
		case <-t.C:
			return fmt.Errorf("after %v: got %s, want %s", w.s.Within, got, text(list))
		}
	}
}

// only checks that no other list than this was reported.
func (w *watcher) only(list []peers.Member) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, got := range w.lists {
		if text(got) != text(list) {
			return fmt.Errorf("got %s, want %s only", text(got), text(list))
		}
	}
	return nil
}

// stop ends the Watch and returns all that was wrong with it.
func (w *watcher) stop() error {
	w.cancel()
	if !within(w.s.Within, w.done) {
		w.problem(fmt.Errorf("the Watch has not returned %v after the end of its context", w.s.Within))
		return w.trouble()
	}
	const steps = 100
	left := ""
	for range steps {
		if left = w.goroutines(); left == "" {
			return w.trouble()
		}
		t := time.NewTimer(w.s.Within / steps)
		<-t.C
	}
	w.problem(fmt.Errorf("goroutines that Watch has started are left:\n%s", left))
	return w.trouble()
}

// goroutines returns the stacks of what Watch has started and what runs still. Goroutines have the labels of the one that started
// them.
func (w *watcher) goroutines() string {
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return err.Error()
	}
	var left []string
	for stack := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(stack, w.label) {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}

// within waits for done.
func within(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// text writes a list down the way a node understands it: in no order, doubles once, and defaults spelled out.
func text(list []peers.Member) string {
	var parts []string
	for _, m := range list {
		addr, err := peers.CanonicalAddr(m.Addr)
		if err != nil {
			addr = m.Addr
		}
		if m.ID == m.Addr {
			m.ID = addr
		}
		parts = append(parts, fmt.Sprintf("%s at %s, zone %q, weight %d", cmp.Or(m.ID, addr), addr, m.Zone, cmp.Or(m.Weight, 1)))
	}
	slices.Sort(parts)
	return "[" + strings.Join(slices.Compact(parts), "; ") + "]"
}
