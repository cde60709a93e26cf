package nearcache_test

import (
	"context"
	"testing"

	"github.com/nearcache/nearcache"
)

// A near hit allocates nothing.
func TestNearHitAllocations(t *testing.T) {
	c, err := nearcache.New(nil, "k", nearcache.Config[[]byte]{
		Load: func(context.Context, string) ([]byte, error) { return []byte("value"), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	get := func() {
		if _, err := c.Get(t.Context(), "key"); err != nil {
			t.Error(err)
		}
	}
	get()
	if got := testing.AllocsPerRun(1000, get); got != 0 {
		t.Errorf("%v allocations per near hit, want 0", got)
	}
	if s := c.Stats(); s.NearHits < 1000 {
		t.Errorf("%d of %d gets were near hits, want all but a few", s.NearHits, s.Gets)
	}
}
