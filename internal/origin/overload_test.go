package origin

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// waiters lets callers queue for the only slot of a limiter, which is taken, and returns the names of those who get it, in order.
type waiters struct {
	l   *Limiter
	mu  sync.Mutex
	got []string
	wg  sync.WaitGroup
}

func (w *waiters) add(t *testing.T, name string, p Priority) {
	t.Helper()
	w.wg.Go(func() {
		if err := w.l.Acquire(t.Context(), p); err != nil {
			return
		}
		w.mu.Lock()
		w.got = append(w.got, name)
		w.mu.Unlock()
		w.l.Release(p)
	})
	synctest.Wait()
}

func TestPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waiters{l: NewLimiter(1, time.Second)}
		mustAcquire(t, w.l)
		w.add(t, "low", Low)
		w.add(t, "normal", Normal)
		w.add(t, "high", High)
		w.add(t, "normal 2", Normal)
		w.l.Release(Normal)
		w.wg.Wait()
		if want := []string{"high", "normal", "normal 2", "low"}; !slices.Equal(w.got, want) {
			t.Errorf("got %q, want %q", w.got, want)
		}
	})
}

// The newest goes first while the oldest has waited for over half of its time; who came before that is shed.
func TestNewestFirstWhenOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waiters{l: NewLimiter(1, 100*time.Millisecond)}
		mustAcquire(t, w.l)
		w.add(t, "old", Normal)
		time.Sleep(60 * time.Millisecond)
		w.add(t, "new", Normal)
		mustWait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		w.l.mu.Lock()
		w.l.inUse++ // so that one slot becomes free, and not the next one by that
		w.l.mu.Unlock()
		w.l.Release(Normal)
		w.l.Release(Normal)
		mustWait(time.Second)
		w.wg.Wait()
		if want := []string{"new", "old"}; !slices.Equal(w.got, want) {
			t.Errorf("got %q, want %q", w.got, want)
		}
	})
}

// Loads of Low leave half of the slots to the others.
func TestLowTakesHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(4, -1)
		for i := range 4 {
			if err := l.Acquire(t.Context(), Low); (err == nil) != (i < 2) {
				t.Errorf("low %d: %v", i, err)
			}
		}
		for i := range 3 {
			if err := l.Acquire(t.Context(), Normal); (err == nil) != (i < 2) {
				t.Errorf("normal %d: %v", i, err)
			}
		}
	})
}

func TestAFullLineLosesItsOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1, time.Minute)
		mustAcquire(t, l)
		first := make(chan error, 1)
		go func() { first <- l.Acquire(t.Context(), Normal) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range maxWaiting {
			wg.Go(func() { _ = l.Acquire(ctx, Normal) })
		}
		var shed *ShedError
		if err := <-first; !errors.As(err, &shed) || shed.RetryAfter <= 0 {
			t.Errorf("got %v, want a ShedError with a hint", err)
		}
		cancel()
		wg.Wait()
	})
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1, 10*time.Millisecond)
		for range 50 {
			_, _ = Call(t.Context(), l, Job{}, func(context.Context) (int, error) { time.Sleep(time.Second); return 0, nil })
		}
		mustAcquire(t, l)
		var shed *ShedError
		if err := l.Acquire(t.Context(), Normal); !errors.As(err, &shed) || shed.RetryAfter < 900*time.Millisecond || shed.RetryAfter > 2*time.Second {
			t.Errorf("got %v, want a hint of about the second that a load takes", err)
		}
	})
}

// A loader that fails for every key is asked 20 times, then 20 times a second, until one load succeeds.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(0, 0)
		fail := io.ErrUnexpectedEOF
		loads := func(d time.Duration, key func(i int) uint64) (called int) {
			for i, start := 0, time.Now(); time.Since(start) < d; i++ {
				_, err := Call(t.Context(), l, Job{Key: key(i)}, func(context.Context) (int, error) { called++; return 0, fail })
				if err != nil && !errors.Is(err, fail) && !errors.Is(err, ErrShed) {
					t.Errorf("got %v", err)
				}
				time.Sleep(time.Millisecond)
			}
			return called
		}
		distinct := func(i int) uint64 { return uint64(i) }
		if n := loads(time.Second, func(i int) uint64 { return uint64(i % 9) }); n != 1000 || l.Stats().Open {
			t.Errorf("nine keys that fail: %d loads, open: %v, want all of 1000", n, l.Stats().Open)
		}
		if n := loads(10*time.Second, distinct); n < 150 || n > 230 || !l.Stats().Open {
			t.Errorf("a dead origin: %d loads in 10 s, open: %v, want 20 and 20 a second", n, l.Stats().Open)
		}
		fail = nil
		if n := loads(time.Second, distinct); n < 950 || l.Stats().Open {
			t.Errorf("it is back: %d loads, open: %v, want nearly all of 1000", n, l.Stats().Open)
		}
	})
}
