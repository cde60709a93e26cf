package nearcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// Invalidate drops the keys everywhere. Call it after the database commit. When it returns nil, no member serves a value
// loaded before the call for longer than a near lifetime, and while the members are connected for longer than milliseconds;
// the calling process never does. Loads that were under way when it was called are not stored.
//
// An owner that does not answer is told through other members. If nobody reaches it either, the call waits until it can hold nothing any
// more: two Bounds after it was last heard, and not at all when that is longer ago.
//
// Errors: *PartialError when a member did not confirm and may hold copies, or when this node is cut off itself: they may live for StaleFor, and
// delivery goes on in the background; ErrInvalidKey, before anything was done; ErrClosed; *ConfigError for an Ack that does not exist. It
// takes three Bounds plus PeerTimeout at most. With AckAll a member of any kind has to confirm, and no value from before the call is served
// anywhere once it has returned nil.
func (c *Cache[V]) Invalidate(ctx context.Context, keys ...string) error {
	return c.invalidate(ctx, keys, 0)
}

// InvalidateAll drops the whole keyspace everywhere, as Invalidate does for keys. Every member has to confirm.
func (c *Cache[V]) InvalidateAll(ctx context.Context) error {
	return c.invalidateAll(ctx)
}

// mutable waits until a change can be told to its owners, and returns the context that bounds the telling. One that has ended already is no
// error where there is nothing to wait for: what this node can do by itself it does, whatever became of its caller.
func (ks *keyspace) mutable(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if ks.closed.Load() || ks.node.closed.Load() {
		return nil, nil, ErrClosed
	}
	if _, err := ks.ack(ctx); err != nil {
		return nil, nil, err
	}
	n := ks.node
	ctx, cancel := context.WithTimeout(ctx, 3*n.bound+n.cfg.PeerTimeout)
	select {
	case <-n.joined:
		return ctx, cancel, nil
	default:
	}
	select {
	case <-n.joined:
		return ctx, cancel, nil
	case <-n.ctx.Done():
		cancel()
		return nil, nil, ErrClosed
	case <-ctx.Done():
		err := ctx.Err()
		cancel()
		return nil, nil, err
	}
}

// staleFor is how long a copy may live that missed an invalidation.
func (ks *keyspace) staleFor() time.Duration {
	return max(ks.policy.ttl, time.Duration(ks.longest.Load())) + ks.policy.stale
}

func (ks *keyspace) invalidate(ctx context.Context, keys []string, flags uint32) error {
	for _, k := range keys {
		if k == "" || len(k) > transport.MaxKeyBytes {
			return ErrInvalidKey
		}
	}
	if len(keys) == 0 {
		return nil
	}
	began := ks.node.clock.Exact()
	ctx, cancel, err := ks.mutable(ctx)
	switch {
	case err == nil:
		defer cancel()
		err = ks.tell(ctx, ks.newTelling(keys, flags))
	case isContextError(err): // nobody is told, but this process never sees the old values again (R16)
		ks.drop(keys, 0, flags)
		err = &PartialError{Keys: slices.Clone(keys), StaleFor: ks.staleFor(), Err: err}
	default:
		return err
	}
	// After the owners: what this process fetched from them meanwhile may be the old value.
	remember := ks.own.Invalidated
	if flags&transport.FlagSoft != 0 {
		remember = ks.own.Expired
	}
	remember(keys, began, ks.node.clock.Exact(), ks.remembered(err))
	for _, k := range keys {
		ks.local.forget(k)
	}
	if err == nil && ks.audit.invalidations.due(began) {
		ks.runAudit(keys[rand.IntN(len(keys))], func(key string) { ks.followUp(key, began) })
	}
	return err
}

// remembered is how long this process rejects what is older than an invalidation of its own (R16): a quarter longer than others may hold it,
// for clocks that run slower than this one's and for answers on their way.
func (ks *keyspace) remembered(err error) time.Duration {
	if err != nil {
		return ks.staleFor()
	}
	return ks.node.bound + ks.node.bound/4
}

// isContextError tells that a call's context has ended.
func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// chunks cuts keys into requests that fit a frame.
func chunks(keys []string) func(yield func([]string) bool) {
	const maxBytes = 256 << 10
	return func(yield func([]string) bool) {
		from, bytes := 0, 0
		for i, k := range keys {
			if i > from && (i-from == transport.MaxBatchKeys || bytes+len(k) > maxBytes) {
				if !yield(keys[from:i:i]) {
					return
				}
				from, bytes = i, 0
			}
			bytes += len(k)
		}
		if from < len(keys) {
			yield(keys[from:])
		}
	}
}

