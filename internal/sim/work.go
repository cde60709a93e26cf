package sim

import (
	"slices"
	"time"
)

// work starts the callers: readers everywhere, writers anywhere.
func (w *world) work() {
	for i := range w.members {
		w.after(int64(100*time.Millisecond), func() { w.readAt(i) })
	}
	w.after(int64(time.Second), w.writeAnywhere)
}

func (w *world) anyKey() string { return w.keys[w.zipf.Uint64()%uint64(len(w.keys))] }

// readAt lets the process at a member read, again and again.
func (w *world) readAt(i int) {
	if w.quiet && w.now > w.calmAt+2*int64(healTime) {
		return
	}
	w.after(w.exp(int64(float64(time.Second)*float64(len(w.members))/w.cfg.Reads)), func() { w.readAt(i) })
	if n := w.members[i].node; n != nil && !n.dead && !n.paused && !n.draining {
		w.readOn(n)
	}
}

func (w *world) readOn(n *node) {
	var all []*reading
	if w.chance(w.cfg.ManyShare) {
		all = pending(n.getMany(w.someKeys()))
	} else {
		all = pending([]*reading{n.get(w.anyKey())})
	}
	if len(all) == 0 {
		return
	}
	n.gets = append(n.gets, all...)
	if len(n.gets) > 64 {
		n.gets = pending(n.gets)
	}
	if w.chance(w.cfg.LeaveShare) {
		d := time.Duration(w.exp(int64(5 * time.Millisecond)))
		for _, g := range all {
			n.after(d, g.leave)
		}
	}
}

// someKeys returns up to eight keys, each once.
func (w *world) someKeys() (keys []string) {
	for range 2 + w.rnd.IntN(7) {
		if k := w.anyKey(); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

func pending(all []*reading) []*reading {
	left := all[:0]
	for _, g := range all {
		if !g.over {
			left = append(left, g)
		}
	}
	return left
}

// writeAnywhere commits a write and lets its process tell the cache.
func (w *world) writeAnywhere() {
	if w.quiet {
		return
	}
	w.after(w.exp(int64(float64(time.Second)/w.cfg.Writes)), w.writeAnywhere)
	n := w.members[w.rnd.IntN(len(w.members))].node
	if n == nil || n.dead || n.paused || n.draining || !n.members.known {
		return
	}
	key, tell := w.anyKey(), n.tellKey
	written := []string{key}
	switch {
	case w.chance(w.cfg.AllShare):
		tell = n.tellAll
		if w.chance(w.cfg.ExpireShare) {
			tell = n.tellGap
		}
	case w.chance(w.cfg.TagShare):
		tell, written = n.tellTag, w.tagged(tagOf(key))
	case w.isUpdated(key):
		n.updateKey(key)
		return
	case hasVersion(key):
		tell = n.tellSet
	}
	for _, k := range written {
		w.note(k, "%s commits version %d", n.id, w.origin.write(k))
	}
	version := w.origin.version(key)
	n.after(time.Duration(w.exp(int64(time.Millisecond))), func() { tell(key, version) })
}

// tagged returns the keys whose values have a tag.
func (w *world) tagged(t string) (keys []string) {
	for _, k := range w.keys {
		if tagOf(k) == t {
			keys = append(keys, k)
		}
	}
	return keys
}

// The ways to tell the cache of a write to key.

func (n *node) tellSet(key string, version int) {
	began := n.w.now
	n.w.checker.begins(key)
	n.setKey(key, loadedAt(valueOf(key, version), began), uint64(version)+1, func(err *partialError) { n.w.returned(n, key, ack{began: began, version: version}, err) })
}

func (n *node) tellKey(key string, _ int) {
	ackAll, soft := n.w.chance(n.w.cfg.AckAllShare), n.w.chance(n.w.cfg.ExpireShare)
	n.invalidate(key, soft, ackAll, n.w.judge(n, ack{soft: soft, all: ackAll}, key))
}

func (n *node) tellTag(key string, _ int) {
	t, ackAll := tagOf(key), n.w.chance(n.w.cfg.AckAllShare)
	n.invalidateTag(t, ackAll, n.w.judge(n, ack{all: ackAll}, n.w.tagged(t)...))
}

func (n *node) tellAll(string, int) {
	n.invalidateAll(n.w.judge(n, ack{}, n.w.keys...))
}

// tellGap is what a feed does that may have missed anything. It is no call of the process: its own view knows nothing of it.
func (n *node) tellGap(string, int) {
	n.expireAll(n.w.judge(n, ack{soft: true, feed: true}, n.w.keys...))
}

// judge notes that the newest versions of keys are being invalidated, in the way that kind says. It returns what is to be called when that
// has returned.
func (w *world) judge(n *node, kind ack, keys ...string) func(*partialError) {
	kind.began = w.now
	versions := make([]int, len(keys))
	for i, k := range keys {
		versions[i] = w.origin.version(k)
		w.checker.begins(k)
		w.note(k, "%s invalidates version %d", n.id, versions[i])
	}
	return func(err *partialError) {
		for i, k := range keys {
			kind.version = versions[i]
			w.returned(n, k, kind, err)
		}
	}
}

func (w *world) returned(n *node, key string, a ack, err *partialError) {
	if err != nil {
		w.note(key, "%s: invalidation of version %d is partial: %v", n.id, a.version, err.members)
	} else {
		w.note(key, "%s: invalidation of version %d returns nil", n.id, a.version)
	}
	w.checker.ended(n, key, a, err)
}
