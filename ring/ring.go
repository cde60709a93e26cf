package ring

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

const (
	// PointsPerWeight is how many places on the ring a member of weight 1 has. More are fairer and cost memory (about 15 bytes
	// each) and time when the ring is built (about 0.1 µs each): the largest of 100 equal shares is 1.16 times the mean with
	// 256 points, 1.10 with 512, 1.08 with 1,024. All members of a cluster must agree on it.
	PointsPerWeight = 1024

	// MaxMembers bounds the members of one ring. A ring of that size takes about 70 MiB.
	MaxMembers = 4096

	// MaxWeight bounds the sum of the members' weights, for the same reason.
	MaxWeight = 4096
)

// Member is one member as the ring sees it.
type Member struct {
	ID     string // unique; decides the places on the ring
	Weight int    // share of the key space relative to the others; 0 means 1, negative: owns nothing, in no preference list
	Zone   string // failure domain; "" is one like any other
}

// weight returns how much of the key space the member asks for, 0 for none.
func (m Member) weight() int {
	switch {
	case m.Weight < 0:
		return 0
	case m.Weight == 0:
		return 1
	}
	return m.Weight
}

// point is one place of a member: the position in the upper bits, the member's number in the lower ones. It owns the positions
// behind the point before it, up to and including its own. As members are numbered in the order of their IDs, numeric order
// is the order of the ring, and points that collide have one order everywhere.
//
// Why not a struct: half the memory matters, as a lookup costs the cache misses that it takes.
type point uint64

// A position is the upper positionBits of a hash; MaxMembers fit into the rest.
const (
	memberBits   = 12
	positionBits = 64 - memberBits
)

func newPoint(hash uint64, member int) point {
	return point(hash>>memberBits<<memberBits | uint64(member))
}

func (p point) at() uint64  { return uint64(p) >> memberBits }
func (p point) member() int { return int(p & (1<<memberBits - 1)) }

// Ring is an immutable snapshot. See New.
type Ring struct {
	members []Member // sorted by ID
	points  []point  // sorted by position, equal ones by the member's ID
	zones   []uint16 // by member: number of its zone
	owners  int      // members that have points
	spread  int      // zones that have members with points
	index   index

	fingerprint uint64
}

// New builds the ring of the members, in whatever order they come; it keeps no reference to the slice. An empty list, and
// a list of members that own nothing, give a ring without owners. Empty or duplicate IDs, and more members or weight than
// MaxMembers and MaxWeight, are an error that names all problems.
func New(members []Member) (*Ring, error) {
	return build(members, xxhash.Sum64)
}

// build is New with the hash of the points.
func build(members []Member, hash func([]byte) uint64) (*Ring, error) {
	if len(members) > MaxMembers {
		return nil, fmt.Errorf("nearcache: ring: %d members, at most %d are possible", len(members), MaxMembers)
	}
	sorted := slices.Clone(members)
	slices.SortFunc(sorted, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	total, err := check(sorted)
	if err != nil {
		return nil, err
	}
	r := &Ring{members: slices.Clip(sorted)}
	r.points = place(sorted, total*PointsPerWeight, hash)
	r.numberZones()
	r.index = newIndex(r.points)
	r.fingerprint = fingerprint(sorted)
	return r, nil
}

// check returns the sum of the weights, or all that is wrong with the sorted members.
func check(sorted []Member) (total int, err error) {
	var problems []error
	for i, m := range sorted {
		if m.ID == "" {
			problems = append(problems, errors.New("nearcache: ring: a member without ID"))
		} else if i > 0 && sorted[i-1].ID == m.ID {
			problems = append(problems, fmt.Errorf("nearcache: ring: more than one member with ID %.64q", m.ID))
		}
		if m.Weight > MaxWeight {
			problems = append(problems, fmt.Errorf("nearcache: ring: Weight %d of member %.64q, at most %d is possible", m.Weight, m.ID, MaxWeight))
			continue
		}
		total += m.weight() // cannot overflow: MaxMembers times MaxWeight at most
	}
	if total > MaxWeight {
		problems = append(problems, fmt.Errorf("nearcache: ring: the weights add up to %d, at most %d is possible", total, MaxWeight))
	}
	return total, errors.Join(problems...)
}

// place returns the sorted points. Point i of a member lies at the hash of its ID followed by i as four little-endian bytes:
// no two inputs are equal, as the IDs are not.
func place(sorted []Member, n int, hash func([]byte) uint64) []point {
	points := make([]point, 0, n)
	var label []byte
	for i, m := range sorted {
		label = append(append(label[:0], m.ID...), 0, 0, 0, 0)
		for number := range m.weight() * PointsPerWeight {
			binary.LittleEndian.PutUint32(label[len(m.ID):], uint32(number))
			points = append(points, newPoint(hash(label), i))
		}
	}
	slices.Sort(points)
	return points
}

func (r *Ring) numberZones() {
	numbers := make(map[string]uint16)
	populated := make(map[string]bool)
	r.zones = make([]uint16, len(r.members))
	for i, m := range r.members {
		n, ok := numbers[m.Zone]
		if !ok {
			n = uint16(len(numbers))
			numbers[m.Zone] = n
		}
		r.zones[i] = n
		if m.weight() > 0 {
			r.owners++
			populated[m.Zone] = true
		}
	}
	r.spread = len(populated)
}

// Fingerprint returns what the Fingerprint of a ring of these members, sorted by ID, would be, without making it.
func Fingerprint(sorted []Member) uint64 { return fingerprint(sorted) }

// fingerprint hashes what decides about ownership: members that own nothing do not count, since the others may not know of
// them. Lengths stand before the strings, so that no two lists read the same.
func fingerprint(sorted []Member) uint64 {
	var b []byte
	for _, m := range sorted {
		if m.weight() == 0 {
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(m.ID)))
		b = append(b, m.ID...)
		b = binary.AppendUvarint(b, uint64(m.weight()))
		b = binary.AppendUvarint(b, uint64(len(m.Zone)))
		b = append(b, m.Zone...)
	}
	return max(1, xxhash.Sum64(b))
}

