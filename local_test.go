package nearcache

import (
	"context"
	"testing"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/near"
)

// R16: what was loaded before the end of the transaction is old for the process that has run it.
func TestAnUpdateIsInTheOwnView(t *testing.T) {
	c, err := New(nil, "ks", Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	var during int64
	if err := c.Update(t.Context(), []string{"k"}, func(context.Context) error { during = c.clock.Exact(); return nil }); err != nil {
		t.Fatal(err)
	}
	now := c.clock.Exact()
	if !c.own.Old("k", during, now) || c.own.Old("k", now, now) || c.own.Old("other", during, now) {
		t.Error("an Update is no invalidation of what was loaded before its end, and of nothing else")
	}
}

// R3: an event that comes while a member is asked overtakes its answer, whoever announced it: one of another member has no number that could be
// compared with the answer's.
func TestAnEventOvertakesAnAnswer(t *testing.T) {
	c, err := New(nil, "ks", Config[string]{NearTTL: time.Minute, Load: func(context.Context, string) (string, error) { return "v", nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	own, other := &c.node.standing.source, new(near.Source)
	for name, tt := range map[string]struct {
		src  *near.Source
		seq  uint64
		kept bool
	}{
		"no event":                      {nil, 0, true},
		"read after the event":          {own, 7, true},
		"read before the event":         {own, 8, false},
		"an event of another member":    {other, 8, false},
		"a low number of another's log": {other, 1, false},
	} {
		m := c.node.members.Load()
		f, _ := c.flights.Join(name, 1, 0)
		a := c.ask(f, m, m.Self, c.clock.Exact())
		if tt.src != nil {
			c.overtaken(name, tt.src, tt.seq)
		}
		rep := &transport.Reply{Status: transport.StatusHit, Seq: 7, Near: time.Minute, TTL: time.Minute, Incarnation: own.Incarnation.Load()}
		c.keep(f, a, rep, near.Item[string]{Value: "v"}, 1)
		if kept := c.near.Get(name, c.clock.Now()) != nil; kept != tt.kept {
			t.Errorf("%s: kept %v, want %v", name, kept, tt.kept)
		}
		f.Finish(result[string]{}, nil)
		f.Leave()
	}
}
