package hotkey

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
)

const (
	// Window is how long uses are counted before their number is halved.
	Window = int64(1e9)
	// ways is the number of keys in a set. More make the error smaller and the search longer.
	ways = 8
	// stripes is the number of locks, and setsPerStripe of the sets behind each of them.
	stripes       = 16
	setsPerStripe = 8
	// keepKey is the length up to which a slot keeps the memory of its key for the next one.
	keepKey = 64
)

// Kind is what became of a use of a key.
type Kind uint8

// The kinds. All but Served are reads by this process.
const (
	Near   Kind = iota // answered by a near copy
	Owner              // answered by the owner, here or elsewhere
	Origin             // answered by a load
	Failed             // ended in an error
	Served             // a request of another member
	Kinds              // their number
)

// table counts uses. The stripes are made as they are needed.
type table struct {
	seed    maphash.Seed
	stripes [stripes]stripe
}

type stripe struct {
	mu   sync.Mutex // guards sets
	sets []set
	_    [32]byte // own cache line
}

// set holds the keys whose hashes lead to it. What a search looks at comes first.
type set struct {
	hashes [ways]uint64  // 0: free
	counts [ways]float64 // uses, halved with every window
	slots  [ways]slot
}

// slot is what is known of one key, besides its count.
type slot struct {
	key   []byte
	over  float64 // of the count, what was taken over from another key
	rate  float64 // count, and over, at the end of the last window; 0: it came after that
	err   float64
	uses  uint32 // in this window, since the key took the slot
	reads uint32 // of these, by this process
	last  uint32 // reads in the last window
	since int64
	total [Kinds]uint64 // since then
	loads uint64
	took  int64 // by the last load
}

// lock locks the key's stripe and returns it with the key's set, which may not be there yet, and the key's place in it, or -1.
func (t *table) lock(key string) (s *stripe, b *set, hash uint64, way int) {
	hash = max(maphash.String(t.seed, key), 1)
	s = &t.stripes[hash%stripes]
	s.mu.Lock()
	if s.sets == nil {
		return s, nil, hash, -1
	}
	b = s.of(hash)
	for i, h := range b.hashes {
		if h == hash && string(b.slots[i].key) == key {
			return s, b, hash, i
		}
	}
	return s, b, hash, -1
}

func (s *stripe) of(hash uint64) *set { return &s.sets[hash/stripes%setsPerStripe] }

// add counts n uses of key. It returns how many reads by this process there were in this window before and are now, and a rate that the
// key has for sure.
func (t *table) add(key string, kind Kind, n uint32, now int64) (before, reads uint32, rate float64) {
	s, b, way := t.place(key, now)
	defer s.mu.Unlock()
	b.counts[way] += float64(n)
	e := &b.slots[way]
	e.uses += n
	e.total[kind] += uint64(n)
	before = e.reads
	if kind != Served {
		e.reads += n
	}
	return before, e.reads, max(e.rate-e.err, float64(e.uses))
}

// place is lock for a key that gets a place if it has none.
func (t *table) place(key string, now int64) (*stripe, *set, int) {
	s, b, hash, way := t.lock(key)
	if b == nil {
		s.sets = make([]set, setsPerStripe)
		b = s.of(hash)
	}
	if way < 0 {
		way = b.displace(key, hash, now)
	}
	return s, b, way
}

// displace gives key the place of the least used key.
func (b *set) displace(key string, hash uint64, now int64) int {
	least := 0
	for i, c := range b.counts {
		if c < b.counts[least] {
			least = i
		}
	}
	e := &b.slots[least]
	memory := e.key[:0]
	if cap(memory) > keepKey {
		memory = nil
	}
	*e = slot{key: append(memory, key...), over: b.counts[least], since: now}
	b.hashes[least] = hash
	return least
}

// loaded notes a load of key.
func (t *table) loaded(key string, took, now int64) {
	s, b, way := t.place(key, now)
	defer s.mu.Unlock()
	b.slots[way].loads++
	b.slots[way].took = took
}

// reads returns how often this process read key in the last window, for sure.
func (t *table) reads(key string) uint32 {
	s, b, _, way := t.lock(key)
	defer s.mu.Unlock()
	if way < 0 {
		return 0
	}
	return b.slots[way].last
}

// halve ends a window.
func (t *table) halve() {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		for j := range s.sets {
			s.sets[j].halve()
		}
		s.mu.Unlock()
	}
}

func (b *set) halve() {
	const gone = 1.0 / 64 // one use, six windows ago
	for i := range b.slots {
		e := &b.slots[i]
		if b.counts[i] /= 2; b.counts[i] < gone {
			b.counts[i], b.hashes[i] = 0, 0
		}
		e.over /= 2
		e.rate, e.err = b.counts[i], e.over
		e.last, e.uses, e.reads = e.reads, 0, 0
	}
}

// top returns the k keys with the highest rates, the highest first.
func (t *table) top(k int) []Key {
	var all []Key
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		for j := range s.sets {
			all = s.sets[j].appendKeys(all)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Error, a.Error), cmp.Compare(a.Key, b.Key))
	})
	return all[:min(k, len(all))]
}

func (b *set) appendKeys(all []Key) []Key {
	for i := range b.slots {
		if e := &b.slots[i]; e.rate > 0 {
			all = append(all, Key{
				Key: string(e.key), Rate: e.rate - e.err, Error: e.err,
				Uses: e.total, Loads: e.loads, LoadTime: e.took, Since: e.since,
			})
		}
	}
	return all
}
