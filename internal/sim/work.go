package sim

import "time"

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
	g := n.get(w.anyKey())
	if g.over {
		return
	}
	n.gets = append(n.gets, g)
	if len(n.gets) > 64 {
		n.gets = pending(n.gets)
	}
	if w.chance(w.cfg.LeaveShare) {
		n.after(time.Duration(w.exp(int64(5*time.Millisecond))), g.leave)
	}
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
	key := w.anyKey()
	version := w.origin.write(key)
	w.note(key, "%s commits version %d", n.id, version)
	all := w.chance(w.cfg.AllShare)
	set := !all && hasVersion(key)
	n.after(time.Duration(w.exp(int64(time.Millisecond))), func() {
		switch {
		case all:
			w.invalidateAll(n)
		case set:
			began := w.checker.begins(key)
			n.setKey(key, valueOf(key, version), uint64(version)+1, func(err *partialError) { w.returned(n, key, version, began, err) })
		default:
			began := w.checker.begins(key)
			n.invalidate(key, func(err *partialError) { w.returned(n, key, version, began, err) })
		}
	})
}

func (w *world) returned(n *node, key string, version int, began int64, err *partialError) {
	if err != nil {
		w.note(key, "%s: invalidation of version %d is partial: %v", n.id, version, err.members)
	} else {
		w.note(key, "%s: invalidation of version %d returns nil", n.id, version)
	}
	w.checker.ended(n, key, version, began, err)
}

func (w *world) invalidateAll(n *node) {
	versions := make([]int, len(w.keys))
	for i, k := range w.keys {
		versions[i] = w.origin.version(k)
		w.checker.begins(k)
	}
	began := w.now
	w.note("", "%s invalidates all", n.id)
	n.invalidateAll(func(err *partialError) {
		for i, k := range w.keys {
			w.returned(n, k, versions[i], began, err)
		}
	})
}
