package ring

// Diff compares two rings. It is immutable.
type Diff struct {
	before, after *Ring
	same          []int // by member of before: its index in after, -1 when it is not there
}

// Compare returns what changes between two rings. Members are the same when their IDs are.
func Compare(before, after *Ring) *Diff {
	d := &Diff{before: before, after: after, same: make([]int, len(before.members))}
	for i, m := range before.members {
		d.same[i] = after.Index(m.ID)
	}
	return d
}

// Owners returns the owner of the position in each ring, as indexes into their members, -1 for none, and whether they are
// different members. A member that has gone is different from every other.
func (d *Diff) Owners(hash uint64) (before, after int, moved bool) {
	before, after = d.before.Owner(hash), d.after.Owner(hash)
	return before, after, d.differ(before, after)
}

func (d *Diff) differ(before, after int) bool {
	if before < 0 {
		return after >= 0
	}
	return d.same[before] < 0 || d.same[before] != after
}

// Moved returns which part of the key space has another owner, 0 to 1. It walks both rings.
func (d *Diff) Moved() float64 {
	a, b := d.before.points, d.after.points
	switch {
	case len(a) == 0 && len(b) == 0:
		return 0
	case len(a) == 0 || len(b) == 0:
		return 1
	}
	// Between two neighbours among the points of both rings each ring has one owner.
	moved, i, j := 0.0, 0, 0
	last := max(a[len(a)-1].at(), b[len(b)-1].at()) // where the arc over zero begins
	for i < len(a) || j < len(b) {
		var at uint64
		if j == len(b) || i < len(a) && a[i].at() <= b[j].at() {
			at = a[i].at()
		} else {
			at = b[j].at()
		}
		if d.differ(a[i%len(a)].member(), b[j%len(b)].member()) {
			moved += arc(last, at)
		}
		last = at
		for i < len(a) && a[i].at() == at {
			i++
		}
		for j < len(b) && b[j].at() == at {
			j++
		}
	}
	return moved
}
