package hotkey

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// MaxHot bounds the hot keys, those of Config.Pin included: a key that would be one more does not become hot.
	MaxHot = 128
	// quietWindows is how long a hot key is read less than half as often as makes one hot before it is hot no more.
	quietWindows = 10
)

// Config says what makes a key hot.
type Config struct {
	PerSecond int      // reads by this process within a window; 0 or less: none does
	Pin       []string // are always hot, at most MaxHot
}

// Keys is what is known of the keys of one keyspace. It must be made by New.
type Keys struct {
	perSecond uint32
	table     table
	number    atomic.Int64 // of hot keys, so that IsHot costs next to nothing while there are none

	mu   sync.Mutex // guards what follows; before the lock of a stripe
	hot  map[string]*hotKey
	ends int64 // the window
}

// hotKey is a key that is hot.
type hotKey struct {
	since  int64
	pinned bool
	quiet  int  // windows on end in which it was read too seldom
	idle   bool // it was not read at all in the last one
}

// Key is what is known of a key.
type Key struct {
	Key      string
	Rate     float64       // uses a second, at least
	Error    float64       // and at most so many more
	Uses     [Kinds]uint64 // since Since
	Loads    uint64        // by this process, since Since
	LoadTime int64         // of the last of them, in ns; 0: none
	Since    int64
	HotSince int64 // 0: it is not hot
	Pinned   bool  // by Config.Pin
}

// New returns a Keys whose first window begins at now.
func New(cfg Config, now int64) *Keys {
	k := &Keys{perSecond: math.MaxUint32, ends: now + Window, hot: make(map[string]*hotKey)}
	k.table.seed = maphash.MakeSeed()
	if cfg.PerSecond > 0 {
		k.perSecond = uint32(min(cfg.PerSecond, math.MaxInt32))
	}
	for _, key := range cfg.Pin {
		k.hot[key] = &hotKey{since: now, pinned: true}
	}
	k.number.Store(int64(len(k.hot)))
	return k
}

// Count notes n uses of key, which may alias a buffer, and returns its rate: so many uses a second it has for sure. It blocks on a short
// mutex only, and may be called with a lock held.
func (k *Keys) Count(key string, kind Kind, n uint32, now int64) (perSecond float64) {
	before, reads, rate := k.table.add(key, kind, n, now)
	if before < k.perSecond && k.perSecond <= reads {
		k.become(key, now)
	}
	return rate
}

// become makes key hot.
func (k *Keys) become(key string, now int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hot[key] == nil && len(k.hot) < MaxHot {
		k.hot[strings.Clone(key)] = &hotKey{since: now}
		k.number.Add(1)
	}
}

// Loaded notes a load of key by this process that took so many ns. It is no use: the read that caused it is.
func (k *Keys) Loaded(key string, took, now int64) { k.table.loaded(key, took, now) }

// Tick ends the windows that are over and returns the keys that are hot no more. It should be called several times a second.
func (k *Keys) Tick(now int64) (cooled []string) {
	const most = 32 // nothing is left of a use that many windows ago
	k.mu.Lock()
	defer k.mu.Unlock()
	for range most {
		if now < k.ends {
			return cooled
		}
		k.ends += Window
		k.table.halve()
		for key, h := range k.hot {
			if k.coolsLocked(key, h) {
				cooled = append(cooled, key)
				delete(k.hot, key)
				k.number.Add(-1)
			}
		}
	}
	k.ends = max(k.ends, now)
	return cooled
}

// coolsLocked judges a hot key by the window that has ended.
func (k *Keys) coolsLocked(key string, h *hotKey) bool {
	reads := k.table.reads(key)
	h.idle = reads == 0
	if h.quiet++; reads >= k.perSecond-k.perSecond/2 {
		h.quiet = 0
	}
	return h.quiet >= quietWindows && !h.pinned
}

// IsHot tells whether key is hot.
func (k *Keys) IsHot(key string) bool {
	if k.number.Load() == 0 {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hot[key] != nil
}

// Read returns the hot keys that were read in the last window, or became hot after it, and those of Config.Pin, sorted.
func (k *Keys) Read() (keys []string) {
	if k.number.Load() == 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, h := range k.hot {
		if h.pinned || !h.idle {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Len returns the number of hot keys.
func (k *Keys) Len() int { return int(k.number.Load()) }

// Top returns the n keys with the highest rates, the highest first. It looks at the whole table.
func (k *Keys) Top(n int) []Key {
	all := k.table.top(n)
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range all {
		if h := k.hot[all[i].Key]; h != nil {
			all[i].HotSince, all[i].Pinned = h.since, h.pinned
		}
	}
	return all
}
