package membership

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearcache/nearcache/peers"
)

const self = "10.0.0.1:7946"

func newTable(t *testing.T, me peers.Member, grace time.Duration) *Table {
	t.Helper()
	table, err := New(me, grace)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func update(t *testing.T, table *Table, list []peers.Member, now int64) bool {
	t.Helper()
	changed, err := table.Update(list, now)
	if err != nil {
		t.Fatalf("Update(%v): %v", list, err)
	}
	checkView(t, table.View())
	return changed
}

// checkView checks what every view promises.
func checkView(t *testing.T, v *View) {
	t.Helper()
	if got, want := len(v.Ring.Members()), len(v.Members); got != want {
		t.Fatalf("the ring has %d members, want %d", got, want)
	}
	for i, m := range v.Members {
		if got := v.Ring.Members()[i].ID; got != m.ID {
			t.Errorf("member %d of the ring: got %s, want %s", i, got, m.ID)
		}
		if got, err := peers.CanonicalAddr(m.Addr); err != nil || got != m.Addr {
			t.Errorf("address %q: canonical is %q, %v", m.Addr, got, err)
		}
		if i > 0 && v.Members[i-1].ID >= m.ID {
			t.Errorf("members out of order: %v", v.Members)
		}
		if got, want := i == v.Self, m.Addr == v.Me().Addr; got != want {
			t.Errorf("member %d is self: %v, and has its address: %v", i, got, want)
		}
	}
}

// text writes a view down: ID@Addr, this node in brackets, zone and weight where they are not the default.
func text(v *View) string {
	parts := make([]string, len(v.Members))
	for i, m := range v.Members {
		parts[i] = m.ID
		if m.ID != m.Addr {
			parts[i] += "@" + m.Addr
		}
		if m.Zone != "" {
			parts[i] += "/" + m.Zone
		}
		if m.Weight != 1 {
			parts[i] += fmt.Sprint("*", m.Weight)
		}
		if i == v.Self {
			parts[i] = "[" + parts[i] + "]"
		}
	}
	return strings.Join(parts, " ")
}

// addrs is a list that knows addresses only.
func addrs(list ...string) []peers.Member {
	members := make([]peers.Member, len(list))
	for i, a := range list {
		members[i].Addr = a
	}
	return members
}

// Cases discovery-3 and ring-2.
func TestUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		me     peers.Member
		list   []peers.Member
		want   string
		listed bool
	}{
		"nobody":                    {peers.Member{Addr: self}, nil, "[10.0.0.1:7946]", false},
		"nobody, ID":                {peers.Member{ID: "a", Addr: self}, nil, "[a@10.0.0.1:7946]", false},
		"self alone":                {peers.Member{Addr: self}, addrs(self), "[10.0.0.1:7946]", true},
		"self missing":              {peers.Member{Addr: self}, addrs("10.0.0.2:7946"), "[10.0.0.1:7946] 10.0.0.2:7946", false},
		"self twice":                {peers.Member{Addr: self}, addrs(self, "10.0.0.2:7946", self), "[10.0.0.1:7946] 10.0.0.2:7946", true},
		"spellings":                 {peers.Member{Addr: "LOCALHOST:07946"}, addrs(" localhost:7946 ", "127.0.0.1:7946", "B.example.:1", "b.example:01"), "[127.0.0.1:7946] b.example:1", true},
		"IPv6 spellings":            {peers.Member{Addr: "[::1]:1"}, addrs("[0:0:0:0:0:0:0:1]:1", "[::ffff:10.0.0.2]:1", "10.0.0.2:1"), "10.0.0.2:1 [[::1]:1]", true},
		"ID, listed by address":     {peers.Member{ID: "a", Addr: self}, addrs(self, "10.0.0.2:7946"), "[10.0.0.1:7946] 10.0.0.2:7946", true},
		"ID, others by address":     {peers.Member{ID: "a", Addr: self}, addrs("10.0.0.2:7946"), "[10.0.0.1:7946] 10.0.0.2:7946", false},
		"ID, others named":          {peers.Member{ID: "a", Addr: self}, []peers.Member{{ID: "b", Addr: "b:1"}}, "[a@10.0.0.1:7946] b@b:1", false},
		"no ID, listed with one":    {peers.Member{Addr: self}, []peers.Member{{ID: "a", Addr: self}, {ID: "b", Addr: "b:1"}}, "[a@10.0.0.1:7946] b@b:1", true},
		"listed with another ID":    {peers.Member{ID: "a", Addr: self}, []peers.Member{{ID: "old", Addr: self}}, "[old@10.0.0.1:7946]", true},
		"listed at another address": {peers.Member{ID: "a", Addr: self}, []peers.Member{{ID: "a", Addr: "10.0.0.9:1"}}, "[a@10.0.0.1:7946]", true},
		"and a former process here": {peers.Member{ID: "b", Addr: self}, []peers.Member{{ID: "a", Addr: self}, {ID: "b", Addr: "10.0.0.9:1"}}, "[b@10.0.0.1:7946]", true},
		"with and without ID":       {peers.Member{ID: "a", Addr: self}, []peers.Member{{Addr: self}, {ID: "a", Addr: self}, {Addr: "b:1"}, {ID: "b", Addr: "b:1"}}, "[a@10.0.0.1:7946] b@b:1", true},
		"ID is the address":         {peers.Member{ID: self, Addr: self}, []peers.Member{{ID: "B:1", Addr: "B:1"}}, "[10.0.0.1:7946] b:1", false},
		"own zone and weight":       {peers.Member{Addr: self, Zone: "z", Weight: 3}, addrs("b:1"), "[10.0.0.1:7946/z*3] b:1", false},
		"listed zone and weight":    {peers.Member{Addr: self, Zone: "z", Weight: 3}, []peers.Member{{Addr: self, Zone: "y", Weight: 2}}, "[10.0.0.1:7946/y*2]", true},
		"client":                    {peers.Member{Addr: self, Weight: -5}, addrs("b:1", "c:1"), "[10.0.0.1:7946*-1] b:1 c:1", false},
		"client, listed":            {peers.Member{Addr: self, Weight: -1}, addrs(self, "b:1"), "[10.0.0.1:7946*-1] b:1", true},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			for range 5 { // the order does not matter
				table := newTable(t, c.me, 0)
				update(t, table, c.list, 1)
				if got := text(table.View()); got != c.want {
					t.Errorf("Update(%v): got %s, want %s", c.list, got, c.want)
				}
				if got := table.View().Listed; got != c.listed {
					t.Errorf("Listed: got %v, want %v", got, c.listed)
				}
				random.Shuffle(len(c.list), func(i, j int) { c.list[i], c.list[j] = c.list[j], c.list[i] })
			}
		})
	}
}

