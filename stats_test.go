package nearcache_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// kinds lists the events of a node, the oldest first, as "kind member".
func kinds(n *nearcache.Node) (list []string) {
	for _, e := range n.Stats().Events {
		list = append([]string{strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Member))}, list...)
	}
	return list
}

// wantEvents checks that the events occurred in this order, others between them.
func wantEvents(t *testing.T, n *nearcache.Node, want ...string) {
	t.Helper()
	got := kinds(n)
	left := want
	for _, k := range got {
		if len(left) > 0 && k == left[0] {
			left = left[1:]
		}
	}
	if len(left) > 0 {
		t.Errorf("%s has the events %q, want %q among them: %q is missing", n.ID(), got, want, left[0])
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		wantEvents(t, c.Nodes[0], "start", "join n1, n2", "ring", "doubt", "sure")

		// A member that falls silent: its breaker opens, and closes when it is back.
		caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: -1, Load: func(context.Context, string) (string, error) { return "v", nil }})
		c.Network.Isolate(testcluster.Host(1))
		_, _ = caches[0].Get(t.Context(), testcluster.Key(c.Nodes[0], "ks", "n1", 0))
		time.Sleep(2 * time.Second)
		if s := seen(t, c.Nodes[0], "n1"); s.Opened != 1 {
			t.Errorf("the breaker opened %d times, want once", s.Opened)
		}
		c.Network.HealAll()
		time.Sleep(10 * time.Second)
		wantEvents(t, c.Nodes[0], "breaker open n1", "breaker closed n1")
		wantEvents(t, c.Nodes[1], "sure", "doubt", "sure") // it heard nobody

		// One that stops and comes back, first as a restart, then as another list.
		if err := c.Nodes[2].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Nodes[2] = c.Start(2)
		time.Sleep(10 * time.Second)
		wantEvents(t, c.Nodes[0], "breaker closed n1", "disconnected n2", "connected n2")
		wantEvents(t, c.Nodes[0], "disconnected n2", "restart n2")
		if s := seen(t, c.Nodes[0], "n2"); s.Restarts != 1 || s.Gaps != 0 || s.Lag < 0 || s.Lag > time.Second {
			t.Errorf("got %+v, want one restart and a lag", s)
		}
		c.List.Set(c.Members()[:2]...)
		time.Sleep(10 * time.Second)
		wantEvents(t, c.Nodes[0], "restart n2", "leave n2", "ring")
		if got := kinds(c.Nodes[0]); slices.Contains(got, "connected n1") {
			t.Errorf("got %q: a first connection is no event of its own", got)
		}
	})
}

// Only so many events are remembered: the last ones.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		for range 100 {
			c.List.Set(c.Members()[:1]...)
			synctest.Wait()
			c.List.Set(c.Members()...)
			synctest.Wait()
		}
		if got := c.Nodes[0].Stats().Events; len(got) != 128 || time.Since(got[0].At) > time.Second {
			t.Errorf("got %d events, the last ones %+v, want 128, the last ones of now", len(got), got[:min(len(got), 4)])
		}
		wantEvents(t, c.Nodes[0], "join n1", "ring")
	})
}

// What is not stored or not served is counted by its reason.
func TestReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		gate := make(chan struct{})
		caches := open(t, c, "ks", nearcache.Config[string]{
			NearTTL: time.Minute, MaxValueBytes: 100,
			TagsOf: func(string, string) []string { return []string{"tag"} },
			Load: func(_ context.Context, key string) (string, error) {
				switch {
				case strings.HasSuffix(key, "slow"):
					<-gate
				case strings.HasSuffix(key, "large"):
					return strings.Repeat("v", 200), nil
				}
				return "v", nil
			},
		})
		get := func(key string) {
			t.Helper()
			if _, err := caches[0].Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		theirs := func(i int, suffix string) string { return suffixed(c.Nodes[0], "n1", i, suffix) }

		// A load that an invalidation overtakes: the owner refuses its fill.
		slow := theirs(0, "slow")
		done := make(chan struct{})
		go func() { defer close(done); get(slow) }()
		time.Sleep(time.Millisecond)
		if err := caches[1].Invalidate(t.Context(), slow); err != nil {
			t.Fatal(err)
		}
		close(gate)
		<-done
		// A value that nobody keeps.
		get(theirs(1, "large"))
		// A near copy whose tag is invalidated.
		tagged := theirs(2, "")
		get(tagged)
		if err := caches[1].InvalidateTag(t.Context(), "tag"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		get(tagged)
		// A near copy whose owner is not heard.
		c.Network.Isolate(testcluster.Host(1))
		time.Sleep(3 * time.Second)
		get(tagged)
		c.Network.HealAll()

		s, o := caches[0].Stats(), caches[1].Stats()
		for _, tt := range []struct {
			name string
			got  uint64
		}{
			{"Rejected", s.Rejected},
			{"RefusedLease of the owner", o.RefusedLease},
			{"TooLarge", s.TooLarge},
			{"NotKept", s.NotKept},
			{"NearTagged", s.NearTagged},
			{"NearUnsure", s.NearUnsure},
		} {
			if tt.got != 1 {
				t.Errorf("%s: got %d, want 1", tt.name, tt.got)
			}
		}
		if o.Rejected != 0 || s.RefusedLease != 0 || s.NotInstalled != 0 {
			t.Errorf("got %+v and %+v, want each counted at one place", s, o)
		}
	})
}

