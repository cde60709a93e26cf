package shard

import (
	"maps"
	"math"
	"strings"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/nearcache/nearcache/internal/store"
)

// tombstone remembers the invalidations of one key.
type tombstone struct {
	at    int64  // when the last one arrived
	loose int64  // when the last one without a version arrived
	least uint64 // versions below this are dead
	set   uint64 // of the last Set: a Set of a lower one comes too late
}

// Invalidate removes what is resident for key, value or absence, calls Config.Dropped, revokes the lease, whose load may
// have read the old value (R1, R2), and gives the longest waiter a new one, whose load begins afterwards. With a
// minVersion, lower versions are refused from now on, and a resident value that is not lower stays: it is what the
// invalidation is about. 0: none. key may alias a buffer.
//
// It may be repeated and arrive late: it costs a load at most.
func (s *Shard) Invalidate(key string, minVersion uint64, now int64) (eff Effect) {
	return s.invalidate(key, minVersion, false, now)
}

// Expire is Invalidate, but a value that is fresh stays as a stale copy until its hard end: Acquire offers it to whoever need not wait
// for the load that replaces it (R17).
func (s *Shard) Expire(key string, minVersion uint64, now int64) (eff Effect) {
	return s.invalidate(key, minVersion, true, now)
}

func (s *Shard) invalidate(key string, minVersion uint64, soft bool, now int64) (eff Effect) {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	s.invalidations.Add(1)
	if v := resident(&tx); v != nil && (minVersion == 0 || v.Version < minVersion) {
		eff.Dropped = 1
		if soft && v.expire(s.FreshUntil(v), now) {
			put(&tx, v, now)
		} else {
			tx.Delete()
		}
	}
	t.asides.invalidate(key, minVersion)
	t.entomb(key, minVersion, now)
	s.cfg.Dropped(key)
	if l := t.leases[key]; l != nil {
		t.revoke(l, &eff)
		if s.held(key) {
			t.dismiss(l, Result{Kind: Held}, &eff)
		} else {
			t.next(l, now, &eff)
		}
	}
	return eff
}

// Clear removes all entries, forgets the lowest versions, revokes all leases and gives the longest waiters new ones. When
// it returns, nothing stored or loaded before the call is resident or will be. It does not call Config.Dropped: the
// caller numbers one event for the whole keyspace after it. It locks one part after the other.
func (s *Shard) Clear(now int64) (eff Effect) {
	// Why leases first: the other way round, (1) the old entry is removed, (2) a load that read the old value fills the
	// key, (3) its lease would be revoked, too late.
	s.eachTable(func(t *table) {
		t.tombs.Purge()
		t.floor = max(t.floor, now)
		t.asides.clear()
		for _, l := range t.all() {
			t.revoke(l, &eff)
			t.next(l, now, &eff)
		}
	})
	eff.Dropped = s.store.DeleteFunc(func(*store.Entry[packed]) bool { return true })
	return eff
}

// InvalidateTags ends every entry that has one of the tags, and every value with one of them whose lease was granted before the call, though
// the tags are known only when it is filled: it is refused then (R15). Values whose tags are not known may have any. It takes as long as
// there are tags, however many entries have them: what is dead keeps its place until it expires, is evicted or replaced.
//
// It does not call Config.Dropped: the caller numbers an event after it.
func (s *Shard) InvalidateTags(hashes []uint64, now int64) { s.tags.Invalidate(hashes, now) }

// Change is a change of the ring.
type Change struct {
	// View numbers the rings, upwards. A ring is in use before its Move begins, and its Move has returned before the next one is in use, so
	// that nothing is served that was kept for an earlier ownership of the key.
	View uint64
	// Fate says what becomes of a key. It runs with a shard lock held: a pure function.
	Fate func(key string) Fate
	// Until is how long what this member lost is kept for its new owner (see Aside). Not after Now: not at all.
	Now, Until int64
}

