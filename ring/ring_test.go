package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// shuffled returns the members in another order.
func shuffled(random *rand.Rand, members []Member) []Member {
	members = slices.Clone(members)
	random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return members
}

func userHashes(n int) []uint64 {
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = Hash("user", fmt.Sprintf("user:%d", i+1))
	}
	return hashes
}

// sameRing compares owners and preference lists of all hashes.
func sameRing(t *testing.T, got, want *Ring, hashes []uint64) {
	t.Helper()
	if got.Fingerprint() != want.Fingerprint() {
		t.Fatalf("Fingerprint: got %#x, want %#x", got.Fingerprint(), want.Fingerprint())
	}
	if !slices.Equal(got.Members(), want.Members()) {
		t.Fatalf("Members: got %v, want %v", got.Members(), want.Members())
	}
	a, b := make([]int, 0, 4096), make([]int, 0, 4096)
	for _, h := range hashes {
		if got, want := got.Owner(h), want.Owner(h); got != want {
			t.Fatalf("Owner(%#x): got %d, want %d", h, got, want)
		}
		a, b = got.Prefer(a[:0], h, 3), want.Prefer(b[:0], h, 3)
		if !slices.Equal(a, b) {
			t.Fatalf("Prefer(%#x, 3): got %v, want %v", h, a, b)
		}
	}
}

// Case ring-1.
func TestOrderOfTheListDoesNotMatter(t *testing.T) {
	members := named("10.0.0.%d:7946", 10)
	for i := range members {
		members[i].Zone = fmt.Sprint("z", i%3)
	}
	want, hashes, random := mustNew(t, members), userHashes(50_000), newRand(2)
	for range 20 {
		sameRing(t, mustNew(t, shuffled(random, members)), want, hashes)
	}
}

// TestNewKeepsNothingOfTheList: the caller may go on using its slice.
func TestNewKeepsNothingOfTheList(t *testing.T) {
	members := []Member{{ID: "b"}, {ID: "a"}}
	r := mustNew(t, members)
	if members[0].ID != "b" {
		t.Errorf("New sorted the caller's list: %v", members)
	}
	members[0].ID = "c"
	if got, want := r.Members(), []Member{{ID: "a"}, {ID: "b"}}; !slices.Equal(got, want) {
		t.Errorf("Members after a change of the caller's list: got %v, want %v", got, want)
	}
}

// Case ring-3.
func TestCollidingPointsHaveOneOrder(t *testing.T) {
	hashes, random := userHashes(200), newRand(3)
	for name, hash := range map[string]func([]byte) uint64{
		"constant":         func([]byte) uint64 { return 1 << 40 },
		"a few places":     func(label []byte) uint64 { return uint64(label[len(label)-4]%7) << 61 },
		"at the end":       func([]byte) uint64 { return math.MaxUint64 },
		"at the beginning": func([]byte) uint64 { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			members := named("node-%d", 20)
			for i := range members {
				members[i].Zone = fmt.Sprint("z", i%4)
			}
			want, err := build(members, hash)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				r, err := build(shuffled(random, members), hash)
				if err != nil {
					t.Fatal(err)
				}
				sameRing(t, r, want, hashes)
			}
			if got := want.Members()[want.Owner(hashes[0])].ID; got != "node-0" {
				t.Errorf("owner where all members collide: got %s, want node-0, the first ID", got)
			}
			if got := len(want.Prefer(nil, hashes[0], 0)); got != len(members) {
				t.Errorf("length of the preference list: got %d, want %d", got, len(members))
			}
		})
	}
}

