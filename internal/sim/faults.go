package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/peers"
)

// breakThings lets something go wrong now and then.
func (w *world) breakThings() {
	var kinds []func(i int)
	f := &w.cfg.Faults
	for _, k := range []struct {
		on   bool
		what func(int)
	}{{f.Crash, w.crash}, {f.Isolate, w.isolate}, {f.Cut, w.cut}, {f.OneWay, w.oneWay}, {f.Pause, w.pause}, {f.Leave, w.leave}, {f.Halve, w.halve}} {
		if k.on {
			kinds = append(kinds, k.what)
		}
	}
	if len(kinds) == 0 {
		return
	}
	var next func()
	next = func() {
		if w.quiet {
			return
		}
		w.after(w.between(int64(f.Every)/2, int64(f.Every)*3/2), next)
		if w.busy == 0 {
			kinds[w.rnd.IntN(len(kinds))](w.rnd.IntN(len(w.members)))
		}
	}
	w.after(int64(3*time.Second), next)
}

// calm ends all faults and the load.
func (w *world) calm() {
	w.quiet, w.calmAt = true, w.now
	w.note("", "everything heals")
	f := &w.cfg.Faults
	*f = Faults{ClockRate: f.ClockRate, Learn: f.Learn, Crash: f.Crash, Leave: f.Leave, Halve: f.Halve, Isolate: f.Isolate, Pause: f.Pause}
	for i := range w.blocked {
		clear(w.blocked[i])
	}
	for _, n := range w.alive() {
		w.resume(n)
	}
}

// during marks a fault for a time, and calls end then.
func (w *world) during(d int64, end func()) {
	w.busy++
	w.after(d, func() {
		end()
		w.busy--
	})
}

// halve lets half of the members leave within a moment, or it cuts the smaller part of them off from the others, and discovery tells each part of
// nobody else. The smaller one hears of the others again before its list, which is held back, takes effect: then it would be a whole by itself,
// unless it is a quarter or less.
func (w *world) halve(int) {
	all := w.rnd.Perm(len(w.members))
	if w.chance(0.3) {
		w.note("", "HALVE %v", all[:len(all)/2])
		for _, i := range all[:len(all)/2] {
			w.leave(i)
		}
		return
	}
	part, longest := all[:(len(all)-1)/2], 9500*time.Millisecond
	if w.chance(0.5) {
		part, longest = all[:len(all)/4], 14*time.Second
	}
	w.note("", "SPLIT %v", part)
	in := func(i int) bool { return slices.Contains(part, i) }
	links := func(blocked bool) {
		for i := range w.members {
			for j := range w.members {
				if in(i) != in(j) {
					w.setLink(i, j, blocked)
				}
			}
		}
	}
	whole := w.list
	links(true)
	for _, side := range []bool{true, false} {
		w.list = slices.DeleteFunc(slices.Clone(whole), func(p peers.Member) bool { return in(w.index(p.ID)) != side })
		w.publish(func(n *node) bool { return in(n.index) == side })
	}
	w.list = whole
	d := w.between(int64(200*time.Millisecond), int64(longest))
	w.during(d+5*int64(w.cfg.Bound), func() {})
	w.after(d, func() {
		w.note("", "HEAL")
		links(false)
		w.publish(nil)
	})
}

// announce changes the list, and lets every process learn of it in its own time. Those for which hears is false do not.
func (w *world) announce(i int, in bool, hears func(*node) bool) {
	m := w.members[i]
	w.list = slices.DeleteFunc(slices.Clone(w.list), func(p peers.Member) bool { return p.ID == m.id })
	if in {
		w.list = append(w.list, peers.Member{ID: m.id, Addr: m.addr})
	}
	w.publish(hears)
}

// publish lets processes learn of the list, each in its own time.
func (w *world) publish(hears func(*node) bool) {
	w.number++
	list, number := w.list, w.number
	f := &w.cfg.Faults
	for _, n := range w.alive() {
		d := w.between(0, int64(f.Learn))
		if w.chance(f.SlowView) {
			d = w.between(0, int64(f.SlowFor))
		}
		if hears == nil || hears(n) {
			w.after(d, func() { n.event(func() { n.setMembers(list, number) }) })
		}
	}
}

// crash kills a process, with or without its host, and starts it again; if it is away for longer it is taken off the list.
func (w *world) crash(i int) {
	n := w.members[i].node
	silent := w.chance(0.3)
	w.note("", "CRASH %s silent %v", n.id, silent)
	n.crash(silent)
	away := w.between(int64(100*time.Millisecond), int64(6*time.Second))
	removed := false
	w.after(w.between(int64(500*time.Millisecond), int64(1500*time.Millisecond)), func() {
		if n.w.members[i].node == n {
			removed = true
			w.announce(i, false, nil)
		}
	})
	w.during(away+5*int64(w.cfg.Bound), func() {})
	w.after(away, func() {
		w.note("", "RESTART %s", n.id)
		w.start(i)
		if removed {
			w.announce(i, true, nil)
		}
	})
}

