package invalidation

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Holds are the keys of a keyspace that somebody holds while he changes them (R13): what is loaded of them is kept nowhere, and shared with nobody
// who comes later. A key may be held more than once: it is free when the last hold is over.
//
// All methods are safe for concurrent use. The lock is a leaf: Held may be called under a store's shard lock.
type Holds struct {
	max  int
	some atomic.Bool // there are any

	mu   sync.RWMutex // guards keys
	keys map[string][]hold
}

// HoldID names a hold: the life of the member that has it, and its number there. (Two members may have started in the same nanosecond: an
// incarnation does not tell them apart.)
type HoldID struct {
	Holder string
	Number uint64
}

// hold is one of a key.
type hold struct {
	id    HoldID
	until int64
}

// NewHolds returns holds of at most limit keys.
func NewHolds(limit int) *Holds { return &Holds{max: limit, keys: make(map[string][]hold)} }

// Hold holds all of the keys until then, or none of them: there are too many. What holds them already is extended, or shortened. keys may
// alias a buffer.
func (h *Holds) Hold(keys []string, id HoldID, until int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.keys)+len(keys) > h.max {
		return false
	}
	h.some.Store(true)
	for _, k := range keys {
		holds := h.keys[k]
		i := slices.IndexFunc(holds, func(o hold) bool { return o.id == id })
		if i >= 0 {
			holds[i].until = until
			continue
		}
		h.keys[strings.Clone(k)] = append(holds, hold{id: id, until: until})
	}
	return true
}

// Release ends one hold. keys may alias a buffer.
func (h *Holds) Release(keys []string, id HoldID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range keys {
		h.endLocked(k, func(o hold) bool { return o.id == id })
	}
}

// Held reports whether somebody holds the key.
func (h *Holds) Held(key string) bool {
	if !h.some.Load() {
		return false
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.keys[key]) > 0
}

// Tick ends the holds whose time is over.
func (h *Holds) Tick(now int64) {
	if !h.some.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range h.keys {
		h.endLocked(k, func(o hold) bool { return now >= o.until })
	}
}

func (h *Holds) endLocked(key string, over func(hold) bool) {
	holds := slices.DeleteFunc(h.keys[key], over)
	if len(holds) > 0 {
		h.keys[strings.Clone(key)] = holds // the map refers to the key of the last assignment
		return
	}
	delete(h.keys, key)
	h.some.Store(len(h.keys) > 0)
}
