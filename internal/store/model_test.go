package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// naive is a second implementation of one shard, written for the eye: a map, slices in the order of age, and
// a scan where the store has an index. It shares the sketch and the ghosts, which have tests of their own.
type naive struct {
	policy       Policy
	entries      map[string]*naiveEntry
	window, main []*naiveEntry // oldest first
	sketch       sketch
	ghosts       ghosts
	maxBytes     int64
	maxEntries   int64
	part         float64
	random       uint64
	evictions    uint64
	expirations  uint64
	tooLarge     uint64
}

type naiveEntry struct {
	key            string
	value          int
	cost, deadline int64
	hash           uint32
	uses           uint64
	inMain         bool
}

func newNaive(policy Policy, maxBytes, maxEntries int64) *naive {
	n := &naive{
		policy: policy, entries: map[string]*naiveEntry{}, maxBytes: maxBytes, maxEntries: maxEntries, part: startWindow, random: 88172645463325252,
	}
	if policy == TinyLFU {
		n.part = tinyWindow
	}
	n.fit()
	return n
}

func (n *naive) fit() {
	n.sketch.fit(len(n.entries))
	n.ghosts.fit(len(n.entries))
}

func total(q []*naiveEntry) (bytes int64) {
	for _, e := range q {
		bytes += e.cost
	}
	return bytes
}

func (n *naive) windowBytes() int64 { return int64(n.part * float64(n.maxBytes)) }

func (n *naive) windowEntries() int64 { return max(1, int64(n.part*float64(n.maxEntries))) }

func (n *naive) windowOver() bool {
	return len(n.window) > 1 && (total(n.window) > n.windowBytes() || int64(len(n.window)) > n.windowEntries())
}

func (n *naive) queue(e *naiveEntry) *[]*naiveEntry {
	if e.inMain {
		return &n.main
	}
	return &n.window
}

func (n *naive) get(key string, now int64) *naiveEntry {
	e := n.entries[key]
	if e == nil || e.deadline <= now {
		return nil
	}
	e.uses = min(usesMax, e.uses+1)
	return e
}

func (n *naive) remove(e *naiveEntry) {
	delete(n.entries, e.key)
	q := n.queue(e)
	*q = slices.DeleteFunc(*q, func(x *naiveEntry) bool { return x == e })
}

func (n *naive) put(key string, v int, bytes, deadline, now int64) bool {
	e := &naiveEntry{key: key, value: v, cost: int64(len(key)) + bytes + EntryOverhead, deadline: deadline, hash: uint32(stableHash(key))}
	old := n.entries[key]
	if e.cost > n.maxBytes {
		if old != nil {
			n.remove(old)
		}
		n.tooLarge++
		return false
	}
	if old != nil {
		e.inMain, e.uses = old.inMain, old.uses
		if old.deadline <= now {
			e.uses = min(usesMax, e.uses+1)
		}
		q := *n.queue(old)
		q[slices.Index(q, old)] = e
		n.entries[key] = e
	} else if n.fit(); !n.insert(e, now) {
		n.ghosts.remember(e.hash, fromWindow)
		n.evictions++
	}
	n.settle(now)
	return true
}

// insert tells whether e got in.
func (n *naive) insert(e *naiveEntry, now int64) bool {
	n.sketch.add(e.hash, 1, len(n.entries))
	if n.policy == LRU {
		e.inMain = true
	}
	if n.policy == Adaptive {
		switch n.ghosts.recall(e.hash, uint32(ghostLife*float64(len(n.entries)))) {
		case fromWindow:
			n.part = min(maxWindow, n.part+growStep/float64(len(n.entries)+1))
			e.inMain = n.windowEntries() < n.maxEntries
		case fromMain:
			n.part = max(minWindow, n.part-shrinkStep/float64(len(n.entries)+1))
		case nowhere:
		}
	}
	used := total(n.window) + total(n.main)
	if !e.inMain && e.cost > n.windowBytes() && len(n.entries) >= crowd && len(n.main) > 0 && used+e.cost > n.maxBytes {
		victim := n.hand(&n.main, now)
		if victim.deadline > now && !n.wins(e, victim) {
			return false
		}
		e.inMain = true
	}
	n.entries[e.key] = e
	q := n.queue(e)
	*q = append(*q, e)
	return true
}

