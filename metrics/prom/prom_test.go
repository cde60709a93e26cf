package prom_test

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/metrics/prom"
)

// started returns a node that has counted a little, and what its statistics were then: they do not change any more.
func started(t *testing.T) (*nearcache.Node, func() nearcache.Stats) {
	t.Helper()
	n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{ID: "n0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	for _, name := range []string{"product", "\"odd\\\n\xff"} {
		c, err := nearcache.New(n, name, nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) {
			if key == "none" {
				return "", nearcache.ErrNotFound
			}
			return "v", nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b", "a", "none"} {
			_, _ = c.Get(t.Context(), key)
		}
	}
	s := n.Stats()
	return n, func() nearcache.Stats { return s }
}

// A registry has the same as /metrics of the handler, which is thereby read by the client library's own parser.
func TestTheSameAsTheHandler(t *testing.T) {
	n, source := started(t)
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(prom.NewCollector(func() nearcache.Stats {
		s := source()
		s.DiscoveryAge = -1 // as of a node without discovery
		return s
	}))
	w := httptest.NewRecorder()
	n.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if err := testutil.GatherAndCompare(r, w.Body); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(r)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if err != nil {
		t.Error(err)
	}
}

// Several nodes of a process have one registry.
func TestSeveralNodes(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	for _, id := range []string{"n0", "n1"} {
		_, source := started(t)
		prometheus.WrapRegistererWith(prometheus.Labels{"node": id}, r).MustRegister(prom.NewCollector(source))
	}
	if got, err := testutil.GatherAndCount(r, "nearcache_doubt"); got != 2 || err != nil {
		t.Errorf("got %d, %v, want one of each node", got, err)
	}
}

// Statistics are read when they are asked for, not before.
func TestOnlyObserves(t *testing.T) {
	reads := 0
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(prom.NewCollector(func() nearcache.Stats {
		reads++
		return nearcache.Stats{Started: time.Unix(int64(reads), 0)}
	}))
	if reads != 0 {
		t.Errorf("got %d readings at the registration, want none", reads)
	}
	if _, err := r.Gather(); reads != 1 || err != nil {
		t.Errorf("got %d readings, %v, want one", reads, err)
	}
}
