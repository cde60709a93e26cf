package membership

import "github.com/nearcache/nearcache/ring"

// StandIns is how many members after an owner that cannot be reached may hold what is its own (R8 of docs/protocol.md).
const StandIns = 2

// Target is a member that has to be told of an invalidation.
type Target struct {
	ID string
	// Counts: the invalidation is not confirmed before this member has confirmed it. What the others hold ends a Bound after its load.
	Counts bool
}

// Targets appends to dst who has to be told that what lies at hash is invalid (R8): its owner and replicas, copies of them, those by a ring of
// the past, and where one of these is suspect, because it does not answer, or lately did not, those who may stand in for it; if the owner
// leaves, or lately did, it has given what it had to its heir (R10b). Where rings differ that is not enough (R8b).
func (v *View) Targets(dst []Target, hash uint64, copies int, suspect, left func(id string) bool, now int64) []Target {
	first := len(dst)
	add := func(id string, counts bool) {
		for i := first; i < len(dst); i++ {
			if t := &dst[i]; t.ID == id {
				t.Counts = t.Counts || counts
				return
			}
		}
		dst = append(dst, Target{ID: id, Counts: counts})
	}
	doubtful := false
	var buf [4]int
	keepers := func(r *ring.Ring) {
		for i, m := range r.Prefer(buf[:0], hash, copies) {
			id := r.Members()[m].ID
			doubtful = doubtful || suspect(id)
			add(id, true)
			if i > 0 || !left(id) {
				continue
			}
			if heir := r.Heir(hash); heir >= 0 {
				add(r.Members()[heir].ID, true)
			}
		}
	}
	keepers(v.Ring)
	for i := range v.Past {
		p := &v.Past[i]
		if now < p.Until {
			keepers(p.Ring)
		}
	}
	if doubtful {
		for i, m := range v.Ring.Prefer(nil, hash, copies+StandIns) {
			if i >= copies {
				add(v.Members[m].ID, false)
			}
		}
	}
	return dst
}

// Majority tells whether members for which has is true are a majority of the owning ones, by the ring in use and by every ring of the
// past: a member that goes by any of these rings has no majority without them.
func (v *View) Majority(has func(id string) bool, now int64) bool {
	if v.Blurred(now) || !majority(v.Ring.Members(), has) {
		return false
	}
	for i := range v.Past {
		if p := &v.Past[i]; now < p.Until && !majority(p.Ring.Members(), has) {
			return false
		}
	}
	return true
}

func majority(members []ring.Member, has func(id string) bool) bool {
	owning, those := 0, 0
	for i := range members {
		if m := &members[i]; m.Weight >= 0 {
			owning++
			if has(m.ID) {
				those++
			}
		}
	}
	return 2*those > owning
}