// suffixed returns a key with that end which the member owns.
func suffixed(n *nearcache.Node, owner string, i int, suffix string) string {
	for ; ; i += 100 {
		if key := fmt.Sprint("key-", i, "-", suffix); n.Owner("ks", key).ID == owner {
			return key
		}
	}
}

func TestLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		cfg := nearcache.Config[string]{NearTTL: -1, Load: func(context.Context, string) (string, error) {
			time.Sleep(10 * time.Millisecond)
			return "v", nil
		}}
		caches := open(t, c, "ks", cfg)
		cfg.LoadMany, cfg.Load = func(_ context.Context, keys []string) (map[string]string, error) {
			time.Sleep(40 * time.Millisecond)
			return nil, nil
		}, nil
		many := open(t, c, "many", cfg)
		for i := range 2 {
			for range 3 {
				if _, err := caches[0].Get(t.Context(), testcluster.Key(c.Nodes[0], "ks", c.Nodes[i].ID(), 0)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := many[0].GetMany(t.Context(), []string{"a", "b", "c"}); err != nil {
			t.Fatal(err)
		}
		s := caches[0].Stats()
		if s.OwnerLatency.Count != s.OwnerHits || s.OriginLatency.Count != s.OriginGets || s.LoadLatency.Count != s.Loads || s.OwnerHits != 4 {
			t.Errorf("got %d, %d and %d durations of %d hits, %d gets and %d loads", s.OwnerLatency.Count, s.OriginLatency.Count,
				s.LoadLatency.Count, s.OwnerHits, s.OriginGets, s.Loads)
		}
		if s.LoadLatency.Sum != 20*time.Millisecond || s.OriginLatency.Sum < s.LoadLatency.Sum || s.OwnerLatency.Quantile(1) >= 10*time.Millisecond {
			t.Errorf("got loads %v, gets that waited for them %v, others %v; want 20 ms, not less, and much less", s.LoadLatency.Sum, s.OriginLatency.Sum, s.OwnerLatency.Sum)
		}
		if m := many[0].Stats(); m.LoadLatency.Mean() < 40*time.Millisecond || m.Loads != 3 {
			t.Errorf("LoadMany: got %+v, want its time once a call", m.LoadLatency)
		}
	})
}

// The history has what was counted, second by second.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 1)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
		time.Sleep(3 * time.Second)
		for i := range 40 {
			if _, err := caches[0].Get(t.Context(), fmt.Sprint("k", i%10)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second)
		list := c.Nodes[0].History()["ks"]
		var gets, loads, busy uint64
		for i, s := range list {
			gets += s.Gets()
			loads += s.Loads
			if s.Gets() > 0 {
				busy++
			}
			if s.Took < time.Second || s.Took > 1200*time.Millisecond || i > 0 && !s.At.After(list[i-1].At) {
				t.Errorf("sample %d: got %+v, want about a second, after the one before", i, s)
			}
		}
		if gets != 40 || loads != 10 || busy != 1 || len(list) < 4 {
			t.Errorf("got %d gets and %d loads in %d of %d seconds, want 40 and 10 in one", gets, loads, busy, len(list))
		}
	})
}

func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 4)
		for _, m := range c.Nodes[0].Stats().Members {
			if m.Ideal != 0.25 || m.Share < 0.2 || m.Share > 0.3 || m.Share == m.Ideal || !m.SameRing {
				t.Errorf("%s: got %v of an ideal %v, same ring %v; want about a quarter", m.Member.ID, m.Share, m.Ideal, m.SameRing)
			}
		}
	})
}
