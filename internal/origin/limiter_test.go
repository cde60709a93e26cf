package origin

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAcquireIsFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1, time.Minute)
		mustAcquire(t, l)
		order := make(chan int, 10)
		for i := range 10 {
			go func() {
				if err := l.Acquire(t.Context(), Normal); err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
				order <- i
				l.Release(Normal)
			}()
			synctest.Wait()
		}
		if got := l.Stats(); got.Waiting != 10 || got.InUse != 1 {
			t.Errorf("waiting %d, in use %d, want 10 and 1", got.Waiting, got.InUse)
		}
		l.Release(Normal)
		for want := range 10 {
			if got := <-order; got != want {
				t.Errorf("got caller %d, want %d", got, want)
			}
		}
	})
}

func TestAcquireSheds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		queue time.Duration
		wait  time.Duration
	}{
		{"default", 0, DefaultQueueTimeout},
		{"set", 3 * time.Second, 3 * time.Second},
		{"off", -1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLimiter(2, tt.queue)
				mustAcquire(t, l)
				mustAcquire(t, l)
				start := time.Now()
				if err := l.Acquire(t.Context(), Normal); !errors.Is(err, ErrShed) {
					t.Errorf("got %v, want ErrShed", err)
				}
				if got := time.Since(start); got != tt.wait {
					t.Errorf("waited %v, want %v", got, tt.wait)
				}
				if got := l.Stats(); got.Shed != 1 || got.Waiting != 0 || got.InUse != 2 {
					t.Errorf("got %+v, want one shed, none waiting, two in use", got)
				}
			})
		})
	}
}

func TestAcquireUnbounded(t *testing.T) {
	l := NewLimiter(-1, -1)
	for range 10_000 {
		mustAcquire(t, l)
	}
	if got := l.Stats().InUse; got != 10_000 {
		t.Errorf("in use %d, want 10000", got)
	}
	for range 10_000 {
		l.Release(Normal)
	}
}

// Case L2-15.
func TestAcquireCancelledAtTheHead(t *testing.T) {
	for _, slots := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			l := NewLimiter(slots, time.Minute)
			for range slots {
				mustAcquire(t, l)
			}
			ctx, cancel := context.WithCancel(t.Context())
			b, c := make(chan error, 1), make(chan error, 1)
			go func() { b <- l.Acquire(ctx, Normal) }()
			synctest.Wait()
			go func() { c <- l.Acquire(t.Context(), Normal) }()
			synctest.Wait()
			cancel()
			if err := <-b; !errors.Is(err, context.Canceled) {
				t.Errorf("%d slots: the cancelled one got %v, want context.Canceled", slots, err)
			}
			start := time.Now()
			l.Release(Normal)
			if err := <-c; err != nil {
				t.Errorf("%d slots: the one behind it got %v, want a slot", slots, err)
			}
			if got := time.Since(start); got > 50*time.Millisecond {
				t.Errorf("%d slots: the one behind it waited %v", slots, got)
			}
		})
	}
}

// Case L2-15.
func TestAcquireEndedContext(t *testing.T) {
	l := NewLimiter(4, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		if err := l.Acquire(ctx, Normal); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want context.Canceled", err)
		}
	}
	called := false
	_, err := Call(ctx, l, Job{}, func(context.Context) (int, error) { called = true; return 1, nil })
	if !errors.Is(err, context.Canceled) || called {
		t.Errorf("got %v, loader called: %v; want context.Canceled and no call", err, called)
	}
}

// Case L2-15.
func TestAcquireRandomCancels(t *testing.T) {
	const slots = 3
	l := NewLimiter(slots, 2*time.Millisecond)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1250 {
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					for range rand.IntN(300) {
						_ = ctx.Err()
					}
					cancel()
				}()
				if l.Acquire(ctx, Normal) == nil {
					for range rand.IntN(300) {
						_ = ctx.Err()
					}
					l.Release(Normal)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if got := l.Stats(); got.InUse != 0 || got.Waiting != 0 {
		t.Errorf("in use %d, waiting %d, want 0 and 0", got.InUse, got.Waiting)
	}
	for range slots {
		mustAcquire(t, l)
	}
	if got := l.Stats(); got.InUse != slots {
		t.Errorf("%d slots could be taken, want %d", got.InUse, slots)
	}
}

func mustAcquire(t *testing.T, l *Limiter) {
	t.Helper()
	if err := l.Acquire(t.Context(), Normal); err != nil {
		t.Fatalf("Acquire: %v", err)
	}
}
