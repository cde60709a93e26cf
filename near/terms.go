package near

import (
	"sync"

	"github.com/nearcache/nearcache/internal/tag"
)

// terms are what most copies have in common with others: copies of one member's values that have neither a version nor tags share theirs, so
// that each of them pays 8 bytes for all of it. They are immutable. The fields are those of Item.
type terms struct {
	source  *Source
	gen     uint64
	stale   int64
	mark    tag.Mark
	version uint64
	seqHigh uint32 // the upper half of Item.Seq, which others share for 2^32 events
	absent  bool
}

const termsBytes = 64 // what the heap has for terms

func termsOf[V any](it *Item[V]) terms {
	return terms{
		source: it.Source, gen: it.Gen, stale: it.Stale, mark: it.Mark, version: it.Version,
		seqHigh: uint32(it.Seq >> 32), absent: it.Absent,
	}
}

// single tells whether the copy is likely to be the only one with its terms.
func (it *Item[V]) single() bool {
	tags, _ := it.Mark.Tags()
	return it.Version != 0 || len(tags) > 0
}

// sure is R4, for a copy that needs no lease until free.
func (t *terms) sure(free, now int64) bool {
	src := t.source
	if src == nil {
		return true
	}
	// Order: the lease before the generation. The other way round a reader could take the generation from before a kill and the
	// lease from after it, and serve a copy that missed an event long ago.
	if now >= src.LeaseUntil.Load() && now >= free || t.gen != src.Gen.Load() {
		return false
	}
	return true
}

// maxShared is more than there are members, and generations of them whose copies live, as a rule.
const maxShared = 1024

// shared knows the terms that others may share. The zero shared knows none.
type shared struct {
	mu    sync.Mutex // a leaf
	known map[terms]*terms
}

// of returns t, the same for the same terms as a rule, or for a single copy.
func (s *shared) of(t *terms, single bool) *terms {
	own := func() *terms { one := *t; return &one }
	if single {
		return own()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known[*t]
	if known == nil {
		if s.known == nil || len(s.known) == maxShared {
			s.known = make(map[terms]*terms) // who has the old ones keeps them
		}
		known = own()
		s.known[*known] = known
	}
	return known
}
