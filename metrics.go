package nearcache

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MetricKind says how a Metric changes.
type MetricKind int

// The kinds of metrics.
const (
	MetricCounter MetricKind = iota // only grows, while the node lives
	MetricGauge                     // as it is now
	MetricLatency                   // a Latency, whose counters only grow
)

// Metric is one number of the statistics, or one histogram, with a name and labels as Prometheus wants them. Labels come from bounded sets
// only (keyspaces, members, feeds, results, reasons, tiers), never from keys, and are ordered by their names.
type Metric struct {
	Name    string // with its unit: nearcache_member_lag_seconds
	Help    string
	Kind    MetricKind
	Labels  []MetricLabel
	Value   float64  // in seconds where it is a duration; 0 of a MetricLatency
	Latency *Latency // of a MetricLatency
}

// MetricLabel is a name and a value.
type MetricLabel struct{ Name, Value string }

// Metrics returns all numbers of the statistics. Those of one name follow each other and have the same help, kind and names of labels: what
// /metrics of Handler serves, and for collectors of any kind. docs/statistics.md lists them.
func (s Stats) Metrics() []Metric {
	names := slices.Sorted(maps.Keys(s.Keyspaces))
	keyspaces := make([]KeyspaceStats, len(names))
	for i, name := range names {
		keyspaces[i] = s.Keyspaces[name]
	}
	members, feeds := make([]string, len(s.Members)), make([]string, len(s.Feeds))
	for i := range s.Members {
		members[i] = s.Members[i].Member.ID
	}
	for i := range s.Feeds {
		feeds[i] = s.Feeds[i].Name
	}
	ms := appendFamilies(nil, nodeFamilies(), "", []string{""}, []Stats{s})
	ms = appendFamilies(ms, memberFamilies(), "member", members, s.Members)
	ms = appendFamilies(ms, keyspaceFamilies(), "keyspace", names, keyspaces)
	return appendFamilies(ms, feedFamilies(), "feed", feeds, s.Feeds)
}

// family is the metrics of one name.
type family struct {
	name string
	kind MetricKind
	// fields are the fields of the statistics that it shows, separated by spaces. Where label is not empty each is "value=Field".
	label, fields string
	help          string
}

func nodeFamilies() []family {
	return []family{
		{"nearcache_start_time_seconds", MetricGauge, "", "Started", "When the node was started, in seconds since 1970."},
		{"nearcache_doubt", MetricGauge, "", "Doubt", "1: what this node owns lives a Bound at most."},
		{"nearcache_view_mismatches_total", MetricCounter, "", "ViewMismatches", "Answers of members that go by another ring."},
		{"nearcache_discovery_age_seconds", MetricGauge, "", "DiscoveryAge", "Since discovery last answered; negative: it has not yet."},
		{"nearcache_announced_total", MetricCounter, "", "Announced", "Invalidations that this node, as an owner, told those who may hold copies."},
		{"nearcache_lost_places_total", MetricCounter, "", "LostPlaces", "Times that a member was so far behind with these that it had to drop all copies from here."},
	}
}

func memberFamilies() []family {
	return []family{
		{"nearcache_member_connected", MetricGauge, "", "Connected", "1: connected with the member."},
		{"nearcache_member_leaving", MetricGauge, "", "Leaving", "1: the member has said that it stops."},
		{"nearcache_member_same_ring", MetricGauge, "", "SameRing", "1: the member goes by the same ring, as far as was heard."},
		{"nearcache_member_breaker_open", MetricGauge, "", "Breaker", "1: the breaker of the member is open or half-open, so that nothing is asked of it."},
		{"nearcache_member_breaker_opened_total", MetricCounter, "", "Opened", "Times that the breaker of the member opened."},
		{"nearcache_member_requests_total", MetricCounter, "", "Requests", "Requests sent to the member."},
		{"nearcache_member_errors_total", MetricCounter, "", "Errors", "Requests that the member did not answer."},
		{"nearcache_member_last_contact_seconds", MetricGauge, "", "LastContact", "Since the member was last heard of; negative: never."},
		{"nearcache_member_share_ratio", MetricGauge, "", "Share", "Part of the key space that the member owns."},
		{"nearcache_member_ideal_share_ratio", MetricGauge, "", "Ideal", "Part of the key space that the member would own if shares were as the weights."},
		{"nearcache_member_lag_seconds", MetricGauge, "", "Lag", "Within this what the member drops is dropped here; negative: not known yet."},
		{"nearcache_member_copies_dropped_total", MetricCounter, "reason", "gap=Gaps reset=Resets restart=Restarts", "Times that all near copies from the member were dropped: an invalidation was missed, it said so, it was started anew."},
	}
}

