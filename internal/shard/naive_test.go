package shard

import "slices"

// naive is a second implementation of Shard for the model test, as plain as can be: slices that every operation walks
// from the start, no deadlines but by looking at everything. It never evicts and remembers every invalidation.
type naive struct {
	keys   map[string]*nkey
	view   uint64
	floor  int64
	grants int      // numbers the leases
	tags   []uint64 // invalidated, in their order
	cap    int64    // Config.Cap

	patience, retry int64 // as in Config
}

type nkey struct {
	set   uint64 // version of the last Set
	value *Value
	since int    // how many tags had been invalidated when its load began
	aside naside // what Aside returns
	lease *nlease
	queue []nask // in the order they came
	least uint64 // lowest version that is not dead
	at    int64  // last invalidation
	known bool   // there was one
	mark  int64  // last ExpireAll, and one; 0: none
}

type naside struct {
	value *Value
	since int // as of a value
	until int64
}

type nlease struct {
	grant  int
	began  int64
	since  int // as of a value
	holder string
	until  int64 // as granted
	cut    int64 // HolderGone; 0: no
	view   uint64
	passed bool
	asker  any
	cap    int64
	lost   bool // AskerGone
}

type nask struct {
	Ask
	after int // Fresh: the lease that was live
}

// nwake is a Wake in plain terms.
type nwake struct {
	who    any
	kind   Kind
	text   string // of a hit
	keep   bool   // of a hit
	lapsed bool   // of a lease
	grant  int    // of a lease
	why    any    // of a failure
}

type neffect struct {
	outcome Outcome
	revoked []int // grants
	wakes   []nwake
}

func newNaive(keys []string) *naive {
	n := &naive{keys: map[string]*nkey{}}
	for _, k := range keys {
		n.keys[k] = &nkey{}
	}
	return n
}

func (n *naive) fresh(k *nkey, now int64) bool {
	return k.value != nil && now < k.value.Soft && k.value.LoadedAt >= k.mark && !n.dead(k.value, k.since)
}

// dead tells whether a tag of v was invalidated after the first since of them.
func (n *naive) dead(v *Value, since int) bool {
	tags, known := v.Mark.Tags()
	for _, gone := range n.tags[since:] {
		if !known || slices.Contains(tags, gone) {
			return true
		}
	}
	return false
}

func (k *nkey) kept(now int64) bool { return k.value != nil && now < k.value.Hard }

func (l *nlease) over(now int64) bool { return now >= l.until || l.cut != 0 && now >= l.cut }

func (k *nkey) holds(grant int, now int64) bool {
	return k.lease != nil && k.lease.grant == grant && !k.lease.over(now)
}

// tooOld tells whether a value of version v may not replace what is known.
func (k *nkey) tooOld(v uint64, now int64) bool {
	return v > 0 && (v < k.least || k.kept(now) && v < k.value.Version)
}

func (n *naive) acquire(key string, a Ask, now int64) nwake {
	k := n.keys[key]
	if a.View < n.view {
		return nwake{kind: Moved}
	}
	if n.fresh(k, now) && !a.Fresh && (!a.Ahead || k.lease != nil) {
		return nwake{kind: Hit, text: string(k.value.Bytes), keep: true}
	}
	stale := ""
	if n.servable(k, now) && !a.Fresh {
		stale = string(k.value.Bytes)
	}
	left := stale != "" && (k.value.Expired || k.value.LoadedAt < k.mark)
	if k.lease != nil && (len(k.queue) > 0 || !k.lease.over(now)) {
		if patience := k.lease.began + n.patience; stale != "" {
			if left || now >= patience {
				return nwake{kind: Stale, text: stale, lapsed: !left}
			}
			a.Until = min(a.Until, patience)
		}
		q := nask{Ask: a}
		limit := k.lease.cap
		if limit == 0 {
			limit = n.cap
		}
		if a.Fresh || limit > 0 && now-k.lease.began > limit/2 {
			q.after = k.lease.grant
		}
		k.queue = append(k.queue, q)
		return nwake{kind: Waiting}
	}
	if stale != "" && now < k.value.Retry {
		return nwake{kind: Stale, text: stale, lapsed: !left}
	}
	w := n.grant(k, a, now)
	w.text, w.lapsed = stale, stale != "" && !left
	return w
}

// servable tells whether what is kept of a key may be served as a stale copy.
func (n *naive) servable(k *nkey, now int64) bool {
	if !k.kept(now) || k.value.Absent || n.dead(k.value, k.since) || n.fresh(k, now) {
		return false
	}
	return k.value.Expired || k.value.LoadedAt >= k.mark || now < k.value.Soft
}

// instead is what q gets in place of w.
func (n *naive) instead(k *nkey, q nask, w nwake, now int64) nwake {
	if n.servable(k, now) && !q.Fresh {
		w = nwake{kind: Stale, text: string(k.value.Bytes), lapsed: !k.value.Expired && k.value.LoadedAt >= k.mark}
	}
	w.who = q.Waiter
	return w
}