// Owner returns the owner of the position as an index into Members, -1 when nobody owns anything. It takes constant time and
// does not allocate.
func (r *Ring) Owner(hash uint64) int {
	if owner := r.index.owners[hash>>r.index.shift]; owner != mixed {
		return int(owner)
	}
	if len(r.points) == 0 {
		return -1
	}
	return r.points[r.find(hash)].member()
}

// find returns the first point at or behind the position; there is at least one.
func (r *Ring) find(hash uint64) int {
	i := int(r.index.starts[hash>>r.index.shift/bucketsPerStart])
	for at := hash >> memberBits; i < len(r.points) && r.points[i].at() < at; {
		i++
	}
	if i == len(r.points) {
		return 0
	}
	return i
}

// Members returns all members sorted by ID. The slice is shared: it must not be changed.
func (r *Ring) Members() []Member { return r.members }

// Index returns the index into Members of the member with that ID, -1 when there is none.
func (r *Ring) Index(id string) int {
	i, ok := slices.BinarySearchFunc(r.members, id, func(m Member, id string) int { return cmp.Compare(m.ID, id) })
	if !ok {
		return -1
	}
	return i
}

// Fingerprint returns a number that two rings have in common when they agree about every owner and every preference list:
// it covers IDs, weights and zones of all members that own something. Never 0.
func (r *Ring) Fingerprint() uint64 { return r.fingerprint }

// Shares returns by member which part of the key space it owns. They add up to 1, or are all 0 when nobody owns anything.
func (r *Ring) Shares() []float64 {
	shares := make([]float64, len(r.members))
	for i, p := range r.points {
		before := r.points[(i+len(r.points)-1)%len(r.points)]
		shares[p.member()] += arc(before.at(), p.at())
	}
	return shares
}

// Ideals returns by member what Shares would be if they were as the weights: points that lie at random differ from it a little.
func (r *Ring) Ideals() []float64 {
	ideals := make([]float64, len(r.members))
	for i := range r.members {
		if w := r.members[i].weight(); w > 0 {
			ideals[i] = float64(w*PointsPerWeight) / float64(len(r.points))
		}
	}
	return ideals
}

// arc returns which part of the ring lies behind the first position, up to and including the second.
func arc(from, to uint64) float64 {
	return float64((to-from)&(1<<positionBits-1)) / (1 << positionBits) // wraps around at zero as the ring does
}

// mixed marks a bucket whose positions have more than one owner.
const mixed = math.MaxUint16

// bucketsPerStart: see index.
const bucketsPerStart = 16

// index makes a lookup constant time: the positions are cut into equal buckets, two to four for each point, so that most
// buckets have one owner and one load from a dense table answers. The others scan the few points from starts on. More
// buckets would scan less often and miss the processor's cache more often.
type index struct {
	shift  int
	owners []uint16 // by bucket: the member that owns all of it, or mixed
	starts []uint32 // by bucketsPerStart buckets: the first point at or behind their beginning
}

func newIndex(points []point) index {
	size := max(4, 1+bits.Len(uint(len(points)))) // 2 to 4 buckets a point
	x := index{
		shift:  64 - size,
		owners: make([]uint16, 1<<size),
		starts: make([]uint32, 1<<size/bucketsPerStart),
	}
	next := 0 // the first point at or behind the bucket's beginning
	for b := range x.owners {
		first := uint64(b) << x.shift >> memberBits
		for next < len(points) && points[next].at() < first {
			next++
		}
		if b%bucketsPerStart == 0 {
			x.starts[b/bucketsPerStart] = uint32(next)
		}
		x.owners[b] = soleOwner(points, next, first|(1<<x.shift-1)>>memberBits)
	}
	return x
}

// soleOwner returns who owns all positions of the bucket that ends at last, next being the first point at or behind
// its beginning.
func soleOwner(points []point, next int, last uint64) uint16 {
	if len(points) == 0 {
		return mixed
	}
	owner := points[next%len(points)].member()
	for ; next < len(points) && points[next].at() < last; next++ {
		if points[(next+1)%len(points)].member() != owner {
			return mixed
		}
	}
	return uint16(owner)
}
