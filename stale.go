package nearcache

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// Values past their lifetime (R17, R19). What Expire left is served at once. What is only past its lifetime is kept for StaleOnError, and its
// callers wait for the load that replaces it: they get the stale copy when that fails, is shed, or takes longer than their patience. The owner's
// stale copy comes as an answer, or with the lease; a near copy stands in where no owner has one.

// serveStale finishes a flight with a stale copy, whose successor this or another member loads (R17). Nobody keeps it.
func (c *Cache[V]) serveStale(f *flight[V], a *asked, rep *transport.Reply) verdict {
	if c.outdated(f.Key, a, rep) {
		return unreadable
	}
	v, err := c.read(f, rep.Value)
	if err != nil {
		c.count.undecodable.Add(1)
		return unreadable
	}
	f.Finish(c.younger(f.Key, result[V]{value: v, info: staleInfo(a, rep)}), nil)
	return settled
}

// younger returns a stale copy of the owner's, or the near one where that was loaded later, by this member when it was cut off: whatever the owner
// has heard of would have ended its own first.
func (c *Cache[V]) younger(key string, owners result[V]) result[V] {
	if near, ok := c.nearStale(key); ok && near.info.Age < owners.info.Age {
		return near
	}
	return owners
}

func staleInfo(a *asked, rep *transport.Reply) Info {
	return Info{Tier: TierOwner, Age: max(rep.Age, 0), Stale: true, Version: rep.Version, Member: a.member()}
}

// succeed puts a flight of its own in the place of one whose callers do not wait for the load, or not for long.
func (x *fetch[V]) succeed() {
	now := x.c.clock.Now()
	x.f, _ = x.c.refreshes.Join(x.f.Key, now, math.MaxInt64)
	x.f.State.current.Store(x.a)
	x.ctx = x.f.Context(x.ctx)
	x.relieved = true
}

// relieve lets the callers of a flight whose load begins go with a stale copy, if there is one: when the load fails, or their patience is over.
// The load goes on without them, as another flight. It reports whether there is one.
func (x *fetch[V]) relieve() bool {
	c, callers := x.c, x.f
	if c.policy.stale == 0 || x.relieved || x.flags&transport.FlagFresh != 0 {
		return false
	}
	spare, ok := x.spare()
	if !ok {
		return false
	}
	x.succeed()
	load, patience := x.f, c.policy.patience()
	waits := patience > 0 && c.node.run("stale", func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		began := c.clock.Exact()
		res, err := load.Await(ctx)
		if c.mayReplace(err) {
			res, err = spare, nil
			res.info.Age += time.Duration(c.clock.Exact() - began)
		}
		callers.Finish(res, err)
	})
	if !waits {
		callers.Finish(spare, nil)
	}
	return true
}

// askAgain asks for the stale copy that was too large to come with the lease, after the load has failed, and reports whether it came.
func (x *fetch[V]) askAgain() bool {
	if x.a.spare == nil || x.a.spare.HasValue || x.flags&transport.FlagFresh != 0 {
		return false
	}
	x.request(x.a.target)
	if x.v == granted {
		x.release(transport.Failure{Kind: transport.FailureCanceled, Member: x.c.node.ID()})
	}
	return x.v == settled
}

// spare returns the stale copy that may be served in place of what a load brings.
func (x *fetch[V]) spare() (result[V], bool) {
	if x.a != nil && x.a.spare != nil && x.a.spare.HasValue && !x.c.outdated(x.f.Key, x.a, x.a.spare) {
		if v, err := x.c.read(x.f, x.a.spare.Value); err == nil {
			return x.c.younger(x.f.Key, result[V]{value: v, info: staleInfo(x.a, x.a.spare)}), true
		}
		x.c.count.undecodable.Add(1)
	}
	return x.c.nearStale(x.f.Key)
}

// nearStale returns the near copy of key that may be served as a stale one.
func (c *Cache[V]) nearStale(key string) (res result[V], ok bool) {
	if c.policy.stale == 0 {
		return res, false
	}
	now := c.clock.Now()
	it := c.near.Stale(key, now)
	if it == nil {
		return res, false
	}
	return result[V]{
		value: it.Value,
		info:  Info{Tier: TierNear, Age: age(it.LoadedAt(), now), Stale: true, Version: it.Version(), Member: c.node.ID()},
	}, true
}

// wait waits for a flight's result. A near copy takes the place of an error.
func (c *Cache[V]) wait(ctx context.Context, f *flight[V]) (result[V], error) {
	res, err := f.Wait(ctx)
	if c.outranks(ctx, f, err) {
		res, err = c.fly(ctx, f.Key, c.clock.Exact()).Wait(ctx)
	}
	if err != nil && ctx.Err() == nil && c.mayReplace(err) {
		if spare, ok := c.nearStale(f.Key); ok {
			return spare, nil
		}
	}
	return res, err
}

// mayReplace tells whether a stale copy may be served in place of what a load ended with.
func (ks *keyspace) mayReplace(err error) bool {
	return err != nil && !isNotFound(err) && !errors.Is(err, ErrClosed)
}
