package sim

import (
	"flag"
	"reflect"
	"slices"
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

// mutations are the switches of Rules that are necessary by themselves, and the runs that show it. A change of the protocol may make a run
// another one: -sim.search finds new seeds.
func mutations() map[string]mutation {
	return map[string]mutation{
		"Tokens":      {"overlap", 1, 1},
		"Split":       {"overlap", 1, 1},
		"JoinAge":     {"slow", 1, 6},
		"Install":     {"overtake", 1, 1},
		"NearLease":   {"tails", 1, 1},
		"SentLease":   {"tails", 1, 2},
		"Holes":       {"tails", 1, 1},
		"Incarnation": {"restarts", 1, 8},
		"StandInCap":  {"tails", 1, 1},
		"Owed":        {"cuts", 1, 4},
		"Lag":         {"lag", 1, 1},
		"Interest":    {"overlap", 1, 1},
		"OwnView":     {"stress", 1, 1},
		"Foreign":     {"stale in stress", 4, 1},
		"Holds":       {"updates calm", 1, 1},
		"Turns":       {"updates calm", 1, 2},
		"Linger":      {"updates", 2, 1},
		"OwnStale":    {"stale in stress", 3, 1},
		"Spares":      {"stale for long", 3, 1},
		"TagFetch":    {"tags overtake", 1, 1},
		"TagFlights":  {"tags overtake", 1, 1},
		"OwnTags":     {"tags and copies", 1, 1},
		"AckTwice":    {"tags and islands", 1, 1},
		"Waited":      {"queues", 7, 1},
		"Move":        {"ten", 1, 1},
		"MoveNear":    {"heirs", 207, 1},
		"Doubt":       {"islands", 1, 1},
		"Fence":       {"islands", 1, 1},
		"Ended":       {"seldom", 7, 1},
		"Half":        {"halved", 19, 1},
		"CapLeases":   {"aged", 1, 6},
		"Unequal":     {"moves", 3, 1},
		"Replicas":    {"crashes", 1, 1},
		"CopyAge":     {"tags and copies", 2, 1},
		"Targets":     {"heirs overtake", 6, 1},
		"Echo":        {"heirs leave", 7, 1},
		"PeekAge":     {"heirs overtake", 8, 1},
		"Vouch":       {"heirs in stress", 1, 1},
		"Missed":      {"heirs and tags", 62, 1},
		"SetTargets":  {"moves", 10, 1},
		"OwnSet":      {"stress", 1, 4},
	}
}

// overlapping are switches that no run among hundreds showed necessary while all others are in force. docs/protocol.md says why they stay.
func overlapping() []string {
	return []string{"Revoke", "Forward", "StandIns", "StandInJoin", "Gained", "Void", "Relay", "Silent", "Borrowed", "Unlisted", "CopyDoubt", "Apart", "Mixed", "Heirs", "MoveGrants"}
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
	switch {
	case *search > 0:
		searchMutations(t)
		return
	case brief():
		t.Skip("a minute of runs that the race detector learns nothing from")
	}
	for field := range reflect.TypeFor[Rules]().Fields() {
		_, shown := mutations()[field.Name]
		if shown == slices.Contains(overlapping(), field.Name) {
			t.Errorf("%s has to be among either the mutations or the overlapping", field.Name)
		}
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
		if *off != "" && field.Name != *off {
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
