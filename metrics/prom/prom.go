// Package prom gives the statistics of a node to the Prometheus client library, for programs that have a registry of their own:
//
//	registry.MustRegister(prom.NewCollector(node.Stats))
//
// A program without one needs nothing of it: Node.Handler serves /metrics. Names, labels and values are the same, those of
// docs/statistics.md. Statistics are read when the registry is gathered and at no other time: the path of a call knows nothing of it.
// No label is a key.
//
// alerts.yml has rules for Prometheus, and dashboard.json a dashboard for Grafana.
package prom

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearcache/nearcache"
)

// Collector is a prometheus.Collector. It is safe for concurrent use.
type Collector struct {
	source func() nearcache.Stats
	descs  map[string]*prometheus.Desc
}

// NewCollector returns a collector of what source returns, as Node.Stats. To register several nodes of one process tell them
// apart: prometheus.WrapRegistererWith(prometheus.Labels{"node": node.ID()}, registry).
func NewCollector(source func() nearcache.Stats) *Collector {
	c := &Collector{source: source, descs: make(map[string]*prometheus.Desc)}
	one := nearcache.Stats{
		Members: make([]nearcache.MemberStats, 1), Feeds: make([]nearcache.FeedStats, 1),
		Keyspaces: map[string]nearcache.KeyspaceStats{"": {}},
	}
	for _, m := range one.Metrics() { // every name that there is
		var labels []string
		for _, l := range m.Labels {
			labels = append(labels, l.Name)
		}
		c.descs[m.Name] = prometheus.NewDesc(m.Name, m.Help, labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.source().Metrics() {
		desc := c.descs[m.Name]
		values := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			values[i] = strings.ToValidUTF8(l.Value, "\ufffd")
		}
		metric, err := newMetric(desc, &m, values)
		if err != nil {
			metric = prometheus.NewInvalidMetric(desc, err)
		}
		to <- metric
	}
}

func newMetric(desc *prometheus.Desc, m *nearcache.Metric, values []string) (prometheus.Metric, error) {
	switch m.Kind {
	case nearcache.MetricCounter:
		return prometheus.NewConstMetric(desc, prometheus.CounterValue, m.Value, values...)
	case nearcache.MetricLatency:
		buckets := make(map[float64]uint64)
		sum := uint64(0)
		for i, n := range m.Latency.Buckets[:nearcache.LatencyBuckets-1] {
			sum += n
			buckets[nearcache.LatencyBound(i).Seconds()] = sum
		}
		return prometheus.NewConstHistogram(desc, m.Latency.Count, m.Latency.Sum.Seconds(), buckets, values...)
	default:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, m.Value, values...)
	}
}
