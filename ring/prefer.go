package ring

// memberSet is a set of members, or of zones: never more than MaxMembers.
type memberSet [MaxMembers / 64]uint64

func (s *memberSet) has(i uint16) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s *memberSet) add(i uint16)      { s[i/64] |= 1 << (i % 64) }

// Prefer appends the first n members of the position's preference list to dst, as indexes into Members: the owner first,
// then the members that stand in for it, each once. n <= 0 means all; members that own nothing are never on it, so the list
// may be shorter than n. It does not allocate when dst has room for all members that own something.
//
// Zones are spread first: the list begins with one member of each zone, goes on with a second of each zone, and so on; within
// such a round the members stand in the order of the ring. So every prefix has as many zones as are possible, and a shorter
// list is always a prefix of a longer one.
func (r *Ring) Prefer(dst []int, hash uint64, n int) []int {
	if n <= 0 || n > r.owners {
		n = r.owners
	}
	switch n {
	case 0:
		return dst
	case 1:
		return append(dst, r.Owner(hash))
	}
	base := len(dst)
	dst = r.collect(dst, hash, n)
	if r.spread > 1 {
		r.spreadZones(dst[base:], n)
	}
	return dst[:base+n]
}

// collect appends distinct members in the order of the ring: n of them, and as many more as it takes to decide the first n by
// zone.
func (r *Ring) collect(dst []int, hash uint64, n int) []int {
	var seen, zones memberSet
	found, zonesFound := 0, 0
	want, zonesWanted := n, min(n, r.spread)
	if r.spread > 1 && n > r.spread {
		want = r.owners // more than one round: take them all
	}
	// Ends: each of the owners has a point, and there are at least as many of them as wanted.
	for i := r.find(hash); found < want || zonesFound < zonesWanted; i++ {
		if i == len(r.points) {
			i = 0
		}
		m := uint16(r.points[i].member())
		if seen.has(m) {
			continue
		}
		seen.add(m)
		dst = append(dst, int(m))
		found++
		if z := r.zones[m]; !zones.has(z) {
			zones.add(z)
			zonesFound++
		}
	}
	return dst
}

// spreadZones moves the first n members of the preference list to the front of list, which is in the order of the ring.
func (r *Ring) spreadZones(list []int, n int) {
	for front := 0; front < n; {
		var zones memberSet // those that this round has served
		for i := front; i < len(list) && front < n; i++ {
			m := list[i]
			if z := r.zones[m]; !zones.has(z) {
				zones.add(z)
				copy(list[front+1:i+1], list[front:i]) // the others keep their order
				list[front] = m
				front++
			}
		}
	}
}

// Heir returns the index of the member that owns the hash when its owner is gone, -1 when nobody does: by the ring without that one, whatever
// the zones are.
func (r *Ring) Heir(hash uint64) int {
	owner := r.Owner(hash)
	if owner < 0 || r.owners < 2 {
		return -1
	}
	for i := r.find(hash); ; i++ { // ends: another member has a point
		if m := r.points[i%len(r.points)].member(); m != owner {
			return m
		}
	}
}
