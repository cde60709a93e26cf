package nearcache

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// Case stats-5. Keys are shown as they are to those who may see them, in a form that has all of their bytes, and to nobody else.
func TestKeyText(t *testing.T) {
	for _, tt := range []struct{ key, want string }{
		{"product:8812", "product:8812"},
		{"with space é", "with space é"},
		{"<script>", "<script>"},
		{"\xff", `"\xff"`},
		{"a\nb", `"a\nb"`},
		{`"a"`, `"\"a\""`},
		{"\u202ea", `"\u202ea"`},
	} {
		got := textKey(tt.key)
		if got != tt.want {
			t.Errorf("textKey(%q) = %s, want %s", tt.key, got, tt.want)
		}
		if back := rawKey(got); back != tt.key {
			t.Errorf("rawKey(%s) = %q, want %q", got, back, tt.key)
		}
	}
	long := strings.Repeat("\x00", 60_000)
	if a, b := textKey(long), textKey(long+"x"); len(a) > 1000 || a == b {
		t.Errorf("got %d bytes for a long key, equal to those of another one: %v; want few, and other ones", len(a), a == b)
	}
}

// The table of keys is sorted by any column, has a bar for each, and a link for those who may see keys.
func TestTheTableOfKeys(t *testing.T) {
	n, err := Start(t.Context(), NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	top := []KeyStats{
		{Key: "customer:1", Rate: 50, OwnerHits: 10, NearHits: 90, Bytes: 3, Owner: "b"},
		{Key: "customer:<b>", Rate: 100, OwnerHits: 9, NearHits: 1, Bytes: 2, Owner: "c", HotSince: time.Second, Loads: 4},
		{Key: "customer:\xff", Rate: 20, OriginGets: 1000, Served: 3, Bytes: 1, Owner: "a", Left: time.Second, LoadTime: time.Second},
	}
	rows := func(remote, query string) *overview {
		r := httptest.NewRequest("GET", "/?"+query, nil)
		r.RemoteAddr, r.Host = remote, "localhost"
		p, problem := parseParams(r.URL.Query())
		if problem != "" {
			t.Fatal(problem)
		}
		o := &overview{Keyspaces: []card{{Name: "ks", KeyspaceStats: KeyspaceStats{Top: top}}}, query: r.URL.Query()}
		o.addKeys(n, r, p)
		return o
	}
	for _, c := range columns() {
		o := rows("127.0.0.1:5", "sort="+c.name)
		if c.name == "key" { // as it is shown it may sort otherwise
			o.Top[2].Key = rawKey(o.Top[2].Key)
		}
		if !slices.IsSortedFunc(o.Top, func(a, b keyRow) int { return c.less(&a, &b) }) || len(o.Top) != 3 {
			t.Errorf("by %s: got %+v", c.name, o.Top)
		}
		for _, col := range o.Columns {
			if want := col.name == c.name; col.By != want {
				t.Errorf("by %s: column %s says %v", c.name, col.name, col.By)
			}
		}
	}
	o := rows("127.0.0.1:5", "scope=cluster&refresh=off")
	if o.Top[0].Key != "customer:<b>" || o.Top[0].Bar != (bar{"origin", "100.0"}) || o.Top[1].Bar != (bar{"owner", "50.0"}) {
		t.Errorf("got %+v, want the most read key first, and bars as long as rates are high", o.Top)
	}
	if o.Top[2].Key != `"customer:\xff"` || o.Top[2].Link != "key?key=customer%3A%FF&keyspace=ks" {
		t.Errorf("got %+v, want the key quoted, and a link with its bytes", o.Top[2])
	}
	if got := o.Columns[0].Link; got != "?refresh=off&scope=cluster&sort=key#keys" {
		t.Errorf("got the link %q, want it to keep the other parameters", got)
	}
	if o = rows("127.0.0.1:5", "n=1&sort=gets"); len(o.Top) != 1 || o.Top[0].Key != "customer:<b>" {
		t.Errorf("n=1: got %+v, want the most read key", o.Top)
	}
	for _, k := range rows("10.0.0.9:5", "").Top {
		if !strings.HasPrefix(k.Key, "customer#") || len(k.Key) != len("customer#12345678") || k.Link != "" {
			t.Errorf("for others: got %+v, want a prefix and a hash", k)
		}
	}
}

// Sums over members have all numbers, and the keys of all.
func TestSumsOfMembers(t *testing.T) {
	one := KeyspaceStats{Top: []KeyStats{{Key: "a", Rate: 5, NearHits: 5, Left: 2}, {Key: "b", Rate: 16, NearHits: 3, Failed: 1, Served: 12}}}
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(uint64(i + 1))
		case reflect.Int64:
			f.SetInt(int64(i + 1))
		default:
		}
	}
	one.LoadLatency = Latency{Count: 3, Sum: 7}
	one.LoadLatency.Buckets[4] = 3
	var sum KeyspaceStats
	sum.add(&one)
	sum.add(&one)
	got := reflect.ValueOf(sum)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch f := got.Field(i); f.Kind() {
		case reflect.Uint64:
			if f.Uint() != 2*v.Field(i).Uint() {
				t.Errorf("%s: got %d, want twice %d", name, f.Uint(), v.Field(i).Uint())
			}
		case reflect.Int64:
			if f.Int() != 2*v.Field(i).Int() {
				t.Errorf("%s: got %d, want twice %d", name, f.Int(), v.Field(i).Int())
			}
		default:
		}
	}
	if l := sum.LoadLatency; l.Count != 6 || l.Sum != 14 || l.Buckets[4] != 6 {
		t.Errorf("got the latency %+v, want twice 3, 7 and 3", l)
	}
	sum.add(&KeyspaceStats{Top: []KeyStats{{Key: "b", Rate: 9, Left: 1}, {Key: "c", Rate: 1}}})
	var list []string
	for _, k := range sum.Top {
		list = append(list, fmt.Sprintf("%s %v %d %d", k.Key, k.Rate, k.reads(), k.Left))
	}
	if want := []string{"b 17 8 1", "a 10 10 2", "c 1 0 0"}; !slices.Equal(list, want) {
		t.Errorf("got the keys %q, want %q", list, want)
	}
	for i := range 200 {
		sum.add(&KeyspaceStats{Top: []KeyStats{{Key: fmt.Sprint(i), Rate: float64(i)}}})
	}
	if len(sum.Top) != topKeys || sum.Top[0].Key != "199" {
		t.Errorf("got %d keys, the first %s, want %d and the most read one", len(sum.Top), sum.Top[0].Key, topKeys)
	}
}

