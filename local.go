package nearcache

import (
	"context"
	"math"
	"time"

	"github.com/nearcache/nearcache/near"
)

// The methods of this file are the interface local: what the untyped part asks of the typed one.

// attach is called once, before anything else.
func (c *Cache[V]) attach(ks *keyspace) { c.keyspace = ks }

// forget drops the near copy of key and splits its flight. Order: the flight first, so that its answer cannot become a near copy
// after the drop.
func (c *Cache[V]) forget(key string) {
	c.flights.Split(key)
	c.refreshes.Split(key)
	c.near.Delete(key)
}

// forgetAll does so for all keys.
func (c *Cache[V]) forgetAll() {
	c.flights.SplitAll()
	c.refreshes.SplitAll()
	c.near.Clear()
}

// forgetTags drops the near copies that have one of the tags. Flights may bring such a value too, and nobody knows which: callers that come from
// now on share none of them, and what they bring is judged by its mark.
func (c *Cache[V]) forgetTags(hashes []uint64, now int64) {
	c.flights.CloseAll()
	c.refreshes.CloseAll()
	c.near.InvalidateTags(hashes, now)
}

// overtaken applies event seq of the member that src stands for. Order: the mark on the flight first, then the drop (see
// near.Cache.Install). Callers that come from now on do not share a flight that may have been answered before the event.
func (c *Cache[V]) overtaken(key string, src *near.Source, seq uint64) {
	for _, g := range c.groups() {
		g.Visit(key, func(f *flight[V]) {
			switch a := f.State.current.Load(); {
			case a == nil:
			case a.source == src:
				a.fetch.Seen(seq)
			default:
				a.fetch.Seen(math.MaxUint64) // the number says nothing about the answer of another member
			}
		})
		g.Close(key)
	}
	c.near.Invalidate(key, src, seq)
}

// missed ends the sharing of all flights. The copies that missed an event are dead by their generation.
func (c *Cache[V]) missed() {
	c.flights.SplitAll()
	c.refreshes.SplitAll()
}

// revoked ends the sharing of the flight that holds a lease on key (R1b): its value may be old by now.
func (c *Cache[V]) revoked(key string) {
	c.flights.Split(key)
	c.refreshes.Split(key)
}

func (c *Cache[V]) groups() [2]*flights[V] { return [2]*flights[V]{c.flights, c.refreshes} }

func (c *Cache[V]) underWay() int { return c.flights.Len() + c.refreshes.Len() }

func (c *Cache[V]) flying(key string) (is bool) {
	c.flights.Visit(key, func(*flight[V]) { is = true })
	return is
}

func (c *Cache[V]) resize(nearBytes int64) { c.near.Resize(nearBytes) }

func (c *Cache[V]) sweep(now int64) int { return c.near.Sweep(now) }

func (c *Cache[V]) nearStats() near.Stats { return c.near.Stats() }

func (c *Cache[V]) nearExpired(now int64) int64 { return c.near.Expired(now) }

func (c *Cache[V]) nearView(key string, now int64) *CopyView {
	it, ok := c.near.Peek(key, now)
	if !ok {
		return nil
	}
	return &CopyView{
		Absent: it.Absent(), Age: age(it.LoadedAt(), now), Left: time.Duration(it.Deadline - now), Version: it.Version(), Bytes: int(it.Bytes),
	}
}

// Stats returns a snapshot of the keyspace's counters on this node.
func (c *Cache[V]) Stats() KeyspaceStats { return c.stats() }

// Close withdraws the keyspace from this node: peers are answered that it is unknown here, calls that come later get ErrClosed,
// those under way have until ctx ends, at most 2 s. The cache of New(nil, ...) stops with everything it started. It may be called many
// times.
func (c *Cache[V]) Close(ctx context.Context) error {
	if c.private != nil {
		c.closed.Store(true)
		return c.private.Close(ctx)
	}
	if !c.node.shut(c.keyspace) {
		return nil
	}
	c.withdraw()
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	waitIdle(ctx, c.underWay)
	c.keyspace.close()
	return nil
}
