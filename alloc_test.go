package nearcache_test

import (
	"context"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
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

// A get of a value that another member owns allocates the value and what gRPC takes for two messages at either end; with many keys of
// one owner in one call it is little more than the values.
func TestRemoteGetAllocations(t *testing.T) {
	c := testcluster.Loopback(t, 2)
	caches := open(t, c, "ks", nearcache.Config[[]byte]{
		Load: func(context.Context, string) ([]byte, error) { return make([]byte, 1024), nil }, NearTTL: -1, TTL: time.Hour,
	})
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = testcluster.Key(c.Nodes[0], "ks", "n1", i)
	}
	many := func() {
		if got, err := caches[0].GetMany(t.Context(), keys); len(got) != len(keys) || err != nil {
			t.Errorf("%d values, %v", len(got), err)
		}
	}
	one := func() {
		if _, err := caches[0].Get(t.Context(), keys[0]); err != nil {
			t.Error(err)
		}
	}
	many()
	one()
	wantOne, wantMany := 15.0, 245.0 // both ends are in this process
	if raceEnabled {
		wantOne, wantMany = 25, 400 // pools forget
	}
	if got := testing.AllocsPerRun(1000, one); got > wantOne {
		t.Errorf("%v allocations per get, want %v at most", got, wantOne)
	}
	if got := testing.AllocsPerRun(100, many); got > wantMany {
		t.Errorf("%v allocations per get of %d keys, want %v at most", got, len(keys), wantMany)
	}
}
