// Package telemetry gives the statistics of a node to OpenTelemetry:
//
//	registration, err := telemetry.Observe(meter, node.Stats)
//
// All instruments are observable: statistics are read when a reader collects and at no other time, and the path of a call knows nothing of
// it. Names are those of docs/statistics.md with a dot behind nearcache, and without the unit and "total": nearcache_gets_total is
// nearcache.gets, nearcache_member_lag_seconds is nearcache.member_lag with the unit s. Labels are attributes; none is a key.
//
// There is no observable histogram, so that a duration is two counters: nearcache.load_duration.count, and nearcache.load_duration.sum in
// seconds.
package telemetry

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/nearcache/nearcache"
)

// Observe makes the instruments and observes what source returns, as Node.Stats, until the registration is unregistered. A node that is
// closed goes on to tell its last numbers.
func Observe(meter metric.Meter, source func() nearcache.Stats) (metric.Registration, error) {
	one := nearcache.Stats{
		Members: make([]nearcache.MemberStats, 1), Feeds: make([]nearcache.FeedStats, 1),
		Keyspaces: map[string]nearcache.KeyspaceStats{"": {}},
	}
	in := make(map[string]metric.Float64Observable)
	var all []metric.Observable
	var problems []error
	add := func(key, name, unit, help string, gauge bool) {
		var i metric.Float64Observable
		var err error
		if gauge {
			i, err = meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
		} else {
			i, err = meter.Float64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
		}
		problems = append(problems, err)
		in[key], all = i, append(all, i)
	}
	for _, m := range one.Metrics() { // every name that there is
		name, unit := nameOf(m.Name)
		if _, ok := in[m.Name]; ok {
			continue
		}
		if m.Kind == nearcache.MetricLatency {
			add(m.Name, name+".count", "1", m.Help, false)
			add(m.Name+" sum", name+".sum", unit, m.Help, false)
			continue
		}
		add(m.Name, name, unit, m.Help, m.Kind == nearcache.MetricGauge)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, m := range source().Metrics() {
			with := metric.WithAttributeSet(attributes(m.Labels))
			if m.Kind == nearcache.MetricLatency {
				o.ObserveFloat64(in[m.Name], float64(m.Latency.Count), with)
				o.ObserveFloat64(in[m.Name+" sum"], m.Latency.Sum.Seconds(), with)
				continue
			}
			o.ObserveFloat64(in[m.Name], m.Value, with)
		}
		return nil
	}, all...)
}

// nameOf turns a name of Prometheus into one of OpenTelemetry, and its unit.
func nameOf(prom string) (name, unit string) {
	name, unit = "nearcache."+strings.TrimSuffix(strings.TrimPrefix(prom, "nearcache_"), "_total"), "1"
	switch {
	case strings.HasSuffix(name, "_seconds"):
		name, unit = strings.TrimSuffix(name, "_seconds"), "s"
	case strings.HasSuffix(name, "bytes"):
		unit = "By"
	}
	return name, unit
}

func attributes(labels []nearcache.MetricLabel) attribute.Set {
	kvs := make([]attribute.KeyValue, len(labels))
	for i, l := range labels {
		kvs[i] = attribute.String(l.Name, strings.ToValidUTF8(l.Value, "\ufffd"))
	}
	return attribute.NewSet(kvs...)
}
