package nearcache

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Where entries and near copies live a second, at most 2 % of what is held has expired, at any time.
func TestFewExpiredEntriesAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(nil, "ks", Config[string]{
			TTL: time.Second, Jitter: -1,
			Load: func(_ context.Context, key string) (string, error) { return key, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		worst := 0.0
		for ms := range 4000 {
			for i := range 5 {
				if _, err := c.Get(t.Context(), fmt.Sprint(ms, "-", i)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Millisecond)
			if s := c.Stats(); ms > 2000 {
				live := s.ShardEntries + s.NearEntries - s.HeldExpired
				worst = max(worst, float64(s.HeldExpired)/float64(live))
			}
		}
		t.Logf("at most %.2f %% of the live entries were held expired", 100*worst)
		if worst > 0.02 || worst == 0 {
			t.Errorf("%.2f %% of the live entries were held expired, want at most 2 %%", 100*worst)
		}
	})
}

// Only what expires in numbers shortens the pause between sweeps.
func TestThePauseBetweenSweeps(t *testing.T) {
	for name, tt := range map[string]struct {
		freed, held int64
		want        time.Duration // after many sweeps like this one
	}{
		"idle":            {0, 0, tick},
		"nothing expires": {0, 1_000_000, tick},
		"a few entries":   {3, 3, tick},
		"long lifetimes":  {300, 1_000_000, tick},
		"short lifetimes": {1250, 100_000, minSweep},
	} {
		for _, pause := range []time.Duration{tick, minSweep} {
			if tt.held < 100 && tt.held > 0 {
				pause = tick // nothing shortens it
			}
			for range 10 {
				pause = nextSweep(pause, tt.freed, tt.held)
			}
			if pause != tt.want {
				t.Errorf("%s: got %v, want %v", name, pause, tt.want)
			}
		}
	}
}
