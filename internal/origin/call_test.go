package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
)

func TestCallReturnsTheLoadersResult(t *testing.T) {
	l := NewLimiter(0, 0)
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "v")
	got, err := Call(ctx, l, Job{}, func(ctx context.Context) (string, error) {
		return ctx.Value(key{}).(string), nil
	})
	if got != "v" || err != nil {
		t.Errorf("got %q, %v, want the context's value", got, err)
	}
	if _, err := Call(ctx, l, Job{}, func(context.Context) (int, error) { return 1, io.ErrClosedPipe }); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v, want the loader's error", err)
	}
	if got := l.Stats(); got != (Stats{Loads: 2}) {
		t.Errorf("got %+v, want two loads and nothing left", got)
	}
}

// Case singleflight-1.
// Case singleflight-2.
func TestCallSurvivesTheLoader(t *testing.T) {
	for _, tt := range []struct {
		name  string
		load  func(context.Context) (int, error)
		value any
	}{
		{"panic", func(context.Context) (int, error) { panic("boom") }, "boom"},
		{"error", func(context.Context) (int, error) { panic(io.EOF) }, io.EOF},
		{"goexit", func(context.Context) (int, error) { runtime.Goexit(); return 0, nil }, ErrGoexit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewLimiter(1, -1)
			_, err := Call(t.Context(), l, Job{}, tt.load)
			var p *PanicError
			if !errors.As(err, &p) || p.Value != tt.value {
				t.Fatalf("got %v, want a PanicError with %v", err, tt.value)
			}
			if !bytes.Contains(p.Stack, []byte("call_test.go")) {
				t.Errorf("the stack does not show the loader:\n%s", p.Stack)
			}
			if want, ok := tt.value.(error); ok && !errors.Is(err, want) {
				t.Errorf("errors.Is(%v, %v) is false", err, want)
			}
			if v, err := Call(t.Context(), l, Job{}, func(context.Context) (int, error) { return 7, nil }); v != 7 || err != nil {
				t.Errorf("the next load got %d, %v, want 7", v, err)
			}
			if got := l.Stats(); got != (Stats{Loads: 2, Panics: 1}) {
				t.Errorf("got %+v, want one panic and nothing left", got)
			}
		})
	}
}

func TestCallPanicNil(t *testing.T) {
	_, err := Call(t.Context(), NewLimiter(0, 0), Job{}, func(context.Context) (int, error) { panic(nil) })
	if _, ok := errors.AsType[*runtime.PanicNilError](err); !ok {
		t.Errorf("got %v, want a *runtime.PanicNilError", err)
	}
}

func TestCallBoundsTheStack(t *testing.T) {
	var deep func(n int) int
	deep = func(n int) int {
		if n == 0 {
			panic(fmt.Sprintf("deep%d", n))
		}
		return deep(n-1) + 1
	}
	_, err := Call(t.Context(), NewLimiter(0, 0), Job{}, func(context.Context) (int, error) { return deep(10_000), nil })
	var p *PanicError
	if !errors.As(err, &p) || len(p.Stack) > maxStackBytes {
		t.Errorf("got %v with a stack of %d bytes, want at most %d", err, len(p.Stack), maxStackBytes)
	}
}

func TestCallTimeout(t *testing.T) {
	obeys := func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 0, fmt.Errorf("query: %w", ctx.Err())
	}
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		load    func(context.Context) (int, error)
		want    error
		after   time.Duration
	}{
		{"default", 0, obeys, ErrTimeout, DefaultLoadTimeout},
		{"set", time.Second, obeys, ErrTimeout, time.Second},
		{"any error", time.Second, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, io.EOF }, ErrTimeout, time.Second},
		{"ignored", time.Second, func(context.Context) (int, error) { time.Sleep(time.Hour); return 1, nil }, ErrTimeout, time.Second},
		{"off", -1, func(context.Context) (int, error) { time.Sleep(time.Hour); return 0, nil }, nil, time.Hour},
		{"its own", time.Second, func(ctx context.Context) (int, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			return obeys(ctx)
		}, context.DeadlineExceeded, time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLimiter(0, 0)
				start := time.Now()
				_, err := Call(t.Context(), l, Job{Timeout: tt.timeout}, tt.load)
				if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				if got := time.Since(start); got != tt.after {
					t.Errorf("returned after %v, want %v", got, tt.after)
				}
				time.Sleep(time.Hour) // one that ignores its context ends
			})
		})
	}
}

// Case singleflight-5.
func TestCallAbandonsADeafLoader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1, 100*time.Millisecond)
		deaf := func(context.Context) (int, error) { time.Sleep(time.Minute); panic("late") }
		if _, err := Call(t.Context(), l, Job{Timeout: time.Second}, deaf); !errors.Is(err, ErrTimeout) {
			t.Fatalf("got %v, want ErrTimeout", err)
		}
		want := Stats{InUse: 1, Running: 1, Abandoned: 1, Loads: 1, Timeouts: 1}
		if got := l.Stats(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if _, err := Call(t.Context(), l, Job{Timeout: time.Second}, deaf); !errors.Is(err, ErrShed) {
			t.Errorf("got %v while the loader holds the slot, want ErrShed", err)
		}
		time.Sleep(time.Minute)
		want = Stats{Loads: 1, Timeouts: 1, Shed: 1, Panics: 1}
		if got := l.Stats(); got != want {
			t.Errorf("got %+v in the end, want %+v", got, want)
		}
	})
}