func (n *naive) settle(now int64) {
	for total(n.window)+total(n.main) > n.maxBytes || int64(len(n.entries)) > n.maxEntries {
		n.evict(now)
	}
	for n.windowOver() && total(n.main) < n.maxBytes-n.windowBytes() && int64(len(n.main)) < n.maxEntries-n.windowEntries() {
		n.promote(n.window[0])
	}
}

func (n *naive) evict(now int64) {
	if len(n.main) == 0 {
		n.drop(n.window[0], now)
		return
	}
	if !n.windowOver() {
		n.drop(n.hand(&n.main, now), now)
		return
	}
	cand := n.hand(&n.window, now)
	if cand.deadline <= now {
		n.drop(cand, now)
		return
	}
	victim := n.hand(&n.main, now)
	if victim.deadline <= now {
		n.drop(victim, now)
	} else if n.wins(cand, victim) {
		n.drop(victim, now)
		n.promote(cand)
	} else {
		n.drop(cand, now)
	}
}

func (n *naive) promote(e *naiveEntry) {
	n.note(e)
	n.remove(e)
	e.inMain = true
	n.main = append(n.main, e)
	n.entries[e.key] = e
}

func (n *naive) drop(e *naiveEntry, now int64) {
	if e.deadline <= now {
		n.expirations++
	} else {
		n.evictions++
		from := fromWindow
		if e.inMain {
			from = fromMain
		}
		n.ghosts.remember(e.hash, from)
	}
	n.remove(e)
}

func (n *naive) hand(q *[]*naiveEntry, now int64) *naiveEntry {
	for range handSteps {
		e := (*q)[0]
		if e.deadline <= now || e.uses == 0 {
			return e
		}
		n.note(e)
		*q = append((*q)[1:], e)
	}
	n.note((*q)[0])
	return (*q)[0]
}

func (n *naive) note(e *naiveEntry) {
	if e.uses > 0 {
		n.sketch.add(e.hash, e.uses, len(n.entries))
		e.uses = 0
	}
}

func (n *naive) wins(cand, victim *naiveEntry) bool {
	c, v := n.sketch.estimate(cand.hash), n.sketch.estimate(victim.hash)
	if c > v {
		return true
	}
	if c < frequent {
		return false
	}
	n.random ^= n.random << 13
	n.random ^= n.random >> 7
	n.random ^= n.random << 17
	return n.random%luckyDraws == 0
}

func (n *naive) sweep(now int64) int {
	freed := 0
	for _, e := range n.entries {
		if e.deadline>>tickBits < now>>tickBits {
			n.remove(e)
			n.expirations++
			freed++
		}
	}
	return freed
}

// counted is what the model's store counts.
func counted(v *int) bool { return *v%3 == 0 }

// same compares a store of one shard with its model.
func (n *naive) same(t *testing.T, s *Store[int], now int64) {
	t.Helper()
	sh := &s.shards[0]
	for _, q := range []struct {
		name string
		got  *queue[int]
		want []*naiveEntry
	}{{"window", &sh.window, n.window}, {"main", &sh.main, n.main}} {
		i := 0
		for p := q.got.head; p != q.got.tail; p++ {
			at := *q.got.at(p)
			if at == noPlace {
				continue
			}
			e := sh.index.Load().at(at)
			if i == len(q.want) {
				t.Fatalf("%s: got %q and more, want %d entries", q.name, e.Key, len(q.want))
			}
			w := q.want[i]
			i++
			if e.Key != w.key || e.Value != w.value || e.Deadline != w.deadline || e.Bytes() != w.cost || uint64(e.word.Load()) != w.uses {
				t.Fatalf("%s, place %d: got %q = %d until %d, %d bytes, %d uses, want %+v", q.name, i-1, e.Key, e.Value, e.Deadline, e.Bytes(), e.word.Load(), *w)
			}
		}
		if i != len(q.want) {
			t.Fatalf("%s: got %d entries, want %d", q.name, i, len(q.want))
		}
	}
	got := s.Stats()
	want := Stats{
		Entries: int64(len(n.entries)), Bytes: total(n.window) + total(n.main), MaxBytes: n.maxBytes,
		Evictions: n.evictions, Expirations: n.expirations, TooLarge: n.tooLarge,
	}
	expired := int64(0)
	for _, e := range n.entries {
		if counted(&e.value) {
			want.Counted++
		}
		if e.deadline <= now {
			expired++
		}
	}
	if got != want {
		t.Fatalf("Stats = %+v, want %+v", got, want)
	}
	if got := s.Expired(now); got != expired {
		t.Fatalf("Expired = %d, want %d", got, expired)
	}
}

