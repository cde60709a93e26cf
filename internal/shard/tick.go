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
				t.wake(d.waiter, Result{Kind: TimedOut}, &eff)
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
		for _, l := range t.leases {
			if l.holder == holder && until < l.due.at {
				t.due.set(&l.due, until)
			}
		}
	})
}

// HolderBack says that holder is back with the same incarnation: its leases that did not expire meanwhile live as long
// as granted. One that is back with another incarnation has lost its loads: HolderGone with the present time.
func (s *Shard) HolderBack(holder string) {
	s.eachTable(func(t *table) {
		for _, l := range t.leases {
			if l.holder == holder {
				t.due.set(&l.due, l.expires)
			}
		}
	})
}
