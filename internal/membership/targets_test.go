package membership

import (
	"slices"
	"testing"

	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

func TestTargets(t *testing.T) {
	table, err := New(peers.Member{ID: "a", Addr: "10.0.0.1:1"}, Pace{Window: 5})
	if err != nil {
		t.Fatal(err)
	}
	set := func(now int64, ids string) *View {
		t.Helper()
		var list []peers.Member
		for i, id := range ids {
			list = append(list, peers.Member{ID: string(id), Addr: "10.0.0." + string('1'+rune(i)) + ":1"})
		}
		if _, err := table.Update(list, nil, now); err != nil {
			t.Fatal(err)
		}
		return table.View()
	}
	five := set(10, "abcde")
	v := set(20, "abcd")
	nobody := func(string) bool { return false }
	moved, stayed := 0, 0
	for i := range 1000 {
		h := uint64(i) * 0x9e3779b97f4a7c15
		was, is := five.Members[five.Ring.Owner(h)].ID, v.Members[v.Ring.Owner(h)].ID
		want := []Target{{is, true}}
		if was != is {
			want = append(want, Target{was, true})
			moved++
		} else {
			stayed++
		}
		if got := v.Targets(nil, h, 1, nobody, nobody, 24); !slices.Equal(got, want) {
			t.Fatalf("got %v, want its owners of the last window, %v", got, want)
		}
		if got := v.Targets(nil, h, 1, nobody, nobody, 25); !slices.Equal(got, want[:1]) {
			t.Fatalf("got %v after the window, want the owner %s", got, is)
		}
		if was == is {
			left := slices.Clone(want)
			for _, v := range []*View{v, five} { // it may not know yet that e is gone
				r := v.Without(is)
				if heir := (Target{r.Members()[r.Owner(h)].ID, true}); !slices.Contains(left, heir) {
					left = append(left, heir)
				}
			}
			if got := v.Targets(nil, h, 1, nobody, func(id string) bool { return id == is }, 24); !slices.Equal(got, left) {
				t.Fatalf("got %v as %s leaves, want %v", got, is, left)
			}
		}
		for _, m := range v.Ring.Prefer(nil, h, 3)[1:] {
			want = append(want, Target{v.Members[m].ID, false})
		}
		if got := v.Targets(nil, h, 1, func(id string) bool { return id == was }, nobody, 24); !slices.Equal(got, want) {
			t.Fatalf("got %v with %s suspect, want %v", got, was, want)
		}
	}
	if moved < 100 || stayed < 500 {
		t.Errorf("%d keys moved, %d stayed", moved, stayed)
	}
	// A stand-in that is an owner of the past counts.
	back := set(21, "abcde")
	for i := range 1000 {
		h := uint64(i) * 0x9e3779b97f4a7c15
		got := back.Targets(nil, h, 1, func(string) bool { return true }, nobody, 22)
		for j, a := range got {
			if slices.ContainsFunc(got[:j], func(b Target) bool { return a.ID == b.ID }) {
				t.Fatalf("%v names %s twice", got, a.ID)
			}
		}
	}
}

func TestMajority(t *testing.T) {
	table, err := New(peers.Member{ID: "a", Addr: "10.0.0.1:1"}, Pace{Window: 5})
	if err != nil {
		t.Fatal(err)
	}
	member := func(id string, weight int) peers.Member {
		return peers.Member{ID: id, Addr: "10.0.0." + string('1'+rune(id[0]-'a')) + ":1", Weight: weight}
	}
	set := func(now int64, list ...peers.Member) *View {
		t.Helper()
		if _, err := table.Update(list, nil, now); err != nil {
			t.Fatal(err)
		}
		return table.View()
	}
	v := set(10, member("a", 1), member("b", 1), member("c", 1), member("d", 1), member("e", -1))
	check := func(v *View, now int64, those string, want bool) {
		t.Helper()
		if got := v.Majority(func(id string) bool { return slices.Contains([]byte(those), id[0]) }, now); got != want {
			t.Errorf("%q at %d: got %v, want %v", those, now, got, want)
		}
	}
	check(v, 10, "abc", true)
	check(v, 10, "ab", false)
	check(v, 10, "abe", false) // e gives no lease that counts
	v = set(20, member("a", 1), member("b", 1))
	check(v, 24, "ab", false) // c and d may go by the ring of the past
	check(v, 24, "abc", true)
	check(v, 25, "ab", true)
	check(v, 25, "a", false)
}

// Replicas are told as the owner is, and have to confirm.
func TestReplicasAreTargets(t *testing.T) {
	table, err := New(peers.Member{ID: "a", Addr: "10.0.0.1:1"}, Pace{Window: 5})
	if err != nil {
		t.Fatal(err)
	}
	var list []peers.Member
	for i, id := range "abcde" {
		list = append(list, peers.Member{ID: string(id), Addr: "10.0.0." + string('1'+rune(i)) + ":1"})
	}
	update(t, table, list, 10)
	update(t, table, list[:4], 20)
	v, nobody, all := table.View(), func(string) bool { return false }, func(string) bool { return true }
	for i := range 1000 {
		h := uint64(i) * 0x9e3779b97f4a7c15
		var want []Target
		for _, r := range []*ring.Ring{v.Ring, v.Past[len(v.Past)-1].Ring} {
			for _, m := range r.Prefer(nil, h, 2) {
				if to := (Target{r.Members()[m].ID, true}); !slices.Contains(want, to) {
					want = append(want, to)
				}
			}
		}
		if got := v.Targets(nil, h, 2, nobody, nobody, 24); !slices.Equal(got, want) {
			t.Fatalf("got %v, want the keepers by both rings, %v", got, want)
		}
		for _, m := range v.Ring.Prefer(nil, h, 4)[2:] {
			if id := v.Members[m].ID; !slices.Contains(want, Target{id, true}) {
				want = append(want, Target{id, false})
			}
		}
		if got := v.Targets(nil, h, 2, all, nobody, 24); !slices.Equal(got, want) {
			t.Fatalf("got %v, want two stand-ins more, %v", got, want)
		}
	}
}