// Cases ring-2 and transport-9.
func TestBadListsChangeNothing(t *testing.T) {
	table := newTable(t, peers.Member{Addr: self}, 0)
	update(t, table, addrs(self, "b:1"), 1)
	before := table.View()
	for name, c := range map[string]struct {
		list []peers.Member
		want []string
	}{
		"one ID at two addresses":   {[]peers.Member{{ID: "b", Addr: "b:1"}, {ID: "b", Addr: "c:1"}}, []string{`"b" at "b:1"`, `"b" at "c:1"`}},
		"two IDs at one address":    {[]peers.Member{{ID: "b", Addr: "b:1"}, {ID: "c", Addr: "B:1"}}, []string{`"b" at "b:1"`, `"c" at "b:1"`}},
		"one member in two zones":   {[]peers.Member{{ID: "b", Addr: "b:1"}, {ID: "b", Addr: "b:1", Zone: "z"}}, []string{"cannot both be members"}},
		"an ID that is an address":  {[]peers.Member{{ID: "c:1", Addr: "b:1"}, {Addr: "c:1"}}, []string{"cannot both be members"}},
		"IPv6 without brackets":     {addrs("::1:1"), []string{`"::1:1"`, "brackets"}},
		"wildcard, no port, port 0": {addrs("0.0.0.0:1", "b", "b:0"), []string{`"0.0.0.0:1"`, `"b"`, `"b:0"`}},
		"empty address":             {[]peers.Member{{ID: "b"}}, []string{`""`}},
		"long ID":                   {[]peers.Member{{ID: strings.Repeat("b", 256), Addr: "b:1"}}, []string{"longer than 255"}},
		"weight":                    {[]peers.Member{{Addr: "b:1", Weight: math.MaxInt32}}, []string{"Weight 2147483647"}},
	} {
		t.Run(name, func(t *testing.T) {
			changed, err := table.Update(c.list, 2)
			if err == nil || changed || table.View() != before {
				t.Fatalf("Update(%v): got %v, %v and %s, want an error and no change", c.list, changed, err, text(table.View()))
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Update(%v): got error %q, want one with %s", c.list, err, want)
				}
			}
		})
	}
	for _, addr := range []string{"", "0.0.0.0:1", "[::]:1", "10.0.0.1:0", ":7946"} {
		if _, err := New(peers.Member{Addr: addr}, 0); err == nil {
			t.Errorf("New with address %q: want an error", addr)
		}
	}
}