func (n *naive) grant(k *nkey, a Ask, now int64) nwake {
	n.grants++
	k.lease = &nlease{grant: n.grants, began: now, since: len(n.tags), holder: a.Holder, until: now + a.Life, view: a.View, asker: a.Waiter, cap: n.cap}
	return nwake{who: a.Waiter, kind: Lease, grant: n.grants}
}

// next ends the lease in favour of the first who still waits.
func (n *naive) next(k *nkey, now int64, eff *neffect) {
	k.lease = nil
	for len(k.queue) > 0 && k.lease == nil {
		q := k.queue[0]
		k.queue = k.queue[1:]
		if now >= q.Until {
			eff.wakes = append(eff.wakes, n.instead(k, q, nwake{kind: TimedOut}, now))
		} else {
			eff.wakes = append(eff.wakes, n.grant(k, q.Ask, now))
		}
	}
}

// all ends the lease with w for everybody.
func (n *naive) all(k *nkey, w nwake, eff *neffect) {
	for _, q := range k.queue {
		w.who = q.Waiter
		eff.wakes = append(eff.wakes, w)
	}
	k.queue, k.lease = nil, nil
}

// some ends the lease with w for those it can answer.
func (n *naive) some(k *nkey, w nwake, now int64, eff *neffect) {
	var rest []nask
	for _, q := range k.queue {
		if q.after >= k.lease.grant {
			rest = append(rest, q)
			continue
		}
		w.who = q.Waiter
		eff.wakes = append(eff.wakes, w)
	}
	k.queue = rest
	n.next(k, now, eff)
}

func (n *naive) revoke(k *nkey, eff *neffect) { eff.revoked = append(eff.revoked, k.lease.grant) }

// lapse passes an expired lease on, if it is this grant's.
func (n *naive) lapse(k *nkey, grant int, now int64, eff *neffect) {
	if k.lease != nil && k.lease.grant == grant && k.lease.over(now) {
		n.revoke(k, eff)
		n.next(k, now, eff)
	}
}

func (n *naive) fill(key string, grant int, v Value, now int64, keep bool) (eff neffect) {
	k := n.keys[key]
	if !k.holds(grant, now) {
		n.lapse(k, grant, now, &eff)
		eff.outcome = Rejected
		return eff
	}
	late := max(v.LoadedAt-k.lease.began, 0)
	v.LoadedAt, v.Soft, v.Hard = v.LoadedAt-late, v.Soft-late, v.Hard-late
	if c := k.lease.cap; c > 0 {
		v.Soft, v.Hard = min(v.Soft, v.LoadedAt+c), min(v.Hard, v.LoadedAt+c)
	}
	since := k.lease.since
	if n.dead(&v, since) {
		eff.outcome = Rejected
		n.next(k, now, &eff)
		return eff
	}
	if k.tooOld(v.Version, now) {
		eff.outcome = Rejected
		if k.kept(now) && k.value.Version > v.Version && n.fresh(k, now) {
			n.some(k, nwake{kind: Hit, text: string(k.value.Bytes), keep: true}, now, &eff)
		} else {
			n.next(k, now, &eff)
		}
		return eff
	}
	if k.lease.cap > 0 && n.servable(k, now) {
		if k.value.Hard > v.Hard {
			v.Hard, v.Inherits = k.value.Hard, true
		}
	}
	n.some(k, n.place(k, v, since, now, keep, &eff), now, &eff)
	return eff
}

func (n *naive) place(k *nkey, v Value, since int, now int64, keep bool, eff *neffect) nwake {
	eff.outcome, k.value, k.since, k.aside = Passed, nil, since, naside{}
	if keep && now < v.Hard {
		eff.outcome, k.value = Stored, &v
	}
	return nwake{kind: Hit, text: string(v.Bytes), keep: eff.outcome == Stored}
}

func (n *naive) release(key string, grant int, cause Cause, why any, now int64) (eff neffect) {
	k := n.keys[key]
	if !k.holds(grant, now) {
		n.lapse(k, grant, now, &eff)
		return eff
	}
	if cause == Abandoned {
		n.next(k, now, &eff)
		return eff
	}
	if cause == Shed && !k.lease.passed {
		for i, q := range k.queue {
			if q.Holder != k.lease.holder && q.Until > now {
				k.queue = slices.Delete(k.queue, i, i+1)
				eff.wakes = append(eff.wakes, n.grant(k, q.Ask, now))
				k.lease.passed = true
				return eff
			}
		}
	}
	if n.servable(k, now) {
		v := *k.value
		v.Retry = now + n.retry
		k.value = &v
	}
	for _, q := range k.queue {
		eff.wakes = append(eff.wakes, n.instead(k, q, nwake{kind: Failed, why: why}, now))
	}
	k.queue, k.lease = nil, nil
	return eff
}

func (n *naive) hold(key string, grant int, asker any, now int64) (eff neffect) {
	k := n.keys[key]
	if !k.holds(grant, now) {
		n.lapse(k, grant, now, &eff)
		return eff
	}
	k.lease.asker, k.lease.lost, k.lease.cut = asker, false, 0
	return eff
}