func keyspaceFamilies() []family {
	return slices.Concat(trafficFamilies(), reasonFamilies(), auditFamilies(), []family{
		{"nearcache_entries", MetricGauge, "tier", "near=NearEntries shard=ShardEntries", "Near copies, and entries owned."},
		{"nearcache_bytes", MetricGauge, "tier", "near=NearBytes shard=ShardBytes", "What they count."},
		{"nearcache_max_bytes", MetricGauge, "tier", "near=NearMaxBytes shard=ShardMaxBytes", "The budgets."},
		{"nearcache_negative_entries", MetricGauge, "", "NegativeEntries", "Entries owned that say that a key does not exist."},
		{"nearcache_expired_entries", MetricGauge, "", "HeldExpired", "Expired entries and near copies that are not swept yet. What StaleOnError keeps has not expired."},
		{"nearcache_hot_keys", MetricGauge, "", "HotKeys", "Keys that are promoted or pinned."},
		{"nearcache_leases", MetricGauge, "", "Leases", "Leases given out by this node and live."},
		{"nearcache_waiters", MetricGauge, "", "Waiters", "Requests that wait at this node for the end of a lease."},
		{"nearcache_flights", MetricGauge, "", "Flights", "Gets and loads under way."},
		{"nearcache_origin_loads", MetricGauge, "state", "running=LoadsRunning waiting=LoadsWaiting abandoned=LoadsAbandoned", "Loads that have a slot, wait for one, or go on although their time is over."},
		{"nearcache_loader_failing", MetricGauge, "", "LoaderFailing", "1: loads are shed, but for 20 a second, since all of the last ones failed."},
		{"nearcache_owner_get_duration_seconds", MetricLatency, "", "OwnerLatency", "Gets that were answered from a shard, here or at another member."},
		{"nearcache_origin_get_duration_seconds", MetricLatency, "", "OriginLatency", "Gets that waited for a load."},
		{"nearcache_load_duration_seconds", MetricLatency, "", "LoadLatency", "Calls of Load and LoadMany."},
	})
}

// trafficFamilies are what is counted.
func trafficFamilies() []family {
	return []family{
		{"nearcache_gets_total", MetricCounter, "result", "near=NearHits owner=OwnerHits origin=OriginGets not_found=NotFound failed=Failed", "Keys asked for, by where they were answered: each in exactly one class."},
		{"nearcache_shared_gets_total", MetricCounter, "", "Shared", "Gets that joined another caller's flight."},
		{"nearcache_stale_gets_total", MetricCounter, "", "Stale", "Gets that got a value marked stale."},
		{"nearcache_loads_total", MetricCounter, "", "Loads", "Calls of Load, and keys passed to LoadMany."},
		{"nearcache_refreshes_total", MetricCounter, "", "Refreshes", "Loads that were begun before the key expired, of what this node owns."},
		{"nearcache_load_errors_total", MetricCounter, "", "LoadErrors", "Loads that failed."},
		{"nearcache_load_timeouts_total", MetricCounter, "", "LoadTimeouts", "Calls of loaders that LoadTimeout ended."},
		{"nearcache_load_panics_total", MetricCounter, "", "LoadPanics", "Calls of loaders that panicked or left their goroutine."},
		{"nearcache_shed_loads_total", MetricCounter, "", "Shed", "Loads that found no slot in time, or were refused because the loader keeps failing."},
		{"nearcache_inherited_total", MetricCounter, "", "Inherited", "Values that came from the former owner of a key instead of a load."},
		{"nearcache_copies_total", MetricCounter, "", "Copies", "Copies that this node took as a replica."},
		{"nearcache_invalidations_total", MetricCounter, "of", "key=Invalidations tag=TagsInvalidated", "Keys and tags invalidated here, whoever sent them."},
		{"nearcache_peer_errors_total", MetricCounter, "", "PeerErrors", "Requests of this keyspace that a member did not answer."},
		{"nearcache_evictions_total", MetricCounter, "", "Evictions", "Entries and near copies that left, or did not get in, for want of room."},
		{"nearcache_near_evictions_total", MetricCounter, "", "NearEvictions", "Of the evictions, those of near copies."},
		{"nearcache_expirations_total", MetricCounter, "", "Expirations", "Entries and near copies that left after their lifetime."},
		{"nearcache_near_expirations_total", MetricCounter, "", "NearExpirations", "Of the expirations, those of near copies."},
		{"nearcache_expired_leases_total", MetricCounter, "", "LeasesExpired", "Leases that ended because their holder did not answer in time."},
	}
}