// Case ring-4. The bounds are the case's for P = PointsPerWeight: 3.5/sqrt(P) up to 10 members, 5/sqrt(P) and 5 % at 50.
func TestSharesAreEven(t *testing.T) {
	hashes := userHashes(100_000)
	for _, format := range []string{"10.0.16.%d:11211", "pod-%d.svc:7946", "6ba7b810-9dad-11d1-80b4-00c04fd4%04x"} {
		for _, n := range []int{2, 3, 5, 10, 50, 100} {
			r := mustNew(t, named(format, n))
			bound := 3.5 / math.Sqrt(PointsPerWeight)
			if n > 10 {
				bound = 5/math.Sqrt(PointsPerWeight) + 0.05
			}
			counts := make([]float64, n)
			for _, h := range hashes {
				counts[r.Owner(h)]++
			}
			sum, largest := 0.0, 0.0
			for i, share := range r.Shares() {
				sum += share
				largest = max(largest, share*float64(n))
				if off := math.Abs(counts[i]/float64(len(hashes))*float64(n) - 1); off > bound {
					t.Errorf("%s, %d members: %s owns %.3f times the mean of the keys, want within %.3f of 1",
						format, n, r.Members()[i].ID, off+1, bound)
				}
				// The keys are a sample of the share: five standard deviations.
				if got, want := counts[i]/float64(len(hashes)), share; math.Abs(got-want) > 5*math.Sqrt(want/float64(len(hashes))) {
					t.Errorf("%s, %d members: Shares says %.5f of %s, and it owns %.5f of the keys", format, n, want, r.Members()[i].ID, got)
				}
			}
			if math.Abs(sum-1) > 1e-9 {
				t.Errorf("%s, %d members: the shares add up to %v, want 1", format, n, sum)
			}
			if n == 100 && largest > 1.10 {
				t.Errorf("%s: largest of 100 shares is %.3f times the mean, want at most 1.10", format, largest)
			}
			t.Logf("%s, %d members: largest share %.3f times the mean", format, n, largest)
		}
	}
}

func TestSharesFollowWeights(t *testing.T) {
	r := mustNew(t, []Member{{ID: "a"}, {ID: "b", Weight: 3}, {ID: "c", Weight: -1}, {ID: "d", Weight: 4}})
	want := []float64{1. / 8, 3. / 8, 0, 4. / 8}
	for i, got := range r.Shares() {
		if math.Abs(got-want[i]) > 0.1*want[i] {
			t.Errorf("share of %s: got %.4f, want %.4f within 10 %%", r.Members()[i].ID, got, want[i])
		}
	}
	if got := r.Ideals(); !slices.Equal(got, want) {
		t.Errorf("Ideals: got %v, want %v", got, want)
	}
}

// Case ring-5.
func TestJoinMovesKeysOnlyToTheNewcomer(t *testing.T) {
	hashes := userHashes(100_000)
	for _, n := range []int{3, 5, 10, 24} {
		const sets = 20
		sum := 0.0
		for set := range sets {
			members := named(fmt.Sprintf("set-%d-node-%%d", set), n+1)
			small, large := mustNew(t, members[:n]), mustNew(t, members)
			newcomer := members[n].ID
			sum += moves(t, small, large, newcomer, hashes)
		}
		if got, want := sum/sets, 1/float64(n+1); math.Abs(got-want) > 0.08*want {
			t.Errorf("%d members: a join moves %.4f of the keys on average, want %.4f within 8 %%", n, got, want)
		}
	}
}

// moves returns which part of the keys has another owner in large than in small, and checks that this is the newcomer, that
// the second of the preference list changes only to the newcomer or to who was first, and that Diff says the same.
func moves(t *testing.T, small, large *Ring, newcomer string, hashes []uint64) float64 {
	t.Helper()
	join, leave := Compare(small, large), Compare(large, small)
	moved := 0
	for i, h := range hashes {
		if i%20 > 0 { // by far the most keys: owners only
			if _, after, did := join.Owners(h); did {
				moved++
				if got := large.Members()[after].ID; got != newcomer {
					t.Fatalf("%#x moved to %s, want to %s alone", h, got, newcomer)
				}
			}
			continue
		}
		before, after := ids(small, small.Prefer(nil, h, 2)), ids(large, large.Prefer(nil, h, 2))
		if _, _, got := join.Owners(h); got != (before[0] != after[0]) {
			t.Fatalf("Owners(%#x) at the join: moved %v, owners %s and %s", h, got, before[0], after[0])
		}
		if _, _, got := leave.Owners(h); got != (before[0] != after[0]) {
			t.Fatalf("Owners(%#x) when it leaves: moved %v, owners %s and %s", h, got, after[0], before[0])
		}
		if before[0] != after[0] {
			moved++
			if after[0] != newcomer || after[1] != before[0] {
				t.Fatalf("%#x moved from %v to %v, want to %s alone", h, before, after, newcomer)
			}
		} else if before[1] != after[1] && after[1] != newcomer {
			t.Fatalf("the second of %#x moved from %v to %v, want to %s alone", h, before, after, newcomer)
		}
	}
	part, n := float64(moved)/float64(len(hashes)), len(large.Members())
	if want := 1 / float64(n); math.Abs(part-want) > 0.4*want {
		t.Errorf("%s joins %d others: %.4f of the keys moved, want %.4f within 40 %%", newcomer, n-1, part, want)
	}
	share := large.Shares()[large.Index(newcomer)]
	for _, d := range []*Diff{join, leave} {
		if got := d.Moved(); math.Abs(got-share) > 1e-9 {
			t.Errorf("Moved: got %v, want the newcomer's share %v", got, share)
		}
	}
	return part
}