func TestUnchangedListsChangeNothing(t *testing.T) {
	table := newTable(t, peers.Member{Addr: self}, 0)
	if !update(t, table, addrs("b:1", self, "c:1"), 1) {
		t.Fatal("the first list: got no change")
	}
	before := table.View()
	for _, list := range [][]peers.Member{addrs("c:1", "b:1", self), addrs(self, "C:01", "b:1", "b:1")} {
		if update(t, table, list, 2) || table.View() != before {
			t.Errorf("Update(%v): got a change, want none", list)
		}
	}
	if !update(t, table, addrs("c:1", self), 3) {
		t.Error("a member less: got no change")
	}
}

// Case discovery-1.
func TestEmptyListIsHeldForTheGrace(t *testing.T) {
	const grace = 10 * time.Second
	table := newTable(t, peers.Member{Addr: self}, grace)
	if update(t, table, nil, 1) || table.Due() != 0 {
		t.Errorf("an empty list where there was nobody: got a change or something due at %d", table.Due())
	}
	full := addrs(self, "b:1", "c:1")
	update(t, table, full, 1)
	steps := []struct {
		list    []peers.Member
		now     int64
		members int
		due     int64
	}{
		{nil, 100, 3, 100 + int64(grace)},
		{addrs(self), 200, 3, 100 + int64(grace)}, // alone is as empty, and the time goes on
		{full, 300, 3, 0},                         // it was a hiccup
		{nil, 400, 3, 400 + int64(grace)},
		{addrs("b:1"), 500, 2, 0}, // fewer, not none: at once
		{nil, 600, 2, 600 + int64(grace)},
		{nil, 600 + int64(grace), 1, 0},
	}
	for i, s := range steps {
		update(t, table, s.list, s.now)
		if got := len(table.View().Members); got != s.members {
			t.Errorf("step %d: got %d members, want %d", i, got, s.members)
		}
		if got := table.Due(); got != s.due {
			t.Errorf("step %d: due at %d, want %d", i, got, s.due)
		}
	}

	update(t, table, full, 1)
	update(t, table, nil, 1000)
	if table.Tick(table.Due() - 1) {
		t.Error("Tick before the time: got a change")
	}
	if !table.Tick(table.Due()) || len(table.View().Members) != 1 || table.Due() != 0 {
		t.Errorf("Tick at the time: got %s, due %d", text(table.View()), table.Due())
	}
	if table.Tick(1 << 62) {
		t.Error("Tick with nothing held: got a change")
	}

	table = newTable(t, peers.Member{Addr: self}, 0)
	update(t, table, full, 1)
	if !update(t, table, nil, 2) || len(table.View().Members) != 1 {
		t.Error("an empty list without grace: want it at once")
	}
}

// TestAllNodesAgree: whatever each node knows of itself, all rings are equal when discovery lists all.
func TestAllNodesAgree(t *testing.T) {
	for name, list := range map[string][]peers.Member{
		"addresses": addrs("10.0.0.1:1", "10.0.0.2:1", "localhost:1"),
		"IDs":       {{ID: "a", Addr: "10.0.0.1:1", Zone: "z"}, {ID: "b", Addr: "10.0.0.2:1"}, {ID: "c", Addr: "localhost:1", Weight: 2}},
	} {
		var views []*View
		for i, m := range list {
			for _, me := range []peers.Member{
				{Addr: m.Addr}, {ID: m.ID, Addr: m.Addr}, {ID: fmt.Sprint("host-", i), Addr: m.Addr, Zone: "own", Weight: 7},
			} {
				table := newTable(t, me, 0)
				update(t, table, list, 1)
				views = append(views, table.View())
			}
		}
		for _, v := range views {
			if !slices.Equal(v.Members, views[0].Members) || v.Ring.Fingerprint() != views[0].Ring.Fingerprint() {
				t.Errorf("%s: one node sees %s, another %s", name, text(v), text(views[0]))
			}
		}
	}
}

func TestResolve(t *testing.T) {
	table := newTable(t, peers.Member{Addr: self}, 0)
	update(t, table, []peers.Member{{ID: "a", Addr: "a:1"}, {Addr: "b:1"}}, 1)
	for _, c := range []struct {
		id, addr string
		want     string
	}{
		{"a", "a:1", "a"}, {"a", "moved:1", "a"}, {"b", "B:1", "b:1"}, {"b:1", "", "b:1"}, {"c", "c:1", ""}, {"", "", ""}, {"c", "a:1", ""},
	} {
		got := ""
		if i := table.View().Resolve(c.id, c.addr); i >= 0 {
			got = table.View().Members[i].ID
		}
		if got != c.want {
			t.Errorf("Resolve(%q, %q): got %q, want %q", c.id, c.addr, got, c.want)
		}
	}
}