// reasonFamilies are why something was not stored or served.
func reasonFamilies() []family {
	return []family{
		{"nearcache_not_stored_total", MetricCounter, "reason", "rejected=Rejected lease=RefusedLease tag=RefusedTag version=RefusedVersion too_large=TooLarge shard_too_large=ShardTooLarge near_too_large=NearTooLarge not_kept=NotKept overtaken=NotInstalled over_tagged=OverTagged", "What was loaded or answered and not stored, or not for long, by reason."},
		{"nearcache_not_served_total", MetricCounter, "reason", "undecodable=Undecodable unsure=NearUnsure tagged=NearTagged misrouted=Misrouted", "What was there and not served, by reason."},
	}
}

func auditFamilies() []family {
	return []family{
		{"nearcache_audited_total", MetricCounter, "of", "invalidation=Audit.Invalidations value=Audit.Values", "Invalidations that the audit followed up, and values that it compared with the origin."},
		{"nearcache_audit_unknown_total", MetricCounter, "of", "invalidation=Audit.Unanswered value=Audit.Uncompared", "Questions of the audit that a member did not answer, and values that could not be compared."},
		{"nearcache_audit_old_total", MetricCounter, "age", "ten_bounds=Audit.Old hundred_bounds=Audit.OldTenBounds more=Audit.OldHundred", "Values from before an invalidation that a member still had after it had returned, by how long after: up to ten Bounds, up to a hundred, more."},
		{"nearcache_audit_drifted_total", MetricCounter, "", "Audit.Drifted", "Values older than what the origin had a Bound before: a change that was not announced, or came too late."},
	}
}

func feedFamilies() []family {
	return []family{
		{"nearcache_feed_batches_total", MetricCounter, "", "Batches", "Batches, empty ones included."},
		{"nearcache_feed_changes_total", MetricCounter, "", "Applied", "Changes passed on to their owners."},
		{"nearcache_feed_passed_over_total", MetricCounter, "reason", "duplicate=Duplicates unknown=Unknown invalid=Invalid", "Of the changes, those that another one made needless, and those in keyspaces that are not open here; and invalid ones."},
		{"nearcache_feed_unconfirmed_total", MetricCounter, "", "Unconfirmed", "Keys, tags and keyspaces that an owner did not confirm at once."},
		{"nearcache_feed_gaps_total", MetricCounter, "", "Gaps", "Times that changes were lost."},
		{"nearcache_feed_restarts_total", MetricCounter, "", "Restarts", "Times that the source's Read ended."},
		{"nearcache_feed_behind", MetricGauge, "", "Behind", "About how many changes the source had after the last batch."},
		{"nearcache_feed_lag_seconds", MetricGauge, "", "Lag", "How long ago the first of them was made."},
		{"nearcache_feed_last_batch_seconds", MetricGauge, "", "LastBatch", "Since the last batch; negative: there was none yet."},
		{"nearcache_feed_last_change_seconds", MetricGauge, "", "LastChange", "Since the last batch with changes; negative: there was none yet."},
	}
}