// Case ring-6.
func TestPreferenceListsAreDistinctAndComplete(t *testing.T) {
	hashes := userHashes(1_000)
	for _, size := range []int{1, 2, 3, 5} {
		for name, zone := range map[string]func(i int) string{
			"no zones":       func(int) string { return "" },
			"one zone":       func(int) string { return "z" },
			"two zones":      func(i int) string { return fmt.Sprint("z", i%2) },
			"zone each":      func(i int) string { return fmt.Sprint("z", i) },
			"some have none": func(i int) string { return strings.Repeat("z", i%2) },
		} {
			members := named("node-%d", size)
			zones := map[string]bool{}
			for i := range members {
				members[i].Zone = zone(i)
				zones[zone(i)] = true
			}
			// A zone whose only member owns nothing does not count.
			members = append(members, Member{ID: "client", Zone: "elsewhere", Weight: -1})
			r := mustNew(t, members)
			t.Run(fmt.Sprintf("%d members, %s", size, name), func(t *testing.T) {
				for n := range 7 {
					for _, h := range hashes {
						checkPreference(t, r, h, n, size, len(zones))
					}
				}
			})
		}
	}
}

func checkPreference(t *testing.T, r *Ring, hash uint64, n, size, zones int) {
	t.Helper()
	prefix := []int{-7}
	began := time.Now()
	list := r.Prefer(prefix, hash, n)
	if took := time.Since(began); took > 100*time.Millisecond { // the case says 1 ms; a loaded machine is allowed more
		t.Errorf("Prefer took %v", took)
	}
	if list[0] != -7 {
		t.Fatalf("Prefer changed what dst held: %v", list)
	}
	list = list[1:]
	want := size
	if n > 0 {
		want = min(n, size)
	}
	members, seen := map[int]bool{}, map[string]bool{}
	for _, m := range list {
		members[m] = true
		seen[r.Members()[m].Zone] = true
	}
	switch {
	case len(list) != want:
		t.Fatalf("Prefer(%#x, %d): %d members, want %d", hash, n, len(list), want)
	case len(members) != want:
		t.Fatalf("Prefer(%#x, %d): %v is not distinct", hash, n, list)
	case list[0] != r.Owner(hash):
		t.Fatalf("Prefer(%#x, %d): first is %d, want the owner %d", hash, n, list[0], r.Owner(hash))
	case len(seen) != min(want, zones):
		t.Fatalf("Prefer(%#x, %d): %d zones, want %d", hash, n, len(seen), min(want, zones))
	}
}

// Case ring-8.
func TestNonsenseIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		members []Member
		want    []string // parts of the error
	}{
		"duplicate ID": {[]Member{{ID: "a"}, {ID: "b"}, {ID: "a", Zone: "z"}}, []string{`more than one member with ID "a"`}},
		"empty ID":     {[]Member{{ID: ""}, {ID: "b"}}, []string{"without ID"}},
		"huge weight":  {[]Member{{ID: "a", Weight: math.MaxInt32}}, []string{"Weight 2147483647", `"a"`}},
		"weight sum":   {[]Member{{ID: "a", Weight: MaxWeight}, {ID: "b"}}, []string{"add up to 4097"}},
		"crowd":        {named("n%d", MaxMembers+1), []string{"4097 members"}},
		"all of it":    {[]Member{{}, {ID: "b", Weight: math.MaxInt}, {ID: "b"}}, []string{"without ID", "Weight", "more than one"}},
		"long ID":      {[]Member{{ID: strings.Repeat("a", 1000), Weight: math.MaxInt}}, []string{`"` + strings.Repeat("a", 64) + `"`}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := New(c.members)
			if err == nil {
				t.Fatalf("New: got %v, want an error", r)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("New: got error %q, want one with %q", err, want)
				}
			}
		})
	}
}

