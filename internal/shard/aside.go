package shard

import (
	"math"
	"strings"
)

// Fate is what a change of the ring does to a key, as this member sees it.
type Fate uint8

// The fates.
const (
	Stays     Fate = iota + 1 // this member keeps it, as its owner or a replica, before and after
	Lost                      // it owned it, and does not keep it any more
	Gained                    // it did not keep it, and owns it now
	Elsewhere                 // another one does, the same before and after
	Changed                   // it goes from another one to another one
)

// asides are values that one table keeps for others. They are resident for nobody: Get, Peek, Acquire and the conditions of Set know nothing
// of them, so that a member that lost a key and gets it back never serves what it held before. They live in the room that the entries
// leave: what is stored throws them out.
type asides struct {
	values map[string]aside
	bytes  int64
	due    int64 // when the first of them may end
}

// aside is one of them: what this member held as the owner until another one became it, or, if given, what the owner that leaves gave to
// this member, which becomes the owner.
type aside struct {
	value   Value
	since   int64
	until   int64
	bytes   int64
	given   bool
	offered bool
}

func (a *aside) end() int64 { return min(a.until, a.value.Hard) }

func (a *asides) put(key string, one aside) {
	a.drop(key)
	if a.values == nil {
		a.values = make(map[string]aside)
	}
	if len(a.values) == 0 || one.end() < a.due {
		a.due = one.end()
	}
	a.values[key] = one
	a.bytes += one.bytes
}

func (a *asides) drop(key string) {
	a.bytes -= a.values[key].bytes
	delete(a.values, key)
}

// invalidate drops the value of key, unless its version is one that the invalidation is not about.
func (a *asides) invalidate(key string, minVersion uint64) {
	if one, ok := a.values[key]; ok && (minVersion == 0 || one.value.Version < minVersion) {
		a.drop(key)
	}
}

func (a *asides) clear() { *a = asides{} }

// fit drops some values until the others need no more than room.
func (a *asides) fit(room int64) {
	for key := range a.values {
		if a.bytes <= room {
			return
		}
		a.drop(key)
	}
}

// sweep drops what has ended.
func (a *asides) sweep(now int64) {
	if len(a.values) == 0 || now < a.due {
		return
	}
	a.due = math.MaxInt64
	for key, one := range a.values {
		if now >= one.end() {
			a.drop(key)
		} else {
			a.due = min(a.due, one.end())
		}
	}
}

// move follows a change of the ring, and returns what becomes resident by it.
func (a *asides) move(fate func(key string) Fate) (gained map[string]Value) {
	for key, one := range a.values {
		f := fate(key)
		if f == Elsewhere {
			continue
		}
		a.drop(key)
		if f == Gained && one.given {
			if gained == nil {
				gained = make(map[string]Value)
			}
			gained[key] = one.value
		}
	}
	return gained
}

// Aside returns what is kept aside of key, if it is fresh: what this member held as its owner, and since when it is that no more, while the key
// has one owner since; or, if given, what the owner gave to this member before it left. Nil: nothing. The Value is shared and read-only.
func (s *Shard) Aside(key string, now int64) (v *Value, since int64, given bool) {
	tx := s.store.Begin(key)
	defer tx.End()
	one, ok := s.tables[tx.Shard()].asides.values[key]
	if !ok || now >= one.until || !s.Fresh(&one.value, now) {
		return nil, 0, false
	}
	return &one.value, one.since, one.given
}

// Asides returns the keys of all that is kept aside and was not Offered.
func (s *Shard) Asides() (keys []string) {
	s.eachTable(func(t *table) {
		for key, one := range t.asides.values {
			if !one.offered {
				keys = append(keys, key)
			}
		}
	})
	return keys
}

// Offered notes that what is kept aside of key was given to its owner. It stays, for that one to peek at.
func (s *Shard) Offered(key string) {
	tx := s.store.Begin(key)
	defer tx.End()
	a := &s.tables[tx.Shard()].asides
	if one, ok := a.values[key]; ok {
		one.offered = true
		a.values[key] = one
	}
}

// Hottest returns keys whose values are most worth keeping, the most used first, as many as take up maxBytes.
func (s *Shard) Hottest(maxBytes int64) (keys []string) {
	for _, e := range s.store.Hottest(maxBytes) {
		keys = append(keys, e.Key)
	}
	return keys
}

// Missed tells whether v is older than an invalidation of key, or of one of its tags, that this member has heard of, or may be: a value that
// comes from another member without a lease from this one has to be asked for, under whatever protects it from the next invalidation.
func (s *Shard) Missed(key string, v *Value) bool {
	tx := s.store.Begin(key)
	defer tx.End()
	return s.tables[tx.Shard()].missed(key, v)
}

func (t *table) missed(key string, v *Value) bool {
	if mark := v.markElsewhere(); !t.s.tags.Alive(&mark) {
		return true
	}
	tomb, ok := t.tombs.Peek(key)
	if !ok {
		tomb = tombstone{at: t.floor, loose: t.floor}
	}
	at := tomb.at
	if v.Version > 0 {
		at = tomb.loose // those with a version are not about it, or say so
	}
	return v.LoadedAt <= at && at > 0 || v.older(tomb.least)
}

// Given is how a value comes that its owner gives away, or a copy of.
type Given struct {
	View  uint64 // as Ask.View
	Kept  bool   // by the caller's ring this member keeps the key already, as its owner or a replica; else it waits for the ring that says so
	Until int64  // for so long, if it waits
}

// Give takes a value that the owner of key gives away, or a copy, and reports whether it did: it must not be older than an invalidation, nor
// take the place of what is fresh, but for what is older, or what this member got like it and has to give up earlier; a key that is held takes
// none. A lease of the key goes on. v.Bytes belongs to the Shard from here on; key may alias a buffer.
func (s *Shard) Give(key string, v Value, g Given, now int64) bool {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	v.Mark = v.markElsewhere()
	if g.View < t.view || now >= v.Hard || t.missed(key, &v) || s.held(key) {
		return false
	}
	if end := max(t.lagEnd(key), s.tagLagEnd(&v)); end > 0 && v.LoadedAt < end { // the owner may not have been told yet
		v.endBy(end)
	}
	if !g.Kept {
		t.asides.put(strings.Clone(key), t.aside(key, v, now, g.Until, true))
		t.asides.fit(tx.Room())
		return true
	}
	if old := resident(&tx); old != nil && now < old.Hard {
		shorter := old.Vouched != 0 && s.FreshUntil(old) < s.FreshUntil(&v) // the same, from when less was known of it
		if s.Fresh(old, now) && !shorter && v.LoadedAt <= old.LoadedAt || v.older(old.Version) {
			return false
		}
	}
	return !t.place(&tx, key, v, now, true).Uncached
}

func (t *table) aside(key string, v Value, since, until int64, given bool) aside {
	return aside{value: v, since: since, until: until, bytes: t.s.bytes(key, &v), given: given}
}
