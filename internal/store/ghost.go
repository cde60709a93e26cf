package store

import "math/bits"

// ghosts remembers the hashes of entries that were evicted, for about as many evictions as the shard has entries, and
// whether they came out of the window or of main. Direct mapped; a slot is a 16-bit fingerprint, the origin, and when it was: the number of the
// eviction, of a large table in units of a four-thousandth of its slots, modulo 2^15. The zero ghosts has no room.
type ghosts struct {
	slots []uint32 // a power of two; 0: empty
	seq   uint32   // evictions, modulo 2^32
	unit  int      // 2^unit evictions are one of a slot's
}

// origin says where an evicted entry was.
type origin uint8

const (
	nowhere origin = iota // not evicted lately
	fromWindow
	fromMain
)

const (
	minGhosts    = 8
	ghostMainBit = 1 << 15
	ghostTimes   = ghostMainBit - 1
)

// fit grows the table to one slot per entry. A larger one begins empty: the store has had room for more lately than what is forgotten.
func (g *ghosts) fit(entries int) {
	if entries <= len(g.slots) && g.slots != nil {
		return
	}
	size := max(minGhosts, len(g.slots))
	for size < entries {
		size *= 2
	}
	g.slots, g.unit = make([]uint32, size), max(0, bits.Len(uint(size))-13)
}

func (g *ghosts) remember(h uint32, from origin) {
	g.seq++
	w := fingerprint(h) | g.seq>>g.unit&ghostTimes
	if from == fromMain {
		w |= ghostMainBit
	}
	g.slots[g.slot(h)] = w
}

// recall tells where h was if it was evicted fewer than life evictions ago, and forgets it.
func (g *ghosts) recall(h uint32, life uint32) origin {
	s := &g.slots[g.slot(h)]
	w := *s
	if w == 0 || w&^(ghostMainBit|ghostTimes) != fingerprint(h) || (g.seq>>g.unit-w)&ghostTimes<<g.unit >= life {
		return nowhere
	}
	*s = 0
	if w&ghostMainBit != 0 {
		return fromMain
	}
	return fromWindow
}

func (g *ghosts) slot(h uint32) uint32 { return h >> 7 & uint32(len(g.slots)-1) }

// fingerprint is in the upper 16 bits. It depends on all bits of h: some of them are the same for all hashes of a slot.
func fingerprint(h uint32) uint32 { return h * 0x9e3779b1 & 0xffff0000 }
