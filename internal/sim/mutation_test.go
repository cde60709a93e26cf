package sim

import (
	"flag"
	"reflect"
	"strings"
	"testing"
)

var search = flag.Int("sim.search", 0, "with TestMutations: look for runs that show each switch necessary, among so many seeds of each profile")

// mutation is a rule that is switched off, and seeds of a profile among which the checker must notice.
type mutation struct {
	profile string
	from    uint64
	seeds   int
}

// mutations are switches of Rules.
func mutations() map[string]mutation {
	return map[string]mutation{
		"Split":     {"normal", 3, 4},
		"JoinAge":   {"writes", 2, 3},
		"NearLease": {"normal", 1, 2},
		"Holes":     {"normal", 2, 2},
	}
}

// switchOff turns a field of rules off.
func switchOff(t *testing.T, r *Rules, field string) {
	t.Helper()
	if field == "" {
		return
	}
	f := reflect.ValueOf(r).Elem().FieldByName(field)
	if !f.IsValid() {
		t.Fatalf("no rule is called %q", field)
	}
	f.SetBool(false)
}

// The mutation gate: without a rule the checker finds what the rule is for.
func TestMutations(t *testing.T) {
	if *search > 0 {
		searchMutations(t)
		return
	}
	for rule, m := range mutations() {
		t.Run(rule, func(t *testing.T) {
			cfg := profiles()[m.profile]
			switchOff(t, &cfg.Rules, rule)
			for seed := range uint64(m.seeds) {
				if r := Run(cfg, m.from+seed); len(r.Violations) > 0 {
					t.Logf("seed %d of %s: %v, worst %v", r.Seed, m.profile, r.Count, r.Worst)
					return
				}
			}
			t.Errorf("seeds %d to %d of %s pass without the rule", m.from, m.from+uint64(m.seeds)-1, m.profile)
		})
	}
}

// searchMutations prints what the table of mutations may have.
func searchMutations(t *testing.T) {
	t.Helper()
	for field := range reflect.TypeFor[Rules]().Fields() {
		if !strings.Contains(field.Name, *off) {
			continue
		}
		for name, cfg := range profiles() {
			switchOff(t, &cfg.Rules, field.Name)
			if !strings.Contains(name, *profile) {
				continue
			}
			if s := runAll(cfg, *first, *search); s.failing > 0 {
				t.Logf("%q: {%q, %d, 1}, %d of %d seeds fail: %v, worst %v", field.Name, name, s.firstBad.Seed, s.failing, s.runs, s.kinds, s.worst)
			}
		}
	}
}
