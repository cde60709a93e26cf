package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// database is an origin with a capacity: it works on a number of queries at once, each of which takes the same time. The others wait in order,
// so that it answers later and later as it is asked for more than it can do; a query whose client has given up is worked off all the same.
type database struct {
	took time.Duration // by a query

	mu      sync.Mutex  // guards servers
	servers []time.Time // when each of them is free

	free            atomic.Bool  // nothing costs anything
	queries, useful atomic.Int64 // since the start: asked, and answered while somebody still waited
}

func newDatabase(perSecond int, took time.Duration) *database {
	return &database{took: took, servers: make([]time.Time, max(1, int(float64(perSecond)*took.Seconds())))}
}

// capacity is how many queries a second it can do.
func (d *database) capacity() float64 { return float64(len(d.servers)) / d.took.Seconds() }

// query waits for its turn and its time.
func (d *database) query(ctx context.Context) error {
	if d.free.Load() {
		return nil
	}
	d.queries.Add(1)
	t := time.NewTimer(time.Until(d.admit(time.Now())))
	defer t.Stop()
	select {
	case <-t.C:
		d.useful.Add(1)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// admit returns when a query that comes now is done.
func (d *database) admit(now time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := 0
	for i, free := range d.servers {
		if free.Before(d.servers[first]) {
			first = i
		}
	}
	begins := d.servers[first]
	if begins.Before(now) {
		begins = now
	}
	d.servers[first] = begins.Add(d.took)
	return d.servers[first]
}