// Case L1-1: random operations give what a naive second implementation gives: the same values, the same order in
// both queues, the same victims, the same account. An older value never comes back.
func TestModel(t *testing.T) {
	sizes := []struct{ bytes, entries int64 }{
		{1 << 40, 1},
		{1 << 40, 2},
		{1 << 40, 3},
		{1 << 40, 7},
		{1 << 40, 50},
		{1 << 40, 100},
		{1 << 40, 400},
		{0, 0},
		{1000, 0},
		{10_000, 0},
		{100_000, 0},
		{100_000, 100},
		{1 << 40, 0},
	}
	for _, sz := range sizes {
		for seed, policy := range []Policy{Adaptive, Adaptive, Adaptive, LRU, TinyLFU} {
			t.Run(fmt.Sprintf("policy %d, %d bytes, %d entries, seed %d", policy, sz.bytes, sz.entries, seed), func(t *testing.T) {
				runModel(t, policy, sz.bytes, sz.entries, uint64(seed))
			})
		}
	}
}

func runModel(t *testing.T, policy Policy, maxBytes, maxEntries int64, seed uint64) {
	t.Helper()
	s := New[int](Config{MaxBytes: maxBytes, MaxEntries: maxEntries, Policy: policy, Shards: 1, hash: stableHash})
	s.Count(counted)
	limit := maxEntries
	if limit == 0 {
		limit = math.MaxInt64
	}
	n := newNaive(policy, maxBytes, limit)
	r := rand.New(rand.NewPCG(seed, uint64(maxBytes)^uint64(maxEntries)))
	popular := rand.NewZipf(r, 1.1, 1, 600)
	now := int64(1) << tickBits
	steps := 20_000
	if testing.Short() || raceEnabled {
		steps = 3000
	}
	for version := range steps {
		key := fmt.Sprint(popular.Uint64())
		switch op := r.IntN(100); {
		case op < 50:
			e, w := s.Get(key, now), n.get(key, now)
			if (e == nil) != (w == nil) || e != nil && e.Value != w.value {
				t.Fatalf("step %d: Get(%s) = %v, want %v", version, key, e, w)
			}
		case op < 90:
			bytes, life := int64(r.IntN(400)), int64(1+r.IntN(200))<<tickBits
			if r.IntN(100) == 0 {
				bytes *= 50
			}
			if r.IntN(20) == 0 {
				life = math.MaxInt64 - now
			}
			if got, want := put(s, key, version, bytes, now+life, now), n.put(key, version, bytes, now+life, now); got != want {
				t.Fatalf("step %d: Put(%s) = %v, want %v", version, key, got, want)
			}
		case op < 95:
			w := n.entries[key]
			if got := del(s, key); got != (w != nil) {
				t.Fatalf("step %d: Delete(%s) = %v, want %v", version, key, got, w)
			}
			if w != nil {
				n.remove(w)
			}
		case op < 98:
			now += r.Int64N(4 << tickBits)
		case op < 99:
			if got, want := s.Sweep(now), n.sweep(now); got != want {
				t.Fatalf("step %d: Sweep = %d, want %d", version, got, want)
			}
			// In which order the expired are noted in the sketch is not specified: go on from the store's.
			n.sketch = s.shards[0].sketch
			n.sketch.words = slices.Clone(n.sketch.words)
		default:
			if r.IntN(10) == 0 && maxBytes < 1<<40 {
				n.maxBytes = r.Int64N(maxBytes + 1)
				n.settle(math.MinInt64)
				s.Resize(n.maxBytes)
			}
		}
		if version%50 == 0 || maxEntries < 10 && maxEntries > 0 {
			n.same(t, s, now)
		}
		if version%1000 == 0 {
			check(t, s)
		}
	}
}