// isolate cuts one member off. If that lasts the others may drop it from their list; it may hear of that or not.
func (w *world) isolate(i int) {
	w.note("", "ISOLATE %s", w.ids[i])
	w.block(i, true, true)
	d := w.between(int64(200*time.Millisecond), int64(9*time.Second))
	removed := false
	if d > int64(3*time.Second) && w.chance(0.6) && !w.cfg.Faults.Listed {
		told := w.chance(0.5)
		w.after(int64(1500*time.Millisecond), func() {
			removed = true
			w.announce(i, false, func(n *node) bool { return told || n.index != i })
		})
	}
	w.during(d+5*int64(w.cfg.Bound), func() {})
	w.after(d, func() {
		w.note("", "HEAL %s", w.ids[i])
		w.block(i, false, false)
		if removed {
			w.announce(i, true, nil)
		}
	})
}

// block stops, or lets go on, what comes to and from a member. Some connections break.
func (w *world) block(i int, in, out bool) {
	for j := range w.members {
		if i != j {
			w.setLink(j, i, in)
			w.setLink(i, j, out)
		}
	}
}

func (w *world) setLink(from, to int, blocked bool) {
	w.blocked[from][to] = blocked
	if !blocked || w.chance(0.3) {
		return
	}
	a, b := w.members[from].node, w.members[to].node
	if a == nil || b == nil {
		return
	}
	for _, p := range []*peer{a.peers[b.id], b.peers[a.id]} {
		if p != nil && p.conn != nil {
			c := p.conn
			w.after(w.between(0, int64(4*time.Second)), func() {
				if w.blocked[from][to] {
					c.breakDown()
				}
			})
		}
	}
}

// cut cuts one link.
func (w *world) cut(i int) { w.cutLink(i, true) }

// oneWay cuts one direction of a link, or all that one member says or hears.
func (w *world) oneWay(i int) {
	if w.chance(0.3) {
		w.note("", "ISOLATE ONE WAY %s", w.ids[i])
		in := w.chance(0.5)
		w.block(i, in, !in)
		w.during(w.between(int64(200*time.Millisecond), int64(8*time.Second)), func() { w.block(i, false, false) })
		return
	}
	w.cutLink(i, false)
}

func (w *world) cutLink(i int, both bool) {
	j := (i + 1 + w.rnd.IntN(len(w.members)-1)) % len(w.members)
	w.note("", "CUT %s-%s both %v", w.ids[i], w.ids[j], both)
	w.setLink(i, j, true)
	if both {
		w.setLink(j, i, true)
	}
	w.during(w.between(int64(200*time.Millisecond), int64(8*time.Second)), func() {
		w.note("", "HEAL %s-%s", w.ids[i], w.ids[j])
		w.setLink(i, j, false)
		w.setLink(j, i, false)
	})
}

// pause stops a process and lets it go on; its clock goes on all the time.
func (w *world) pause(i int) {
	n := w.members[i].node
	w.note("", "STOP %s", n.id)
	n.paused = true
	w.during(w.between(int64(20*time.Millisecond), int64(4*time.Second)), func() {
		w.note("", "CONT %s", n.id)
		w.resume(n)
	})
}

// resume lets a process go on: callers first, then what has waited for it.
func (w *world) resume(n *node) {
	if !n.paused || n.dead {
		return
	}
	n.paused = false
	if !w.quiet {
		for range 5 {
			w.readOn(n)
		}
	}
	late := n.deferred
	n.deferred = nil
	for _, f := range late {
		n.event(f)
	}
}

// leave takes a member off the list and puts it back: it goes on all the time, or closes and is started anew.
func (w *world) leave(i int) {
	n := w.members[i].node
	closes := w.chance(0.5)
	w.note("", "LEAVE %s closes %v", n.id, closes)
	w.left[n.id] = true
	first := closes && w.cfg.HandOver && w.chance(0.7) // as processes do that are asked to stop: discovery hears of it afterwards
	if first {
		n.drain()
		w.after(w.between(0, 4*int64(w.cfg.Bound)), func() { w.announce(i, false, nil) })
	} else {
		w.announce(i, false, nil)
	}
	back := 5*int64(w.cfg.Bound) + w.between(0, int64(4*time.Second))
	if closes && !first {
		w.after(w.between(0, 5*int64(w.cfg.Bound)), func() { n.event(n.drain) })
	}
	w.during(back+5*int64(w.cfg.Bound), func() {})
	w.after(back, func() {
		w.note("", "JOIN %s", n.id)
		w.left[n.id] = false
		if closes {
			w.start(i)
		}
		w.announce(i, true, nil)
	})
}