// What a member answers that has no statistics is told from what it answers else.
func TestWhyAMemberIsSilent(t *testing.T) {
	for _, tt := range []struct {
		key  string
		err  error
		rep  transport.Reply
		want string
	}{
		{"", transport.ErrDown, transport.Reply{}, transport.ErrDown.Error()},
		{"", nil, transport.Reply{Status: transport.StatusUnknownKeyspace}, "a release that cannot be asked"},
		{"k", nil, transport.Reply{Status: transport.StatusUnknownKeyspace}, "not open"},
		{"k", nil, transport.Reply{Status: transport.StatusBusy}, "busy"},
		{"", nil, transport.Reply{Status: transport.StatusOK, Value: []byte("{")}, "no sense"},
		{"", nil, transport.Reply{Status: transport.StatusOK, Value: []byte("{}")}, ""},
	} {
		call := &transport.Call{Request: transport.Request{Key: tt.key}, Reply: tt.rep, Err: tt.err}
		var v told
		err := answerOf(call, &v)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: got %v, want %q", tt, err, tt.want)
		}
	}
}

// full returns statistics with a different number in every field.
func full() Stats {
	s := Stats{Started: time.Unix(1, 0), Members: make([]MemberStats, 2), Feeds: make([]FeedStats, 1), Keyspaces: map[string]KeyspaceStats{}}
	next := int64(1000)
	fill := func(v reflect.Value) {
		for _, f := range v.Fields() {
			next++
			switch f.Kind() {
			case reflect.Uint64:
				f.SetUint(uint64(next))
			case reflect.Int64, reflect.Int:
				f.SetInt(next)
			case reflect.Float64:
				f.SetFloat(float64(next))
			case reflect.Bool:
				f.SetBool(true)
			case reflect.Struct:
				if l, ok := reflect.TypeAssert[*Latency](f.Addr()); ok {
					*l = Latency{Count: 3, Sum: time.Duration(next), Buckets: [LatencyBuckets]uint64{1, 1, 25: 1}}
				}
			default:
			}
		}
	}
	var ks KeyspaceStats
	fill(reflect.ValueOf(&ks).Elem())
	ks.Top = []KeyStats{{Key: "secret"}}
	fill(reflect.ValueOf(&s).Elem())
	for i := range s.Members {
		fill(reflect.ValueOf(&s.Members[i]).Elem())
		s.Members[i].Member.ID = fmt.Sprint("m", i)
		s.Members[i].Breaker = "open"
	}
	fill(reflect.ValueOf(&s.Feeds[0]).Elem())
	s.Feeds[0].Name = "f"
	s.Keyspaces[`k"\`+"\n\xff"], s.Keyspaces["b"] = ks, ks
	return s
}

// Every number of the statistics is in a metric, but those that are told in another way.
func TestMetricsAreComplete(t *testing.T) {
	not := []string{
		"Stats.RingView",     // a name, not a number
		"KeyspaceStats.Gets", // the sum of what nearcache_gets_total has
	}
	shown := map[string]bool{}
	for list, of := range map[string][]family{"Stats": nodeFamilies(), "MemberStats": memberFamilies(), "KeyspaceStats": keyspaceFamilies(), "FeedStats": feedFamilies()} {
		for _, f := range of {
			for part := range strings.FieldsSeq(f.fields) {
				shown[list+"."+part[strings.Index(part, "=")+1:]] = true
			}
			if strings.Contains(f.fields, "=") != (f.label != "") {
				t.Errorf("%s: its fields are %q, and its label %q", f.name, f.fields, f.label)
			}
			if (f.kind == MetricCounter) != strings.HasSuffix(f.name, "_total") {
				t.Errorf("%s is a %s", f.name, f.kind)
			}
		}
	}
	types := map[string]reflect.Type{
		"Stats": reflect.TypeFor[Stats](), "MemberStats": reflect.TypeFor[MemberStats](),
		"KeyspaceStats": reflect.TypeFor[KeyspaceStats](), "FeedStats": reflect.TypeFor[FeedStats](),
	}
	there := map[string]bool{}
	for name, typ := range types {
		for _, n := range numbersOf(name, typ) {
			there[n] = true
			if !shown[n] && !slices.Contains(not, n) {
				t.Errorf("%s is in no metric: give it one in metrics.go", n)
			}
		}
	}
	for name := range shown {
		if !there[name] && name != "Stats.Started" && name != "MemberStats.Breaker" {
			t.Errorf("metrics.go names %s, which does not exist", name)
		}
	}
}

// numbersOf lists the fields of a struct, and of structs in it, that hold a number or a Latency.
func numbersOf(name string, typ reflect.Type) (all []string) {
	for f := range typ.Fields() {
		switch f.Type.Kind() {
		case reflect.Uint64, reflect.Int64, reflect.Int, reflect.Float64, reflect.Bool:
			all = append(all, name+"."+f.Name)
		case reflect.Struct:
			if f.Type == reflect.TypeFor[Latency]() {
				all = append(all, name+"."+f.Name)
			} else if f.Type.PkgPath() == typ.PkgPath() {
				all = append(all, numbersOf(name+"."+f.Name, f.Type)...)
			}
		default:
		}
	}
	return all
}

// What is written is what Prometheus reads, and has no key.
func TestMetricsFormat(t *testing.T) {
	var b bytes.Buffer
	writeMetrics(&b, full().Metrics())
	out := b.String()
	if strings.Contains(out, "secret") {
		t.Error("a key is in the metrics")
	}
	sample := regexp.MustCompile(`^([a-z_]+)(\{([a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)+\})? (\S+)$`)
	seen := map[string]bool{}
	name, kind := "", ""
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "# HELP ") {
			name = strings.Fields(line)[2]
			if seen[name] {
				t.Errorf("%s comes twice", name)
			}
			seen[name] = true
			continue
		}
		if strings.HasPrefix(line, "# TYPE ") {
			if f := strings.Fields(line); f[2] == name {
				kind = f[3]
			}
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("not a sample: %q", line)
			continue
		}
		if base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(m[1], "_bucket"), "_sum"), "_count"); m[1] != name && (kind != "histogram" || base != name) {
			t.Errorf("%q stands under %s", line, name)
		}
	}
	for _, want := range []string{
		"nearcache_start_time_seconds 1\n",
		"# TYPE nearcache_gets_total counter\n",
		`nearcache_gets_total{keyspace="b",result="near"} `,
		`nearcache_gets_total{keyspace="k\"\\\n` + "\ufffd" + `",result="failed"} `,
		`nearcache_member_breaker_open{member="m1"} 1` + "\n",
		`nearcache_load_duration_seconds_bucket{keyspace="b",le="1e-06"} 1` + "\n",
		`nearcache_load_duration_seconds_bucket{keyspace="b",le="2e-06"} 2` + "\n",
		`nearcache_load_duration_seconds_bucket{keyspace="b",le="16.777216"} 2` + "\n",
		`nearcache_load_duration_seconds_bucket{keyspace="b",le="+Inf"} 3` + "\n",
		`nearcache_load_duration_seconds_count{keyspace="b"} 3` + "\n",
		`nearcache_feed_gaps_total{feed="f"} `,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

// docs/statistics.md lists the metrics as they are. With UPDATE_DOCS=1 its table is written anew.
func TestMetricsAreDocumented(t *testing.T) {
	const path, begin, end = "docs/statistics.md", "<!-- metrics: written by UPDATE_DOCS=1 go test -run TestMetricsAreDocumented . -->\n", "<!-- end of metrics -->\n"
	var table strings.Builder
	table.WriteString("\n| metric | kind | labels | fields | meaning |\n|---|---|---|---|---|\n")
	for _, part := range []struct {
		label    string
		families []family
	}{{"", nodeFamilies()}, {"member", memberFamilies()}, {"keyspace", keyspaceFamilies()}, {"feed", feedFamilies()}} {
		for _, f := range part.families {
			labels, fields := part.label, f.fields
			if f.label != "" {
				labels = strings.TrimPrefix(labels+", "+f.label, ", ")
				fields = strings.ReplaceAll(strings.ReplaceAll(f.fields, " ", ", "), "=", ": ")
			}
			fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", f.name, f.kind, labels, fields, f.help)
		}
	}
	table.WriteString("\n")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	before, rest, ok := strings.Cut(doc, begin)
	was, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the metrics", path)
	}
	if want := table.String(); was != want {
		if os.Getenv("UPDATE_DOCS") == "" {
			t.Fatalf("%s lists other metrics than there are: UPDATE_DOCS=1 go test -run TestMetricsAreDocumented .", path)
		}
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Pictures of an empty cache, of one minute, and of one with everything.
func TestPlots(t *testing.T) {
	now := time.Unix(1000, 0)
	empty := plotOf(nil, now)
	if got, highest := empty.line(empty.gets, 0), empty.highest(empty.gets); got != "" || highest != 0 || len(empty.areas()) != 0 {
		t.Errorf("of nothing: got %q up to %v", got, highest)
	}
	p := plotOf([]Sample{
		{At: now.Add(-time.Hour), NearHits: 99},                    // too long ago
		{At: now.Add(-HistorySeconds * time.Second), NearHits: 99}, // just so
		{At: now.Add(-61 * time.Second), NearHits: 50},
		{At: now.Add(-12 * time.Second), NearHits: 10, OwnerHits: 5, OriginGets: 3, NotFound: 1, Failed: 1, Loads: 3},
		{At: now.Add(-11 * time.Second), NearHits: 10},
		{At: now.Add(time.Second), NearHits: 7}, // a clock that was set
	}, now)
	sum, gets := p.lately()
	if gets != 37 || sum[outNear] != 27 || sum[outLoads] != 3 {
		t.Errorf("got %v of %d gets in the last minute, want 27 near ones of 37", sum, gets)
	}
	areas := p.areas()
	var classes []string
	for _, a := range areas {
		classes = append(classes, a.Class)
		if strings.Contains(a.Path, "NaN") {
			t.Errorf("%s: %q", a.Class, a.Path)
		}
	}
	if want := []string{"near", "owner", "origin", "absent", "failed"}; !slices.Equal(classes, want) {
		t.Errorf("got %q, want %q", classes, want)
	}
	if highest := p.highest(p.gets); highest != 10 { // 50 in 5 s
		t.Errorf("got at most %v a second, want 10", highest)
	}
	if got := p.line(p.gets, 10); strings.Count(got, "L") != plotSlots-2 || !strings.Contains(got, " 1L") {
		t.Errorf("got the line %q, want one that reaches the top", got)
	}
	if gets, _, _ := p.rates(10 * time.Second); gets != 3.7 {
		t.Errorf("got %v a second since the start 10 s ago, want 3.7", gets)
	}
	if gets, loads, hits := p.rates(time.Hour); gets != 37./60 || loads != 3./60 || hits != "86.5 %" {
		t.Errorf("got %v, %v and %q", gets, loads, hits)
	}
}

func TestFormatTook(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "-", -1: "-", 300: "<1µs", 187_432: "187µs", 5_700_123: "5.7ms", 23 * time.Millisecond: "23ms", 1530 * time.Millisecond: "1.5s",
		35 * time.Second: "35s", 3 * time.Minute: "3m", 200 * time.Second: "3m20s", 26*time.Hour + 5*time.Minute: "26h05m", 73 * time.Hour: "3d1h",
	} {
		if got := formatTook(d); got != want {
			t.Errorf("%d: got %q, want %q", d, got, want)
		}
	}
}
