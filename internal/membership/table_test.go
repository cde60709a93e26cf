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

func newTable(t *testing.T, me peers.Member, pace Pace) *Table {
	t.Helper()
	table, err := New(me, pace)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func update(t *testing.T, table *Table, list []peers.Member, now int64) bool {
	t.Helper()
	changed, err := table.Update(list, nil, now)
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
				table := newTable(t, c.me, Pace{})
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
	table := newTable(t, peers.Member{Addr: self}, Pace{})
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
			changed, err := table.Update(c.list, nil, 2)
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
		if _, err := New(peers.Member{Addr: addr}, Pace{}); err == nil {
			t.Errorf("New with address %q: want an error", addr)
		}
	}
}

func TestUnchangedListsChangeNothing(t *testing.T) {
	table := newTable(t, peers.Member{Addr: self}, Pace{})
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

// Case discovery-1. A list that lost too many members at once is believed when it has stood.
func TestAShrunkenListIsHeld(t *testing.T) {
	const hold = 10 * time.Second
	a, b, c, d := peers.Member{ID: "a", Addr: self}, peers.Member{ID: "b", Addr: "b:1"}, peers.Member{ID: "c", Addr: "c:1"}, peers.Member{ID: "d", Addr: "d:1"}
	list := func(m ...peers.Member) []peers.Member { return m }
	for name, x := range map[string]struct {
		from, to []peers.Member
		leaving  string
		held     bool
	}{
		"nobody where there was nobody": {list(), list(a), "", false},
		"empty":                         {list(a, b), list(), "", true},
		"this node alone":               {list(a, b), list(a), "", true},
		"empty, though one leaves":      {list(a, b), list(), "b", true},
		"alone, the other leaves":       {list(a, b), list(a), "b", false},
		"half":                          {list(a, b, c, d), list(a, b), "", false},
		"half, this node gone":          {list(a, b, c, d), list(c, d), "", false},
		"a quarter":                     {list(a, b, c, d), list(d), "", true},
		"a third, never listed":         {list(b, c, d), list(b), "", true},
		"a quarter, one leaves":         {list(a, b, c, d), list(d), "b", true},
		"a quarter, two leave":          {list(a, b, c, d), list(d), "b c", false},
		"all leave":                     {list(a, b, c, d), list(a), "b c d", false},
		"leaving and still there":       {list(a, b, c, d), list(d), "d", true},
		"others instead":                {list(a, b, c, d), list(a, peers.Member{Addr: "x:1"}, peers.Member{Addr: "y:1"}), "", false},
		"more":                          {list(a, b), list(a, b, c), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t, a, Pace{Hold: hold})
			update(t, table, x.from, 1)
			leaving := func(id string) bool { return slices.Contains(strings.Fields(x.leaving), id) }
			changed, err := table.Update(x.to, leaving, 100)
			if err != nil {
				t.Fatal(err)
			}
			if got := table.Held() != nil; got != x.held || changed == x.held && !slices.Equal(x.to, list(a)) || table.due > 0 != x.held {
				t.Errorf("held %v, changed %v, due at %d; want held %v", got, changed, table.due, x.held)
			}
			if !x.held {
				return
			}
			if table.Tick(99 + int64(hold)) {
				t.Error("Tick before the time: got a change")
			}
			if !table.Tick(100+int64(hold)) || table.Held() != nil || table.due != 0 {
				t.Errorf("Tick at the time: got %s, due at %d", text(table.View()), table.due)
			}
			if table.Tick(1 << 62) {
				t.Error("Tick with nothing held: got a change")
			}
		})
	}
}

// Case discovery-1.
func TestWhileAListIsHeld(t *testing.T) {
	const hold = 10 * time.Second
	table := newTable(t, peers.Member{Addr: self}, Pace{Hold: hold})
	full := addrs(self, "b:1", "c:1", "d:1", "e:1")
	update(t, table, full, 1)
	steps := []struct {
		list    []peers.Member
		now     int64
		members int
		due     int64
	}{
		{nil, 100, 5, 100 + int64(hold)},
		{addrs(self), 200, 5, 100 + int64(hold)}, // alone is as empty, and the time goes on
		{full, 300, 5, 0},                        // it was a hiccup
		{nil, 400, 5, 400 + int64(hold)},
		{addrs(self, "b:1"), 500, 5, 400 + int64(hold)}, // better, but still too few
		{addrs(self, "b:1", "c:1"), 600, 3, 0},          // enough: at once
		{nil, 700, 3, 700 + int64(hold)},
		{nil, 700 + int64(hold), 1, 0},
	}
	for i, s := range steps {
		update(t, table, s.list, s.now)
		if got := len(table.View().Members); got != s.members {
			t.Errorf("step %d: got %d members, want %d", i, got, s.members)
		}
		if got := table.due; got != s.due {
			t.Errorf("step %d: due at %d, want %d", i, got, s.due)
		}
	}

	table = newTable(t, peers.Member{Addr: self}, Pace{})
	update(t, table, full, 1)
	if !update(t, table, nil, 2) || len(table.View().Members) != 1 {
		t.Error("an empty list where nothing is held: want it at once")
	}
}

