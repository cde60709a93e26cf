package prom_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearcache/nearcache"
)

// exported returns by name of a series the labels that it has, and their values where those are not names that users give.
func exported() map[string]map[string][]string {
	all := make(map[string]map[string][]string)
	s := nearcache.Stats{
		Members: make([]nearcache.MemberStats, 1), Feeds: make([]nearcache.FeedStats, 1),
		Keyspaces: map[string]nearcache.KeyspaceStats{"": {}},
	}
	for _, m := range s.Metrics() {
		names := []string{m.Name}
		if m.Kind == nearcache.MetricLatency {
			names = []string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}
		}
		for _, name := range names {
			if all[name] == nil {
				all[name] = map[string][]string{"instance": nil, "job": nil}
			}
			if strings.HasSuffix(name, "_bucket") {
				all[name]["le"] = nil
			}
			for _, l := range m.Labels {
				all[name][l.Name] = append(all[name][l.Name], l.Value)
			}
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`\bnearcache_[a-z_]+\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(=~|=)\s*"([^"]*)"`)
)

// checkExpr reports what an expression asks for that no node exports.
func checkExpr(expr string, series map[string]map[string][]string) (problems []string) {
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		name, _, _ := strings.Cut(m[0], "{")
		labels, ok := series[name]
		if !ok {
			problems = append(problems, "no series "+name)
			continue
		}
		for _, l := range matcher.FindAllStringSubmatch(m[1], -1) {
			values, ok := labels[l[1]]
			if !ok {
				problems = append(problems, fmt.Sprintf("%s has no label %s", name, l[1]))
				continue
			}
			for want := range strings.SplitSeq(l[3], "|") {
				if !strings.HasPrefix(want, "$") && !slices.Contains(values, want) {
					problems = append(problems, fmt.Sprintf("%s has no %s=%q", name, l[1], want))
				}
			}
		}
	}
	return problems
}

// panelExprs returns the expressions of a dashboard by the title of their panel.
func panelExprs(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr string }
			GridPos struct{ X, W int }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	all, ids := make(map[string][]string), make(map[int]bool)
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: its ID is not its own, or it does not fit", p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			title := fmt.Sprintf("%d %s", p.ID, p.Title)
			all[title] = append(all[title], target.Expr)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
	}
	for _, v := range d.Templating.List {
		all["variable "+v.Name] = []string{v.Query}
	}
	return all
}

// Every series and label in the rules and on the dashboard is one that a node exports.
func TestExpressionsNameWhatThereIs(t *testing.T) {
	series := exported()
	if got := checkExpr(`rate(nearcache_gets_total{result=~"near|far", tier="x"}[5m]) + nearcache_nothing`, series); len(got) != 3 {
		t.Fatalf("the check finds %q, want three problems", got)
	}
	for title, exprs := range panelExprs(t) {
		for _, e := range exprs {
			for _, p := range checkExpr(e, series) {
				t.Errorf("dashboard.json, %s: %s", title, p)
			}
		}
	}
	for _, file := range []string{"alerts.yml", "alerts_test.yml"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			line = strings.NewReplacer(`instance="a"`, "", `keyspace="product"`, "", `member="b"`, "", `member="c"`, "", `feed="f"`, "").Replace(line)
			for _, p := range checkExpr(strings.ReplaceAll(line, "keyspace:nearcache_", "keyspace:recorded_"), series) {
				t.Errorf("%s: %s", file, p)
			}
		}
	}
}

// promtool runs Prometheus' own tool, or skips the test where it is not installed: scripts/ci.sh nested installs it.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("promtool is not installed (Debian: apt-get install prometheus): the rules are not tested")
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// The rules are rules, fire when they should, and are silent when they should be.
func TestRules(t *testing.T) {
	promtool(t, "check", "rules", "alerts.yml")
	promtool(t, "test", "rules", "alerts_test.yml")
	alerts, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(alerts), -1) {
		if got := strings.Count(string(tests), "alertname: "+m[1]); got < 2 {
			t.Errorf("%s is tested %d times, want once where it fires and once where it does not", m[1], got)
		}
	}
}

// What the dashboard asks for is PromQL.
func TestDashboardIsPromQL(t *testing.T) {
	exprs := panelExprs(t)
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, title := range slices.Sorted(maps.Keys(exprs)) {
		for i, e := range exprs[title] {
			if strings.HasPrefix(title, "variable") {
				continue
			}
			e = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$keyspace", ".*").Replace(e)
			quoted, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(title), "_")
			fmt.Fprintf(&rules, "  - {record: 'panel:n%s_%d', expr: %s}\n", name, i, quoted)
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}