// Case singleflight-5.
func TestCallCancelled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		load  func(context.Context) (int, error)
		want  error
		after time.Duration // the cancellation
	}{
		{"obeys", func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, io.EOF }, context.Canceled, 0},
		{"almost finished", func(ctx context.Context) (int, error) {
			<-ctx.Done()
			time.Sleep(Linger / 2)
			return 1, nil
		}, nil, Linger / 2},
		{"deaf", func(ctx context.Context) (int, error) { <-ctx.Done(); time.Sleep(time.Hour); return 1, nil }, context.Canceled, Linger},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLimiter(0, 0)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				start := time.Now()
				_, err := Call(ctx, l, Job{}, tt.load)
				if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				if got := time.Since(start) - time.Second; got != tt.after {
					t.Errorf("returned %v after the cancellation, want %v", got, tt.after)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := l.Stats(); got.InUse != 0 || got.Running != 0 || got.Abandoned != 0 {
					t.Errorf("got %+v, want nothing left", got)
				}
			})
		})
	}
}

func TestCallWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(2, time.Minute)
		var running, most atomic.Int64
		for range 20 {
			go func() {
				_, err := Call(t.Context(), l, Job{}, func(context.Context) (int, error) {
					most.Store(max(most.Load(), running.Add(1)))
					time.Sleep(time.Second)
					running.Add(-1)
					return 0, nil
				})
				if err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(time.Minute)
		if got := l.Stats(); got.Loads != 20 || most.Load() != 2 || got.InUse != 0 {
			t.Errorf("got %+v, at most %d at once, want 20 loads, 2 at once, none left", got, most.Load())
		}
	})
}

// Case singleflight-7.
func TestCallNestedLoadsDoNotStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(2, 100*time.Millisecond)
		var chain func(ctx context.Context, depth int) (int, error)
		chain = func(ctx context.Context, depth int) (int, error) {
			return Call(ctx, l, Job{}, func(ctx context.Context) (int, error) {
				time.Sleep(time.Millisecond)
				if depth == 0 {
					return 1, nil
				}
				v, err := chain(ctx, depth-1)
				return v + 1, err
			})
		}
		for range 2 {
			if got, err := chain(t.Context(), 20); got != 21 || err != nil {
				t.Errorf("got %d, %v, want 21", got, err)
			}
		}
		if got := l.Stats(); got != (Stats{Loads: 42}) {
			t.Errorf("got %+v, want nothing left", got)
		}
	})
}

// Case singleflight-7. All slots are taken by loaders that start several loads at once: these take turns in the places of their loaders.
func TestCallNestedLoadsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(2, 100*time.Millisecond)
		var running, most atomic.Int64
		inner := func(context.Context) (int, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(10 * time.Millisecond)
			return 0, nil
		}
		outer := func(ctx context.Context) (int, error) {
			time.Sleep(time.Millisecond) // until both have a slot
			var g errgroup.Group
			for range 5 {
				g.Go(func() error { _, err := Call(ctx, l, Job{}, inner); return err })
			}
			return 0, g.Wait()
		}
		start := time.Now()
		var g errgroup.Group
		for range 2 {
			g.Go(func() error { _, err := Call(t.Context(), l, Job{}, outer); return err })
		}
		if err := g.Wait(); err != nil {
			t.Errorf("got %v, want none shed", err)
		}
		if took := time.Since(start); took != 51*time.Millisecond || most.Load() != 2 {
			t.Errorf("took %v, at most %d at once, want 51ms and 2", took, most.Load())
		}
		if got := l.Stats(); got != (Stats{Loads: 12}) {
			t.Errorf("got %+v, want nothing left", got)
		}
	})
}

func TestCallLendsItsSlotOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(1, 100*time.Millisecond)
		sleep := func(ctx context.Context) (int, error) { time.Sleep(10 * time.Second); return 0, ctx.Err() }
		borrower, second := make(chan error, 1), make(chan error, 1)
		_, err := Call(t.Context(), l, Job{Timeout: time.Second}, func(ctx context.Context) (int, error) {
			ctx = context.WithoutCancel(ctx)
			go func() { _, err := Call(ctx, l, Job{Timeout: -1}, sleep); borrower <- err }()
			synctest.Wait()
			go func() { _, err := Call(ctx, l, Job{Timeout: -1}, sleep); second <- err }()
			time.Sleep(time.Millisecond)
			return 0, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-second; !errors.Is(err, ErrShed) {
			t.Errorf("a second nested load beside the first: got %v, want ErrShed", err)
		}
		if err := l.Acquire(t.Context(), Normal); !errors.Is(err, ErrShed) {
			t.Errorf("got %v while a borrower still runs in the slot, want ErrShed", err)
		}
		if err := <-borrower; err != nil {
			t.Errorf("the nested load: %v", err)
		}
		mustAcquire(t, l)
	})
}

func TestCallOverHasNothingToLend(t *testing.T) {
	l := NewLimiter(1, -1)
	kept, err := Call(t.Context(), l, Job{}, func(ctx context.Context) (context.Context, error) {
		return context.WithoutCancel(ctx), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, l)
	if _, err := Call(kept, l, Job{}, func(context.Context) (int, error) { return 0, nil }); !errors.Is(err, ErrShed) {
		t.Errorf("got %v, want ErrShed: the load of that context is over", err)
	}
}
