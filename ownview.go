package nearcache

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// ownView is what this process has invalidated within the last Bound (R16): whatever a member answers, it does not see a value
// again whose load began before. Its owner has confirmed that it is gone; a stand-in that was not told may still have it.
type ownView struct {
	until atomic.Int64 // nothing is remembered beyond it; 0: nothing is

	mu    sync.Mutex // guards keys and floor
	keys  *simplelru.LRU[string, int64]
	floor int64 // for keys that fell out
}

const ownKeys = 1 << 14

func newOwnView() *ownView {
	o := &ownView{}
	keys, err := simplelru.NewLRU(ownKeys, func(_ string, at int64) { o.floor = max(o.floor, at) })
	if err != nil {
		panic("nearcache: no room for the caller's own view: " + err.Error()) // the size is positive
	}
	o.keys = keys
	return o
}

// invalidated remembers that keys were invalidated by a call that began at at and has just returned.
func (o *ownView) invalidated(keys []string, at, now int64, bound time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		o.keys.Add(strings.Clone(k), at) // the caller may reuse its memory
	}
	o.until.Store(now + int64(bound))
}

// allInvalidated does so for the whole keyspace.
func (o *ownView) allInvalidated(at, now int64, bound time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.floor = max(o.floor, at)
	o.until.Store(now + int64(bound))
}

// old reports whether a value of key whose load began at loaded may be older than an invalidation by this process.
func (o *ownView) old(key string, loaded, now int64) bool {
	if now >= o.until.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.keys.Peek(key)
	return loaded <= max(at, o.floor) && (ok || o.floor > 0)
}

// tick forgets what is over.
func (o *ownView) tick(now int64) {
	if until := o.until.Load(); until == 0 || now < until {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if now >= o.until.Load() {
		o.until.Store(0)
		o.keys.Purge()
		o.floor = 0
	}
}
