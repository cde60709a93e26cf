package nearcache

import "github.com/nearcache/nearcache/internal/store"

// Eviction is what makes room for a new entry. The budget is exact with each policy, and what StaleOnError keeps counts and goes like everything
// else. Only the default adapts to what is read: the others are for those who have measured that they know better. Reads take no lock with any of
// them, so that uses are counted coarsely.
type Eviction int

// The eviction policies.
const (
	// EvictDefault has a window for new entries, the size of which follows what is read, and TinyLFU's duel between what leaves the window and the
	// rest. What has lost it and is asked for again soon gets in.
	EvictDefault Eviction = iota
	// EvictLRU lets go what was not used for longest, approximately (a clock: who was used gets another round). A scan displaces everything.
	EvictLRU
	// EvictLFU lets go what was used least of eight entries drawn at random, by counts up to 15 that are halved now and then. What was popular
	// leaves late.
	EvictLFU
	// EvictTinyLFU is the duel behind a window of 1 %, and nothing that adapts: good where the same keys are always popular, and up to 40 points of
	// hit ratio below the default where keys are read again soon or never.
	EvictTinyLFU
	// EvictRandom lets go any entry: for keys that are all alike, or are read one after the other again and again.
	EvictRandom
)

func (e Eviction) valid() bool { return e >= EvictDefault && e <= EvictRandom }

// store is the policy as the store calls it.
func (e Eviction) store() store.Policy {
	switch e {
	case EvictLRU:
		return store.LRU
	case EvictLFU:
		return store.LFU
	case EvictTinyLFU:
		return store.TinyLFU
	case EvictRandom:
		return store.Random
	default:
		return store.Adaptive
	}
}
