package invalidation

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// OwnView is what this process has invalidated lately (R16): whatever a member answers, it does not see a value again whose load began
// before. Its owner has confirmed that it is gone; a stand-in that was not told may still have it.
//
// It holds 16,384 keys of a keyspace; what it has no room for it remembers as an invalidation of all keys. Stale copies (R19) may be from long ago:
// against these it holds its keys for ever, and forgets what it has no room for. It is safe for concurrent use.
type OwnView struct {
	until  atomic.Int64 // no answer that is asked for later is held against anything; 0: nothing is remembered
	answer int64        // the longest time that an answer takes

	mu      sync.Mutex // guards what follows
	keys    *simplelru.LRU[string, ownInvalidation]
	all     ownInvalidation // of the whole keyspace, and of keys that there was no room for
	hardAll int64           // when the last one of the whole keyspace began
}

// ownInvalidation is when one began, and until when what is asked for is held against it: no value that is asked for
// later, so that a flow of invalidations that never ends costs no loads of other keys. The zero one is over. hard is when the last one began that
// leaves no stale copies.
type ownInvalidation struct{ at, until, hard int64 }

// makesOld tells whether a value whose load began at loaded is older than the invalidation: what was read or written when it had begun
// is not.
func (i ownInvalidation) makesOld(loaded, asked int64) bool { return loaded < i.at && asked < i.until }

const ownKeys = 1 << 14

// NewOwnView returns a view in which nothing was invalidated. What is asked for is answered within answer.
func NewOwnView(answer time.Duration) *OwnView {
	keys, err := simplelru.NewLRU[string, ownInvalidation](ownKeys, nil)
	if err != nil {
		panic("nearcache: no room for the caller's own view: " + err.Error()) // the size is positive
	}
	return &OwnView{keys: keys, answer: int64(answer)}
}

// Invalidated remembers, for what is asked for until keep from now, that keys were invalidated by a call that began at at and has just
// returned. keys may be used again.
func (o *OwnView) Invalidated(keys []string, at, now int64, keep time.Duration) {
	o.note(keys, ownInvalidation{at: at, until: now + int64(keep), hard: at}, now)
}

// Expired does so for an Expire, which may leave stale copies.
func (o *OwnView) Expired(keys []string, at, now int64, keep time.Duration) {
	o.note(keys, ownInvalidation{at: at, until: now + int64(keep)}, now)
}

func (o *OwnView) note(keys []string, i ownInvalidation, now int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		if o.keys.Len() == ownKeys && !o.keys.Contains(k) {
			if _, gone, _ := o.keys.RemoveOldest(); now < gone.until+o.answer {
				o.coverLocked(gone)
			}
		}
		last, _ := o.keys.Peek(k)                      // a call that began later may have returned first
		o.keys.Add(strings.Clone(k), last.covering(i)) // the caller may reuse its memory
	}
	o.until.Store(max(o.until.Load(), i.until))
}

// AllInvalidated does so for the whole keyspace.
func (o *OwnView) AllInvalidated(at, now int64, keep time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.coverLocked(ownInvalidation{at: at, until: now + int64(keep)})
	o.hardAll = max(o.hardAll, at)
	o.until.Store(max(o.until.Load(), o.all.until))
}

// covering returns the invalidation that makes old whatever one of the two does.
func (i ownInvalidation) covering(j ownInvalidation) ownInvalidation {
	return ownInvalidation{at: max(i.at, j.at), until: max(i.until, j.until), hard: max(i.hard, j.hard)}
}

// coverLocked makes all cover i too.
func (o *OwnView) coverLocked(i ownInvalidation) { o.all = o.all.covering(i) }

// Active tells whether anything concerns what was asked for at asked: one atomic load.
func (o *OwnView) Active(asked int64) bool { return asked < o.until.Load() }

// Old reports whether a value of key whose load began at loaded, and which was asked for at asked, is older than an invalidation by this
// process. It is the asking that counts: a member that was not told may let it wait for a load that began before, however long that takes.
func (o *OwnView) Old(key string, loaded, asked int64) bool {
	if !o.Active(asked) {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	i, _ := o.keys.Peek(key)
	return i.makesOld(loaded, asked) || o.all.makesOld(loaded, asked)
}

// OldCopy reports whether a stale copy of key whose load began at loaded is older than an invalidation by this process, however long ago that was.
func (o *OwnView) OldCopy(key string, loaded int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	i, _ := o.keys.Peek(key)
	return loaded < max(i.hard, o.hardAll)
}

// Tick forgets what is over, but for stale copies.
func (o *OwnView) Tick(now int64) {
	if until := o.until.Load(); until == 0 || now < until+o.answer {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if now >= o.until.Load()+o.answer {
		o.until.Store(0)
		o.all = ownInvalidation{}
	}
}

// LoadedBy returns by when at the latest the load of a value had begun whose age a member measured, counted back from since. Its clock may run
// up to 1 % slower than this one's: a value that is a little older than its age says must not pass for one that is newer than an
// invalidation of a moment ago. (The simulation found it.)
func LoadedBy(since int64, age time.Duration) int64 { return since - int64(age+age/64) }
