package ring

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// naive is the second implementation that the tests compare with: it keeps each member's points unsorted and measures
// distances to all of them.
type naive struct {
	members []Member
	points  [][]uint64
}

func newNaive(members []Member) *naive {
	n := &naive{}
	for _, m := range members {
		if m.Weight < 0 {
			continue
		}
		var points []uint64
		for i := range 1024 * max(m.Weight, 1) {
			points = append(points, xxhash.Sum64String(m.ID+string(binary.LittleEndian.AppendUint32(nil, uint32(i))))/4096)
		}
		n.members = append(n.members, m)
		n.points = append(n.points, points)
	}
	return n
}

// prefer returns the IDs of the whole preference list.
func (n *naive) prefer(hash uint64) []string {
	type candidate struct {
		distance uint64
		id, zone string
		round    int
	}
	all := make([]candidate, 0, len(n.members))
	for i, m := range n.members {
		nearest := uint64(1<<64 - 1)
		for _, at := range n.points[i] {
			nearest = min(nearest, (at-hash/4096)%(1<<52))
		}
		all = append(all, candidate{distance: nearest, id: m.ID, zone: m.Zone})
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if a.distance < b.distance || a.distance == b.distance && a.id < b.id {
			return -1
		}
		return 1
	})
	rounds := map[string]int{}
	for i := range all {
		all[i].round = rounds[all[i].zone]
		rounds[all[i].zone]++
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return a.round - b.round })
	ids := make([]string, len(all))
	for i, c := range all {
		ids[i] = c.id
	}
	return ids
}

// named returns n members of equal weight; format has one verb for their number.
func named(format string, n int) []Member {
	members := make([]Member, n)
	for i := range members {
		members[i].ID = fmt.Sprintf(format, i)
	}
	return members
}

func mustNew(tb testing.TB, members []Member) *Ring {
	tb.Helper()
	r, err := New(members)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// newRand returns numbers that are the same in every run.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// ids translates a preference list.
func ids(r *Ring, list []int) []string {
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = r.Members()[m].ID
	}
	return names
}

func TestRingAgreesWithTheNaiveOne(t *testing.T) {
	random := newRand(1)
	for size := range 13 {
		for _, zones := range []int{1, 2, 3, 20} {
			members := named("node-%d", size)
			for i := range members {
				members[i].Zone = fmt.Sprint(random.IntN(zones))
				members[i].Weight = random.IntN(4) - 1
			}
			r, want := mustNew(t, members), newNaive(members)
			hashes := []uint64{0, 1, 1<<64 - 1}
			for range 50 {
				hashes = append(hashes, random.Uint64())
			}
			for range 20 { // on a point, and beside it
				if len(r.points) > 0 {
					at := r.points[random.IntN(len(r.points))].at() << memberBits
					hashes = append(hashes, at-1, at, at+1<<memberBits-1, at+1<<memberBits)
				}
			}
			for _, h := range hashes {
				checkAgainst(t, r, want.prefer(h), h)
			}
		}
	}
}

func checkAgainst(t *testing.T, r *Ring, want []string, hash uint64) {
	t.Helper()
	if got := ids(r, r.Prefer(nil, hash, 0)); !slices.Equal(got, want) {
		t.Fatalf("Prefer(%#x, all) of %v: got %v, want %v", hash, r.Members(), got, want)
	}
	for n := 1; n <= len(want)+1; n++ {
		if got, want := ids(r, r.Prefer(nil, hash, n)), want[:min(n, len(want))]; !slices.Equal(got, want) {
			t.Fatalf("Prefer(%#x, %d) of %v: got %v, want %v", hash, n, r.Members(), got, want)
		}
	}
	owner := r.Owner(hash)
	if len(want) == 0 {
		if owner != -1 {
			t.Fatalf("Owner(%#x) of %v: got %d, want -1", hash, r.Members(), owner)
		}
		return
	}
	if got := r.Members()[owner].ID; got != want[0] {
		t.Fatalf("Owner(%#x) of %v: got %s, want %s", hash, r.Members(), got, want[0])
	}
}

// inOrder ranges over a map in the order of its keys.
func inOrder[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
