package clock

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		defer c.Close()
		if got := c.Now(); got <= 0 {
			t.Errorf("first Now() = %d, want > 0", got)
		}
		if got := c.Exact(); got <= 0 {
			t.Errorf("first Exact() = %d, want > 0", got)
		}
		for i := range 1000 {
			time.Sleep(time.Duration(i) * 37 * time.Microsecond)
			now, exact := c.Now(), c.Exact()
			if now > exact || exact-now > int64(Tick) {
				t.Fatalf("after %d sleeps: Now() = %d, Exact() = %d: want at most a tick behind, never ahead", i, now, exact)
			}
		}
	})
}

// The first reading after any pause is right: a parked clock does not show the time at which it was parked.
func TestFirstReadingAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		defer c.Close()
		for _, pause := range []time.Duration{
			time.Millisecond, idleTicks * Tick, idleTicks*Tick + time.Nanosecond, idleTicks*Tick - time.Nanosecond,
			time.Second, 2 * time.Second, time.Hour, 1000 * time.Hour,
		} {
			before := c.Now()
			time.Sleep(pause)
			if lag := c.Exact() - c.Now(); lag < 0 || lag > int64(Tick) {
				t.Errorf("after a pause of %v: lag %v, want 0 to %v", pause, time.Duration(lag), Tick)
			}
			if c.Now() < before {
				t.Errorf("after a pause of %v: %d, before it %d", pause, c.Now(), before)
			}
		}
	})
}

// The first reading after a tick is exact, however late the ticker is: a process that was stopped does not go on where it was.
func TestFirstReadingAfterATick(t *testing.T) {
	c := &Clock{base: time.Now().Add(-time.Minute)} // its ticker does not run
	c.now.Store(spent)
	if got := c.Now(); got < int64(time.Minute) {
		t.Errorf("got %v, want a minute", time.Duration(got))
	}
}

func TestParksWhenNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		defer c.Close()
		c.Now()
		synctest.Wait()
		if c.now.Load() == parked {
			t.Fatal("parked right after a reading")
		}
		for range 100 { // read at long intervals: it keeps ticking
			time.Sleep(idleTicks * Tick / 2)
			c.Now()
			if c.now.Load() == parked {
				t.Fatal("parked while it was being read")
			}
		}
		time.Sleep(2*idleTicks*Tick + time.Millisecond)
		synctest.Wait()
		if c.now.Load() != parked {
			t.Fatal("still ticking after two seconds without a reading")
		}
	})
}

// Case L1-10: the clock counts elapsed time from a reading with a monotonic part, which steps of the wall clock leave
// alone (package time's guarantee for Sub and Since).
func TestBaseIsMonotonic(t *testing.T) {
	c := New()
	defer c.Close()
	if c.base == c.base.Round(0) {
		t.Error("the base has no monotonic reading")
	}
}

func TestClose(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := New()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			last := int64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				n := c.Now()
				if n < last-int64(Tick) {
					t.Errorf("Now() went back from %d to %d", last, n)
					return
				}
				last = n
				runtime.Gosched()
			}
		})
	}
	for range 3 {
		wg.Go(c.Close)
	}
	c.Close()
	c.Close()
	if a, b := c.Now(), c.Now(); a <= 0 || b < a {
		t.Errorf("readings after Close: %d, %d", a, b)
	}
	close(stop)
	wg.Wait()
}

func TestNowDoesNotAllocate(t *testing.T) {
	c := New()
	defer c.Close()
	if n := testing.AllocsPerRun(1000, func() { c.Now() }); n != 0 {
		t.Errorf("allocations per Now: %v, want 0", n)
	}
}

func BenchmarkNow(b *testing.B) {
	c := New()
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}

func BenchmarkExact(b *testing.B) {
	c := New()
	defer c.Close()
	for b.Loop() {
		c.Exact()
	}
}
