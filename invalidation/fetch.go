package invalidation

import "sync/atomic"

// Fetch is the placeholder of a key that is being fetched from a peer (R3). It is made, and can be found by the key's events, before the
// request leaves; Gen is the peer's State.Gen at that moment. It must not be copied.
type Fetch struct {
	Gen uint64

	seen atomic.Uint64 // the highest number of an event of the key, or of its whole keyspace
}

// Seen notes an event of the key. It is called before the event deletes the key's near copy, so that a copy installed at the same time
// either sees the mark or is deleted. Safe for concurrent use.
func (f *Fetch) Seen(seq uint64) {
	for {
		old := f.seen.Load()
		if seq <= old || f.seen.CompareAndSwap(old, seq) {
			return
		}
	}
}

// Installable reports whether an answer to this fetch may become a near copy of generation f.Gen and number seq: it comes from the
// incarnation that the member follows, or the member follows none yet; nothing was missed meanwhile; and no event of the key is newer
// than the answer. An event that overtook a newer answer does not waste it.
//
// It is asked under the lock that deletes the key's near copy. The other conditions of R3, the ring and the lease, are the caller's: a copy
// that is served without a lease until H after its request was sent needs none.
func (f *Fetch) Installable(incarnation, seq uint64, s State) bool {
	return (incarnation == s.Incarnation || s.Incarnation == 0) && f.Gen == s.Gen && seq >= f.seen.Load()
}
