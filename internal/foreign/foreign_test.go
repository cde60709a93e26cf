package foreign

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestCall(t *testing.T) {
	for name, tt := range map[string]struct {
		f     func() (int, error)
		want  func(int, error) bool
		after time.Duration
		late  int
	}{
		"value":  {func() (int, error) { return 1, nil }, func(v int, err error) bool { return v == 1 && err == nil }, 0, 0},
		"error":  {func() (int, error) { return 0, io.EOF }, func(_ int, err error) bool { return errors.Is(err, io.EOF) }, 0, 0},
		"panic":  {func() (int, error) { panic("boom") }, isPanic("boom"), 0, 0},
		"nil":    {func() (int, error) { panic(nil) }, func(_ int, err error) bool { _, ok := errors.AsType[*PanicError](err); return ok }, 0, 0},
		"goexit": {func() (int, error) { runtime.Goexit(); return 0, nil }, isPanic(ErrGoexit), 0, 0},
		"hang": {func() (int, error) { time.Sleep(time.Hour); return 7, nil }, func(_ int, err error) bool {
			return errors.Is(err, context.DeadlineExceeded)
		}, time.Second, 7},
		"late error": {func() (int, error) { time.Sleep(time.Hour); return 7, io.EOF }, func(_ int, err error) bool {
			return errors.Is(err, context.DeadlineExceeded)
		}, time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				late := 0
				began := time.Now()
				if v, err := Call(ctx, "f", tt.f, func(v int) { late = v }); !tt.want(v, err) {
					t.Errorf("got %v, %v", v, err)
				}
				if got := time.Since(began); got != tt.after {
					t.Errorf("returned after %v, want %v", got, tt.after)
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if late != tt.late {
					t.Errorf("late: got %d, want %d", late, tt.late)
				}
			})
		})
	}
}

func isPanic(value any) func(int, error) bool {
	return func(_ int, err error) bool {
		p, ok := errors.AsType[*PanicError](err)
		return ok && p.Value == value && len(p.Stack) > 0
	}
}
