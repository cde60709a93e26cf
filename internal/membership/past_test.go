package membership

import (
	"slices"
	"testing"

	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

func TestPastRings(t *testing.T) {
	self := peers.Member{ID: "a", Addr: "10.0.0.1:1"}
	b, c := peers.Member{ID: "b", Addr: "10.0.0.2:1"}, peers.Member{ID: "c", Addr: "10.0.0.3:1"}
	table, err := New(self, Pace{Window: 5})
	if err != nil {
		t.Fatal(err)
	}
	set := func(now int64, list ...peers.Member) *View {
		t.Helper()
		if _, err := table.Update(list, nil, now); err != nil {
			t.Fatal(err)
		}
		return table.View()
	}
	first := set(10, self, b, c)
	if v := first; len(v.Past) != 1 || v.Past[0].Ring.Index("a") >= 0 || v.Electorate(10) != 3 {
		t.Fatalf("got %d rings of the past, electorate %d; before the first list it was that of the others", len(v.Past), v.Electorate(10))
	}
	v := set(20, self)
	for _, tt := range []struct {
		view uint64
		now  int64
		want bool
	}{{v.Ring.Fingerprint(), 30, true}, {first.Ring.Fingerprint(), 24, true}, {first.Ring.Fingerprint(), 25, false}, {1, 20, false}} {
		if got := v.Knows(tt.view, tt.now); got != tt.want {
			t.Errorf("Knows(%x) at %d: got %v", tt.view, tt.now, got)
		}
	}
	agrees := ""
	gained := func(v *View, now int64) (n int) {
		t.Helper()
		agree := func(id string) bool { return id == agrees }
		for i := range 1000 {
			if h := uint64(i) * 0x9e3779b97f4a7c15; v.Gained(h, 1, now, agree) {
				n++
			}
		}
		if got := v.Settled(now, agree); got != (n == 0) {
			t.Errorf("settled: %v, with %d of 1000 gained", got, n)
		}
		return n
	}
	// Alone on the ring: it owned a third of it before.
	if got := gained(v, 24); got < 500 || got > 800 {
		t.Errorf("gained %d of 1000, want about two thirds", got)
	}
	agrees = "b"
	if got := gained(v, 24); got < 200 || got > 500 {
		t.Errorf("gained %d of 1000 that do not agree, want about a third", got)
	}
	agrees = ""
	if got := gained(v, 25); got != 0 {
		t.Errorf("gained %d of 1000 after the window, want none", got)
	}
	if got := v.Electorate(24); got != 2 {
		t.Errorf("electorate %d, want half of three", got)
	}
	if got := v.Electorate(25); got != 1 {
		t.Errorf("electorate %d after the window, want 1", got)
	}
	// Lost and regained within the window: not owned all the time.
	for i := range maxPast + 2 {
		list := []peers.Member{self, b}
		if i%2 == 0 {
			list = append(list, c)
		}
		v = set(30, list...)
		if len(v.Past) > maxPast {
			t.Fatalf("%d rings of the past, want at most %d", len(v.Past), maxPast)
		}
	}
	if !v.Blurred(34) || v.Blurred(35) || gained(v, 34) != 1000 {
		t.Error("more changes than are remembered: anything may have been gained, for a window")
	}
	if v := set(100, self, b, peers.Member{ID: "d", Addr: "10.0.0.4:1", Weight: -1}); v.Electorate(200) != 2 {
		t.Errorf("electorate %d, want those that own something", v.Electorate(200))
	}
}

// Who owned a key before this node is found by the ring that the others went by: without this node, as long as it was not on the list.
func TestTheOwnerBefore(t *testing.T) {
	self := peers.Member{ID: "b", Addr: "10.0.0.2:1"}
	a, c, d := peers.Member{ID: "a", Addr: "10.0.0.1:1"}, peers.Member{ID: "c", Addr: "10.0.0.3:1"}, peers.Member{ID: "d", Addr: "10.0.0.4:1"}
	without := func(list ...peers.Member) *ring.Ring {
		var members []ring.Member
		for _, m := range list {
			members = append(members, ring.Member{ID: m.ID, Weight: 1})
		}
		r, err := ring.New(members)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, tt := range map[string]struct {
		lists [][]peers.Member
		want  *ring.Ring
	}{
		"listed from the start":      {[][]peers.Member{{a, self, c}}, without(a, c)},
		"listed later":               {[][]peers.Member{{a, c}, {a, self, c}}, without(a, c)},
		"nobody at first":            {[][]peers.Member{{}, {a, self, c}}, without(a, c)},
		"listed later, with another": {[][]peers.Member{{a, c}, {a, self, c, d}}, without(a, c)},
		"lost and regained":          {[][]peers.Member{{a, self, c}, {a, self, c, d}, {a, self, c}}, without(a, self, c, d)},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t, self, Pace{Window: 5})
			for i, list := range tt.lists {
				update(t, table, list, int64(10+3*i))
			}
			v, now := table.View(), int64(10+3*(len(tt.lists)-1))
			others := 0
			for i := range 1000 {
				h := uint64(i) * 0x9e3779b97f4a7c15
				want := tt.want.Members()[tt.want.Owner(h)].ID
				if want == self.ID {
					want = "" // or an older one
					if name == "lost and regained" {
						continue
					}
				}
				if got := v.Before(h, now); got != want {
					t.Fatalf("%#x: got %q, want %q", h, got, want)
				}
				if want != "" {
					others++
				}
				if got := v.Before(h, now+5); got != "" {
					t.Fatalf("%#x: got %q after the window, want nobody", h, got)
				}
			}
			if others == 0 {
				t.Error("no key had another owner")
			}
		})
	}
}

// A replica that becomes the owner was told all the time; a new one is if one of those that kept the key before passes that on.
func TestKeepersBefore(t *testing.T) {
	self := peers.Member{ID: "b", Addr: "10.0.0.2:1"}
	a, c, d := peers.Member{ID: "a", Addr: "10.0.0.1:1"}, peers.Member{ID: "c", Addr: "10.0.0.3:1"}, peers.Member{ID: "d", Addr: "10.0.0.4:1"}
	table := newTable(t, self, Pace{Window: 5})
	update(t, table, []peers.Member{a, self, c, d}, 10)
	update(t, table, []peers.Member{self, c, d}, 20) // a has crashed
	v, before := table.View(), table.View().Past[len(table.View().Past)-1].Ring
	own := 0
	for i := range 1000 {
		h := uint64(i) * 0x9e3779b97f4a7c15
		var others []string
		kept := false
		for _, m := range before.Prefer(nil, h, 2) {
			if id := before.Members()[m].ID; id == self.ID {
				kept = true
			} else {
				others = append(others, id)
			}
		}
		if before.Members()[before.Owner(h)].ID == self.ID {
			continue
		}
		if got := v.KeptBefore(h, 2, 24); !slices.Equal(got, others) {
			t.Fatalf("%#x: got %v, want %v", h, got, others)
		}
		if got := v.Gained(h, 2, 24, func(string) bool { return false }); got == kept {
			t.Fatalf("%#x: gained %v, and kept before %v", h, got, kept)
		}
		if got := v.Gained(h, 2, 24, func(id string) bool { return id == others[len(others)-1] }); got {
			t.Fatalf("%#x: gained although %s passes on what it is told", h, others[len(others)-1])
		}
		if kept {
			own++
		}
	}
	if own == 0 {
		t.Error("it was no replica of anything")
	}
}