// Changes that come together are one, and changes keep their distance.
func TestChangesSettle(t *testing.T) {
	const ms = int64(time.Millisecond)
	table := newTable(t, peers.Member{Addr: self}, Pace{Hold: 10 * time.Second, Settle: 200 * time.Millisecond, Space: time.Second})
	base := addrs(self, "b:1", "c:1")
	grown := addrs(self, "b:1", "c:1", "d:1")
	for i, s := range []struct {
		list    []peers.Member // nil: Tick
		now     int64          // ms
		members int
		due     int64 // ms
	}{
		{base, 5000, 3, 0}, // the first list: at once
		{grown, 5100, 3, 6000},
		{nil, 5999, 3, 6000},
		{nil, 6000, 4, 0},
		{base, 9000, 4, 9200},
		{addrs(self, "b:1"), 9100, 4, 9200}, // comes with it
		{nil, 9199, 4, 9200},
		{nil, 9250, 2, 0},
		{base, 20000, 2, 20200},
		{addrs(self, "b:1"), 20100, 2, 0}, // it only blinked
		{base, 20300, 2, 20500},
		{addrs(self), 20400, 2, 30400}, // too few now: the time of the hold counts
		{base, 20450, 2, 20650},
		{nil, 20700, 3, 0},
	} {
		if s.list == nil {
			table.Tick(s.now * ms)
		} else {
			update(t, table, s.list, s.now*ms)
		}
		if got := len(table.View().Members); got != s.members || table.due != s.due*ms {
			t.Errorf("step %d: got %d members, due at %d ms, want %d, %d", i, got, table.due/ms, s.members, s.due)
		}
	}
}

// Case ring-7. Whatever comes, and however fast: the last list is in use when its time has come, and changes keep their distance.
func TestTheLastListWins(t *testing.T) {
	pace := Pace{Hold: 10 * time.Second, Settle: 200 * time.Millisecond, Space: time.Second}
	random := rand.New(rand.NewPCG(7, 7))
	all := addrs(self, "b:1", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1")
	for range 5 {
		table := newTable(t, peers.Member{Addr: self}, pace)
		update(t, table, all, 1)
		now, last, changes := int64(1), int64(1), 0
		changed := func(yes bool) {
			if !yes {
				return
			}
			if changes++; now-last < int64(pace.Space) {
				t.Fatalf("two changes within %v", time.Duration(now-last))
			}
			last = now
		}
		var want []peers.Member
		for range 50 {
			now += random.Int64N(int64(300 * time.Millisecond))
			want = nil
			for _, m := range all {
				if random.IntN(3) > 0 {
					want = append(want, m)
				}
			}
			changed(update(t, table, want, now))
			now += random.Int64N(int64(300 * time.Millisecond))
			changed(table.Tick(now))
		}
		wait := pace.Space
		if table.Held() != nil {
			wait = pace.Hold
		}
		now += int64(wait)
		changed(table.Tick(now))
		fresh := newTable(t, peers.Member{Addr: self}, Pace{})
		update(t, fresh, want, 1)
		if got, want := text(table.View()), text(fresh.View()); got != want {
			t.Fatalf("%v after the last list: got %s, want %s", wait, got, want)
		}
		if changes < 5 {
			t.Fatalf("got %d changes in 15 s, want them not to starve", changes)
		}
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
				table := newTable(t, me, Pace{})
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
	table := newTable(t, peers.Member{Addr: self}, Pace{})
	update(t, table, []peers.Member{{ID: "a", Addr: "a:1"}, {Addr: "b:1"}}, 1)
	for _, c := range []struct {
		id, addr string
		want     string
	}{
		{"a", "a:1", "a"},
		{"a", "moved:1", "a"},
		{"b", "B:1", "b:1"},
		{"b:1", "", "b:1"},
		{"c", "c:1", ""},
		{"", "", ""},
		{"c", "a:1", ""},
		{"a:1", "A:1", "a"},
		{"c:1", "c:1", ""},
		{"b:1", "a:1", "b:1"},
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

// A list that lost a member which did not say that it stops has to stand for the grace; one that has it back changes nothing.
func TestGrace(t *testing.T) {
	a, b, c := peers.Member{ID: "a", Addr: "10.0.0.1:1"}, peers.Member{ID: "b", Addr: "10.0.0.2:1"}, peers.Member{ID: "c", Addr: "10.0.0.3:1"}
	table, err := New(a, Pace{Settle: 2, Grace: 30})
	if err != nil {
		t.Fatal(err)
	}
	update := func(now int64, leaving bool, list ...peers.Member) {
		t.Helper()
		if _, err := table.Update(list, func(string) bool { return leaving }, now); err != nil {
			t.Fatal(err)
		}
	}
	want := func(now int64, members int) {
		t.Helper()
		table.Tick(now)
		if got := len(table.View().Members); got != members {
			t.Fatalf("at %d: got %d members, want %d", now, got, members)
		}
	}
	update(0, false, a, b, c)
	want(0, 3)
	update(10, false, a, b)
	want(39, 3)
	update(39, false, a, b, c)
	want(100, 3)
	update(110, false, a, b)
	update(120, false, a, b)
	want(139, 3)
	want(140, 2)
	update(150, false, a, b, c)
	want(152, 3)
	update(160, true, a, b)
	want(162, 2)
}