// Move follows a change of the ring: entries and leases of keys that this member does not own, before and after it, are removed, those who
// waited are answered Moved, and so is, from now on, whoever found the way here by an earlier ring. Leases granted by the new ring stay. What
// this member lost it keeps aside, for nobody but the new owner; what it was given for this ring becomes resident.
//
// Move locks one part after the other.
func (s *Shard) Move(c Change) (eff Effect) {
	// Why leases first: as in Clear. After this step no lease can be had, and nothing set, by an older ring.
	gained := make(map[string]Value)
	s.eachTable(func(t *table) {
		t.view = max(t.view, c.View)
		for _, l := range t.all() {
			if l.view < c.View && c.Fate(l.key) != Stays {
				t.revoke(l, &eff)
				t.dismiss(l, Result{Kind: Moved}, &eff)
			}
		}
		maps.Copy(gained, t.asides.move(c.Fate))
	})
	eff.Dropped = s.store.DeleteFunc(func(e *store.Entry[packed]) bool {
		f := c.Fate(e.Key)
		if f == Lost && c.Now < c.Until {
			if v := valueOf(e); s.Fresh(v, c.Now) {
				t := &s.tables[s.store.ShardOf(e.Key)] // the one that is locked
				t.asides.put(e.Key, aside{value: *v, since: c.Now, until: c.Until, bytes: e.Bytes()})
			}
		}
		return f != Stays
	})
	for key, v := range gained {
		s.Give(key, v, Given{View: c.View, Kept: true}, c.Now)
	}
	return eff
}

// Close empties the Shard for good: a Move away of everything that no later ring undoes.
func (s *Shard) Close() Effect {
	return s.Move(Change{View: math.MaxUint64, Fate: func(string) Fate { return Changed }})
}

// Invalidated returns when the last invalidation of key arrived, and the lowest version that is not dead. The number of
// keys remembered is bounded: for one that is not, at is when the newest of the forgotten ones was invalidated, which is
// late enough for every one of them, and the version is 0.
func (s *Shard) Invalidated(key string) (at int64, minVersion uint64) {
	tx := s.store.Begin(key)
	defer tx.End()
	return s.tables[tx.Shard()].tombstone(key)
}

func (t *table) newTombstones(size int) *simplelru.LRU[string, tombstone] {
	tombs, err := simplelru.NewLRU(size, func(_ string, old tombstone) { t.floor = max(t.floor, old.at) })
	if err != nil {
		panic("nearcache: no room for tombstones: " + err.Error()) // New never asks for less than one
	}
	return tombs
}

// rememberSet notes the version of a Set. It says nothing about loads: those are what the origin has.
func (t *table) rememberSet(key string, version uint64) {
	tomb, ok := t.tombs.Peek(key)
	if !ok {
		tomb = tombstone{at: t.floor, loose: t.floor}
	}
	tomb.set = max(tomb.set, version)
	t.tombs.Add(strings.Clone(key), tomb)
}

func (t *table) entomb(key string, minVersion uint64, now int64) {
	tomb, ok := t.tombs.Peek(key)
	if !ok {
		tomb = tombstone{at: t.floor, loose: t.floor}
	}
	tomb.at, tomb.least = max(tomb.at, now), max(tomb.least, minVersion)
	if minVersion == 0 {
		tomb.loose = tomb.at
	}
	t.tombs.Add(strings.Clone(key), tomb)
}

// lagEnd returns until when a load may read what was invalidated last (R11); 0: it may not. Where there was a version, that tells.
func (t *table) lagEnd(key string) int64 {
	if t.s.cfg.Lag == 0 {
		return 0
	}
	at := t.floor
	if tomb, ok := t.tombs.Peek(key); ok {
		at = tomb.loose
	}
	if at = max(at, t.s.outdated.Load()); at == 0 {
		return 0
	}
	return at + t.s.cfg.Lag
}

// tagLagEnd is lagEnd for the tags of a value.
func (s *Shard) tagLagEnd(v *Value) int64 {
	if at := s.tags.Newest(&v.Mark); s.cfg.Lag > 0 && at > 0 {
		return at + s.cfg.Lag
	}
	return 0
}

func (t *table) tombstone(key string) (at int64, minVersion uint64) {
	tomb, ok := t.tombs.Peek(key)
	if !ok {
		return t.floor, 0
	}
	return tomb.at, tomb.least
}
