package membership

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/ring"
)

// Past is a ring that was in use until lately: other members may still go by it, or have gone by it a moment ago.
type Past struct {
	Ring  *ring.Ring
	Until int64 // the end of Pace.Window after it was replaced
}

// maxPast bounds the rings that are remembered. After more changes within one window any member may own anything by one of them.
const maxPast = 8

// remember gives next the rings that were in use before it, of which last was the last one.
func (v *View) remember(next *View, last *ring.Ring, window time.Duration, now int64) {
	for _, p := range v.Past {
		if now < p.Until {
			next.Past = append(next.Past, p)
		}
	}
	if last.Fingerprint() != next.Ring.Fingerprint() && owning(last) > 0 {
		next.Past = append(next.Past, Past{Ring: last, Until: now + int64(window)})
	}
	next.blurred = v.blurred
	if n := len(next.Past) - maxPast; n > 0 {
		next.blurred = next.Past[n-1].Until
		next.Past = next.Past[n:]
	}
}

// Without returns the ring without a member, as those see it who do not know that one.
func (v *View) Without(id string) *ring.Ring {
	members := slices.DeleteFunc(slices.Clone(v.Ring.Members()), func(m ring.Member) bool { return m.ID == id })
	r, err := ring.New(members)
	if err != nil {
		panic("nearcache: membership: a part of a ring is no ring: " + err.Error()) // what New checks holds for any part of a list
	}
	return r
}

// Before returns the ID of the member that last owned what lies at hash, if it was another one within the window; else "".
func (v *View) Before(hash uint64, now int64) string {
	for _, p := range slices.Backward(v.Past) {
		if now >= p.Until {
			continue
		}
		if o := p.Ring.Owner(hash); o >= 0 && p.Ring.Members()[o].ID != v.Me().ID {
			return p.Ring.Members()[o].ID
		}
	}
	return ""
}

// Blurred tells whether there were more changes of the ring than Past has.
func (v *View) Blurred(now int64) bool { return now < v.blurred }

// Knows tells whether a fingerprint is that of the ring in use, or of one of the past.
func (v *View) Knows(fingerprint uint64, now int64) bool {
	return fingerprint == v.Ring.Fingerprint() || slices.ContainsFunc(v.Past, func(p Past) bool {
		return now < p.Until && fingerprint == p.Ring.Fingerprint()
	})
}

// Gained tells whether others kept what lies at hash by a ring of the past, as its owner and replicas, and may not know yet that this member
// does: they may be told of invalidations that it does not hear of. agrees tells whether a member is known to go by the ring in use: it
// passes on what it is told. One of them is enough, since all of them are told. copies are the owner and its replicas.
func (v *View) Gained(hash uint64, copies int, now int64, agrees func(id string) bool) bool {
	if v.Blurred(now) {
		return true
	}
	var buf [4]int
	for i := range v.Past {
		p := &v.Past[i]
		if now >= p.Until {
			continue
		}
		told := func(m int) bool { id := p.Ring.Members()[m].ID; return id == v.Me().ID || agrees(id) }
		if !slices.ContainsFunc(p.Ring.Prefer(buf[:0], hash, copies), told) {
			return true
		}
	}
	return false
}

// Settled tells that nothing is Gained.
func (v *View) Settled(now int64, agrees func(id string) bool) bool {
	if v.Blurred(now) {
		return false
	}
	for i := range v.Past {
		p := &v.Past[i]
		if now >= p.Until {
			continue
		}
		for _, m := range p.Ring.Members() {
			if m.Weight >= 0 && m.ID != v.Me().ID && !agrees(m.ID) {
				return false
			}
		}
	}
	return true
}

// KeptBefore returns who kept what lies at hash before this member owned it, the owner first (see Before), but for this member itself.
func (v *View) KeptBefore(hash uint64, copies int, now int64) (ids []string) {
	for _, p := range slices.Backward(v.Past) {
		o := p.Ring.Owner(hash)
		if now >= p.Until || o < 0 || p.Ring.Members()[o].ID == v.Me().ID {
			continue
		}
		for _, m := range p.Ring.Prefer(nil, hash, copies) {
			if id := p.Ring.Members()[m].ID; id != v.Me().ID {
				ids = append(ids, id)
			}
		}
		return ids
	}
	return nil
}

// Electorate returns how many owning members there are, of which a majority has to be heard: those of the ring in use, and no fewer than half
// of those of any ring of the past, so that a part of the cluster that discovery alone has shrunk does not take itself for the whole.
func (v *View) Electorate(now int64) int {
	n := owning(v.Ring)
	for i := range v.Past {
		if p := &v.Past[i]; now < p.Until {
			n = max(n, (owning(p.Ring)+1)/2)
		}
	}
	return n
}

func owning(r *ring.Ring) int {
	n := 0
	for _, m := range r.Members() {
		if m.Weight >= 0 {
			n++
		}
	}
	return n
}