func TestRingWithoutOwners(t *testing.T) {
	empty := mustNew(t, nil)
	clients := mustNew(t, []Member{{ID: "a", Weight: -1}, {ID: "b", Weight: math.MinInt}})
	for name, r := range map[string]*Ring{"empty": empty, "clients": clients} {
		for _, h := range []uint64{0, 1 << 63, math.MaxUint64} {
			if got := r.Owner(h); got != -1 {
				t.Errorf("%s: Owner(%#x): got %d, want -1", name, h, got)
			}
			if got := r.Prefer([]int{9}, h, 2); !slices.Equal(got, []int{9}) {
				t.Errorf("%s: Prefer(%#x): got %v, want nothing added", name, h, got)
			}
		}
		if got, want := r.Shares(), make([]float64, len(r.Members())); !slices.Equal(got, want) {
			t.Errorf("%s: Shares: got %v, want %v", name, got, want)
		}
	}
	one := mustNew(t, named("n%d", 1))
	if got := Compare(empty, clients).Moved(); got != 0 {
		t.Errorf("Moved from nobody to nobody: got %v, want 0", got)
	}
	if got := Compare(empty, one).Moved(); got != 1 {
		t.Errorf("Moved from nobody: got %v, want 1", got)
	}
	if before, after, moved := Compare(one, clients).Owners(5); before != 0 || after != -1 || !moved {
		t.Errorf("Owners when all have gone: got %d, %d, %v, want 0, -1, true", before, after, moved)
	}
	if before, after, moved := Compare(clients, empty).Owners(5); before != -1 || after != -1 || moved {
		t.Errorf("Owners of nobody: got %d, %d, %v, want -1, -1, false", before, after, moved)
	}
}

func TestIndex(t *testing.T) {
	r := mustNew(t, []Member{{ID: "b"}, {ID: "a", Weight: -1}, {ID: "c"}})
	for id, want := range map[string]int{"a": 0, "b": 1, "c": 2, "": -1, "bb": -1, "d": -1} {
		if got := r.Index(id); got != want {
			t.Errorf("Index(%q): got %d, want %d", id, got, want)
		}
	}
}

func TestFingerprintCoversWhatDecides(t *testing.T) {
	base := []Member{{ID: "a", Zone: "z"}, {ID: "b"}}
	want := mustNew(t, base).Fingerprint()
	for name, members := range map[string][]Member{
		"weight spelled out": {{ID: "a", Zone: "z", Weight: 1}, {ID: "b"}},
		"a client more":      {{ID: "a", Zone: "z"}, {ID: "b"}, {ID: "c", Weight: -1}},
	} {
		if got := mustNew(t, members).Fingerprint(); got != want {
			t.Errorf("%s: got %#x, want %#x as before", name, got, want)
		}
	}
	seen := map[uint64]string{want: "base"}
	for name, members := range map[string][]Member{
		"empty":          nil,
		"other zone":     {{ID: "a", Zone: "y"}, {ID: "b"}},
		"zone elsewhere": {{ID: "a"}, {ID: "b", Zone: "z"}},
		"other weight":   {{ID: "a", Zone: "z", Weight: 2}, {ID: "b"}},
		"one less":       {{ID: "a", Zone: "z"}},
		"one more":       {{ID: "a", Zone: "z"}, {ID: "b"}, {ID: "c"}},
		"other ID":       {{ID: "a", Zone: "z"}, {ID: "bb"}},
		"cut elsewhere":  {{ID: "az"}, {ID: "b"}},
	} {
		got := mustNew(t, members).Fingerprint()
		if other, ok := seen[got]; ok || got == 0 {
			t.Errorf("%s: got %#x, want one that differs from %q", name, got, other)
		}
		seen[got] = name
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	r := mustNew(t, named("node-%d", 100))
	dst := make([]int, 0, 100)
	if got := testing.AllocsPerRun(1000, func() {
		h := Hash("product", "tenant:{8812}:orders")
		h += Hash("product", "8812")
		dst = r.Prefer(dst[:0], h+uint64(r.Owner(h)), 3)
	}); got != 0 {
		t.Errorf("allocations for a lookup: got %v, want 0", got)
	}
}