// appendFamilies adds the metrics of things, whose names are the values of the first label.
func appendFamilies[T any](ms []Metric, families []family, label string, names []string, things []T) []Metric {
	for i := range families {
		f := &families[i]
		for t := range things {
			v := reflect.ValueOf(&things[t]).Elem()
			for part := range strings.FieldsSeq(f.fields) {
				m := Metric{Name: f.name, Help: f.help, Kind: f.kind}
				if label != "" {
					m.Labels = append(m.Labels, MetricLabel{label, names[t]})
				}
				value, field, ok := strings.Cut(part, "=")
				if !ok {
					field = part
				} else {
					m.Labels = append(m.Labels, MetricLabel{f.label, value})
				}
				slices.SortFunc(m.Labels, func(a, b MetricLabel) int { return strings.Compare(a.Name, b.Name) })
				at := v
				for name := range strings.SplitSeq(field, ".") {
					at = at.FieldByName(name)
				}
				m.set(at.Interface())
				ms = append(ms, m)
			}
		}
	}
	return ms
}

// set takes over a field of the statistics.
func (m *Metric) set(v any) {
	switch v := v.(type) {
	case uint64:
		m.Value = float64(v)
	case int64:
		m.Value = float64(v)
	case int:
		m.Value = float64(v)
	case float64:
		m.Value = v
	case bool:
		if v {
			m.Value = 1
		}
	case string: // a breaker
		if v != "closed" {
			m.Value = 1
		}
	case time.Duration:
		m.Value = v.Seconds()
	case time.Time:
		m.Value = float64(v.UnixNano()) / 1e9
	case Latency:
		m.Latency = &v
	}
}

// writeMetrics writes the text format of Prometheus, version 0.0.4.
func writeMetrics(b *bytes.Buffer, ms []Metric) {
	w := metricsWriter{b, strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)}
	last := ""
	for i := range ms {
		m := &ms[i]
		if m.Name != last {
			last = m.Name
			fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, m.Kind)
		}
		if m.Latency == nil {
			w.sample(m.Name, m.Labels, "", m.Value)
			continue
		}
		sum := uint64(0)
		for i, n := range m.Latency.Buckets {
			sum += n
			bound := "+Inf"
			if i < LatencyBuckets-1 {
				bound = formatFloat(LatencyBound(i).Seconds())
			}
			w.sample(m.Name+"_bucket", m.Labels, bound, float64(sum))
		}
		w.sample(m.Name+"_sum", m.Labels, "", m.Latency.Sum.Seconds())
		w.sample(m.Name+"_count", m.Labels, "", float64(m.Latency.Count))
	}
}

type metricsWriter struct {
	b      *bytes.Buffer
	escape *strings.Replacer // of labels' values
}

// sample writes one line. bound is the label le of a bucket.
func (w *metricsWriter) sample(name string, labels []MetricLabel, bound string, v float64) {
	w.b.WriteString(name)
	sep := byte('{')
	for _, l := range labels {
		w.b.WriteByte(sep)
		w.label(l.Name, strings.ToValidUTF8(l.Value, "\ufffd"))
		sep = ','
	}
	if bound != "" {
		w.b.WriteByte(sep)
		w.label("le", bound)
		sep = ','
	}
	if sep == ',' {
		w.b.WriteByte('}')
	}
	w.b.WriteString(" " + formatFloat(v) + "\n")
}

func (w *metricsWriter) label(name, value string) {
	w.b.WriteString(name + `="` + w.escape.Replace(value) + `"`)
}

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// String is the name of the kind in the text format of Prometheus.
func (k MetricKind) String() string {
	switch k {
	case MetricCounter:
		return "counter"
	case MetricGauge:
		return "gauge"
	case MetricLatency:
		return "histogram"
	}
	return "untyped"
}

// reason is why something was not stored or served, and how often.
type reason struct {
	Name  string
	Count uint64
}
