package store

// ghosts remembers the hashes of entries that were evicted, for about as many evictions as the shard has entries, and
// whether they came out of the window or of main. Direct mapped; a slot is a 31-bit fingerprint, the origin, and the
// number of the eviction. The zero ghosts has no room.
type ghosts struct {
	slots []uint64 // a power of two; 0: empty
	seq   uint32   // evictions, modulo 2^32
}

// origin says where an evicted entry was.
type origin uint64

const (
	nowhere origin = iota // not evicted lately
	fromWindow
	fromMain
)

const (
	minGhosts    = 8
	ghostMainBit = 1 << 32
)

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

func (g *ghosts) remember(h uint32, from origin) {
	g.seq++
	w := fingerprint(h) | uint64(g.seq)
	if from == fromMain {
		w |= ghostMainBit
	}
	g.slots[g.slot(h)] = w
}

// recall tells where h was if it was evicted fewer than life evictions ago, and forgets it.
func (g *ghosts) recall(h uint32, life uint32) origin {
	s := &g.slots[g.slot(h)]
	w := *s
	if w == 0 || w>>33 != fingerprint(h)>>33 || g.seq-uint32(w) >= life {
		return nowhere
	}
	*s = 0
	if w&ghostMainBit != 0 {
		return fromMain
	}
	return fromWindow
}

func (g *ghosts) slot(h uint32) uint32 { return h >> 7 & uint32(len(g.slots)-1) }

// fingerprint is in the upper 31 bits. It depends on all bits of h: some of them are the same for all hashes of a slot.
func fingerprint(h uint32) uint64 { return uint64(h) * 0x9e3779b97f4a7c15 >> 33 << 33 }
