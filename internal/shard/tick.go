package shard

// tickDeadlines bounds what one Tick does in one table: some hundred microseconds under its lock.
const tickDeadlines = 1024

// Tick does what time demands of leases: expired ones pass to the longest waiter, waiters whose Until has come are answered
// TimedOut. Its work is bounded; what it leaves is done by the next one. Called every 100 ms
// or so; the precision of all deadlines is that period.
func (s *Shard) Tick(now int64) (eff Effect) {
	if s.leases.Load() == 0 {
		return eff
	}
	s.eachTable(func(t *table) {
		for range tickDeadlines {
			if len(t.due) == 0 || t.due[0].at > now {
				return
			}
			if d := t.due[0]; d.waiter != nil {
				t.wake(d.waiter, t.instead(d.waiter, Result{Kind: TimedOut}, now), &eff)
			} else {
				t.expire(d.lease, now, &eff)
			}
		}
	})
	return eff
}

// HolderGone says that nothing is heard of holder any more: the leases it has now expire at until, if not earlier.
func (s *Shard) HolderGone(holder string, until int64) {
	if s.leases.Load() == 0 {
		return
	}
	s.eachTable(func(t *table) {
		for _, l := range t.all() {
			if l.holder == holder && until < l.due.at {
				t.due.set(&l.due, until)
			}
		}
	})
}

// HolderBack says that holder is back with the same incarnation: its leases that did not expire meanwhile live as long
// as granted, but for those of AskerGone. One that is back with another incarnation has lost its loads: HolderGone with the present time.
func (s *Shard) HolderBack(holder string) {
	s.eachTable(func(t *table) {
		for _, l := range t.all() {
			if l.holder == holder && !l.lost {
				t.due.set(&l.due, l.expires)
			}
		}
	})
}

// AskerGone says that what a lease's asker was told may have been lost on its way: leases whose asker gone returns true for expire at until,
// if not earlier, unless Hold says that they arrived. gone runs with a shard lock held and must only look.
func (s *Shard) AskerGone(gone func(asker any) bool, until int64) {
	if s.leases.Load() == 0 {
		return
	}
	s.eachTable(func(t *table) {
		for _, l := range t.all() {
			if gone(l.asker) {
				l.lost = true
				if until < l.due.at {
					t.due.set(&l.due, until)
				}
			}
		}
	})
}

// HeldAll says that holder has said by Hold which of the leases that AskerGone was about arrived: the others end.
func (s *Shard) HeldAll(holder string, now int64) (eff Effect) {
	if s.leases.Load() == 0 {
		return eff
	}
	s.eachTable(func(t *table) {
		for _, l := range t.all() {
			if l.lost && l.holder == holder {
				t.expire(l, now, &eff)
			}
		}
	})
	return eff
}

// Hold says that the load of a lease goes on, and that asker tells so: it lives as long as granted. A token that is not live changes nothing.
func (s *Shard) Hold(key string, token Token, asker any, now int64) (eff Effect) {
	tx := s.store.Begin(key)
	defer tx.End()
	t := &s.tables[tx.Shard()]
	if l := t.live(key, token, now, &eff); l != nil {
		l.asker, l.lost = asker, false
		t.due.set(&l.due, l.expires)
	}
	return eff
}