func (n *naive) askerGone(gone func(any) bool, until int64) {
	for _, k := range n.keys {
		if l := k.lease; l != nil && gone(l.asker) {
			l.lost = true
			if l.cut == 0 || until < l.cut {
				l.cut = until
			}
		}
	}
}

func (n *naive) heldAll(holder string, now int64) (eff neffect) {
	for _, k := range n.keys {
		if l := k.lease; l != nil && l.lost && l.holder == holder {
			n.revoke(k, &eff)
			n.next(k, now, &eff)
		}
	}
	return eff
}

func (n *naive) set(key string, v Value, c Cond, now int64) (eff neffect) {
	k := n.keys[key]
	if c.View < n.view {
		eff.outcome = Outdated
		return eff
	}
	there := n.fresh(k, now) && !k.value.Absent
	if c.IfAbsent && there || c.IfPresent && !there || k.tooOld(v.Version, now) || v.Version > 0 && v.Version < k.set {
		eff.outcome = Rejected
		return eff
	}
	if k.lease != nil {
		n.revoke(k, &eff)
	}
	k.set = max(k.set, v.Version)
	n.all(k, n.place(k, v, len(n.tags), now, true, &eff), &eff)
	return eff
}

func (n *naive) invalidate(key string, least uint64, now int64) (eff neffect) {
	k := n.keys[key]
	if k.value != nil && (least == 0 || k.value.Version < least) {
		k.value = nil
	}
	if a := k.aside.value; a != nil && (least == 0 || a.Version < least) {
		k.aside = naside{}
	}
	k.least, k.at, k.known = max(k.least, least), now, true
	if k.lease != nil {
		n.revoke(k, &eff)
		n.next(k, now, &eff)
	}
	return eff
}

func (n *naive) expire(key string, least uint64, now int64) (eff neffect) {
	k := n.keys[key]
	old := k.value
	eff = n.invalidate(key, least, now)
	if old == nil || k.value != nil || old.Absent || now >= old.Hard || !old.Expired && (now >= min(old.Soft, k.end(old)) || n.dead(old, k.since)) {
		return eff
	}
	v := *old
	if !v.Expired {
		v.Soft, v.Hard, v.Expired = now, min(v.Soft, k.end(old)), true
	}
	k.value = &v
	return eff
}

// end is when ExpireAll ended v.
func (k *nkey) end(v *Value) int64 {
	if v.LoadedAt < k.mark {
		return k.mark - 1
	}
	return v.Soft
}

func (n *naive) expireAll(now int64) (eff neffect) {
	for _, k := range n.keys {
		k.mark, k.aside = now+1, naside{} // it is not fresh any more
		if k.lease != nil {
			n.revoke(k, &eff)
			n.next(k, now, &eff)
		}
	}
	return eff
}

func (n *naive) clear(now int64) (eff neffect) {
	n.floor = now
	for _, k := range n.keys {
		k.least, k.set, k.known = 0, 0, false
		k.value, k.aside = nil, naside{}
		if k.lease != nil {
			n.revoke(k, &eff)
			n.next(k, now, &eff)
		}
	}
	return eff
}

func (n *naive) move(c Change) (eff neffect) {
	n.view = c.View
	for key, k := range n.keys {
		f := c.Fate(key)
		if f != Elsewhere {
			k.aside = naside{}
		}
		if f == Stays {
			continue
		}
		if f == Lost && n.fresh(k, c.Now) && c.Now < c.Until {
			k.aside = naside{k.value, k.since, c.Until}
		}
		k.value = nil
		if k.lease != nil && k.lease.view < c.View {
			n.revoke(k, &eff)
			n.all(k, nwake{kind: Moved}, &eff)
		}
	}
	return eff
}

func (n *naive) tick(now int64) (eff neffect) {
	for _, k := range n.keys {
		var rest []nask
		for _, q := range k.queue {
			if now >= q.Until {
				eff.wakes = append(eff.wakes, n.instead(k, q, nwake{kind: TimedOut}, now))
			} else {
				rest = append(rest, q)
			}
		}
		k.queue = rest
		if k.lease != nil && k.lease.over(now) {
			n.revoke(k, &eff)
			n.next(k, now, &eff)
		}
	}
	return eff
}

func (n *naive) forget(gone func(any) bool) int {
	count := 0
	for _, k := range n.keys {
		before := len(k.queue)
		k.queue = slices.DeleteFunc(k.queue, func(q nask) bool { return gone(q.Waiter) })
		count += before - len(k.queue)
	}
	return count
}

func (n *naive) holderGone(holder string, until int64) {
	for _, k := range n.keys {
		if l := k.lease; l != nil && l.holder == holder && (l.cut == 0 || until < l.cut) {
			l.cut = until
		}
	}
}

func (n *naive) holderBack(holder string) {
	for _, k := range n.keys {
		if l := k.lease; l != nil && l.holder == holder && !l.lost {
			l.cut = 0
		}
	}
}

func (n *naive) counts() (leases, waiters int64) {
	for _, k := range n.keys {
		if k.lease != nil {
			leases++
		}
		waiters += int64(len(k.queue))
	}
	return leases, waiters
}
