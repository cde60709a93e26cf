package store

// ghosts remembers hashes that lost the duel for admission, for about as many rejections as the shard has entries: a
// key that is fetched again that soon is admitted without a duel. Direct mapped; a slot is a 32-bit fingerprint and the
// number of the rejection. The zero ghosts has no room.
type ghosts struct {
	slots []uint64 // a power of two; 0: empty
	seq   uint32   // rejections, modulo 2^32
}

const minGhosts = 8

// fit grows the table to one slot per entry.
func (g *ghosts) fit(entries int) {
	if entries <= len(g.slots) && g.slots != nil {
		return
	}
	size := max(minGhosts, len(g.slots))
	for size < entries {
		size *= 2
	}
	slots := make([]uint64, size)
	for i := 0; len(g.slots) > 0 && i < size; i += len(g.slots) {
		copy(slots[i:], g.slots)
	}
	g.slots = slots
}

func (g *ghosts) remember(h uint64) {
	g.seq++
	g.slots[g.slot(h)] = fingerprint(h)<<32 | uint64(g.seq)
}

// recall tells whether h was rejected fewer than life rejections ago, and forgets it then.
func (g *ghosts) recall(h uint64, life uint32) bool {
	s := &g.slots[g.slot(h)]
	if *s == 0 || *s>>32 != fingerprint(h) || g.seq-uint32(*s) >= life {
		return false
	}
	*s = 0
	return true
}

func (g *ghosts) slot(h uint64) uint64 { return h >> 7 & uint64(len(g.slots)-1) }

// fingerprint takes bits of all of h: within a shard some of its bits are the same for all hashes.
func fingerprint(h uint64) uint64 { return h * 0x9e3779b97f4a7c15 >> 32 }