// invalidateRequest makes the request to drop keys, or with none the whole keyspace.
func (n *Node) invalidateRequest(keyspace string, keys []string, flags uint32) *transport.Request {
	if len(keys) == 0 {
		flags |= transport.FlagAll
	}
	return &transport.Request{Op: transport.OpInvalidate, Flags: flags, Keyspace: keyspace, Keys: keys, Budget: 3 * n.bound}
}

// pass passes an invalidation to a peer. nil: it has confirmed. A member that does not know the keyspace holds nothing of it.
func (n *Node) pass(ctx context.Context, p *peer, req *transport.Request) error {
	rep, err := p.Do(ctx, req)
	switch {
	case err != nil:
		p.noAnswer(n)
		return err
	case rep.Status == transport.StatusOK, rep.Status == transport.StatusUnknownKeyspace:
		return nil
	}
	if rep.Failure.Text == "" {
		return errors.New("nearcache: the member is too busy, or closes")
	}
	return errors.New("nearcache: " + rep.Failure.Text)
}

// obey drops on this node what an Invalidate is about, which may alias a buffer.
func (ks *keyspace) obey(req *transport.Request) {
	all, copies := req.Flags&transport.FlagAll != 0, req.Flags&transport.FlagCopies != 0
	switch {
	case all && len(req.Tags) > 0 && copies:
		ks.local.forgetTags(tag.Hashes(req.Tags), ks.node.clock.Exact())
	case all && len(req.Tags) > 0:
		ks.dropTags(req.Tags)
	case all && copies:
		ks.local.forgetAll()
	case all:
		ks.dropAll(req.Flags)
	case copies:
		for _, k := range req.Keys {
			ks.local.forget(k)
		}
	default:
		ks.drop(req.Keys, req.Version, req.Flags)
	}
}

// drop invalidates keys on this node; with FlagSoft values stay as stale copies. keys may alias a buffer.
func (ks *keyspace) drop(keys []string, minVersion uint64, flags uint32) {
	now := ks.node.clock.Exact()
	invalidate := ks.shard.Invalidate
	if flags&transport.FlagSoft != 0 {
		invalidate = ks.shard.Expire
	}
	for _, k := range keys {
		eff := invalidate(k, minVersion, now)
		ks.local.forget(k)
		ks.carryOut(eff)
	}
	ks.count.invalidated.Add(uint64(len(keys)))
	ks.node.log.Wake()
}

// dropAll invalidates the whole keyspace on this node; with FlagSoft values stay as stale copies, which are replaced at a bounded rate.
func (ks *keyspace) dropAll(flags uint32) {
	clear := ks.shard.Clear
	if flags&transport.FlagSoft != 0 {
		clear = ks.shard.ExpireAll
	}
	eff := clear(ks.node.clock.Exact())
	ks.announceAll()
	ks.local.forgetAll()
	ks.carryOut(eff)
	ks.count.invalidated.Add(uint64(eff.Dropped))
	ks.node.log.Wake()
}

// announceAll numbers the end of all copies of the keyspace.
func (ks *keyspace) announceAll() {
	ks.node.log.Append(invalidation.Event{Keyspace: ks.name, All: true, Epoch: ks.epoch.Add(1)})
}

func (ks *keyspace) invalidateAll(ctx context.Context) error {
	began := ks.node.clock.Exact()
	ctx, cancel, err := ks.mutable(ctx)
	switch {
	case err == nil:
		defer cancel()
		err = ks.tell(ctx, ks.newTelling(nil, 0))
	case isContextError(err): // as in invalidate
		ks.dropAll(0)
		err = &PartialError{StaleFor: ks.staleFor(), Err: err}
	default:
		return err
	}
	ks.own.AllInvalidated(began, ks.node.clock.Exact(), ks.remembered(err))
	ks.local.forgetAll()
	return err
}

// Expire is Invalidate for values that may be served a little longer: who reads a key while one load replaces its value gets the old one, marked
// stale (Info.Stale), and waits for nobody. It is served for as long as it would have lived, also while loads fail. Near copies, and loads
// that are under way, go as with Invalidate, and so are the errors the same.
// A member that did not confirm in time is told to drop the value.
func (c *Cache[V]) Expire(ctx context.Context, keys ...string) error {
	return c.invalidate(ctx, keys, transport.FlagSoft)
}
