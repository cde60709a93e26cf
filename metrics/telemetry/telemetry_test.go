package telemetry_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/metrics/telemetry"
	"github.com/nearcache/nearcache/peers"
)

func stats() nearcache.Stats {
	s := nearcache.Stats{
		Started: time.Unix(7, 0), Doubt: true,
		Members:   []nearcache.MemberStats{{Member: peers.Member{ID: "n0"}, Lag: 20 * time.Millisecond, Breaker: "closed"}, {Member: peers.Member{ID: "n1"}, Breaker: "open"}},
		Keyspaces: map[string]nearcache.KeyspaceStats{"product": {NearHits: 5, OwnerHits: 6, NearBytes: 77, Top: []nearcache.KeyStats{{Key: "secret"}}}},
		Feeds:     []nearcache.FeedStats{{Name: "orders", Gaps: 2}},
	}
	ks := s.Keyspaces["product"]
	ks.LoadLatency = nearcache.Latency{Count: 3, Sum: 1500 * time.Millisecond}
	s.Keyspaces["product"] = ks
	return s
}

// collect returns every sample as a line: kind, name, unit, attributes, value.
func collect(t *testing.T, r sdk.Reader) (lines []string) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	add := func(m metricdata.Metrics, kind string, points []metricdata.DataPoint[float64]) {
		for _, p := range points {
			var with []string
			for _, kv := range p.Attributes.ToSlice() {
				with = append(with, string(kv.Key)+"="+kv.Value.AsString())
			}
			lines = append(lines, fmt.Sprintf("%s %s %s {%s} %v", kind, m.Name, m.Unit, strings.Join(with, ","), p.Value))
		}
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[float64]:
				if !d.IsMonotonic {
					t.Errorf("%s is a sum that may fall", m.Name)
				}
				add(m, "counter", d.DataPoints)
			case metricdata.Gauge[float64]:
				add(m, "gauge", d.DataPoints)
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return lines
}

func TestObserve(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	defer provider.Shutdown(context.WithoutCancel(t.Context()))
	reads := 0
	registration, err := telemetry.Observe(provider.Meter("test"), func() nearcache.Stats { reads++; return stats() })
	if err != nil || reads != 0 {
		t.Fatalf("got %v, and %d readings before anybody collects, want none", err, reads)
	}
	lines := collect(t, reader)
	for _, want := range []string{
		"gauge nearcache.doubt 1 {} 1",
		"gauge nearcache.start_time s {} 7",
		"gauge nearcache.member_lag s {member=n0} 0.02",
		"gauge nearcache.member_breaker_open 1 {member=n1} 1",
		"counter nearcache.gets 1 {keyspace=product,result=near} 5",
		"counter nearcache.gets 1 {keyspace=product,result=owner} 6",
		"gauge nearcache.bytes By {keyspace=product,tier=near} 77",
		"counter nearcache.load_duration.count 1 {keyspace=product} 3",
		"counter nearcache.load_duration.sum s {keyspace=product} 1.5",
		"counter nearcache.feed_gaps 1 {feed=orders} 2",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q is missing in\n%s", want, strings.Join(lines, "\n"))
		}
	}
	samples := 0
	for _, m := range stats().Metrics() {
		samples++
		if m.Kind == nearcache.MetricLatency {
			samples++
		}
	}
	if len(lines) != samples || reads != 1 {
		t.Errorf("got %d samples of %d readings, want %d of one", len(lines), reads, samples)
	}
	if strings.Contains(strings.Join(lines, "\n"), "secret") {
		t.Error("a key is among the attributes")
	}
	if err := registration.Unregister(); err != nil {
		t.Fatal(err)
	}
	if lines := collect(t, reader); len(lines) != 0 || reads != 1 {
		t.Errorf("got %d samples after the end, want none", len(lines))
	}
}
