package nearcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/ring"
)

// Invalidate drops the keys everywhere. Call it after the database commit. When it returns nil, no member serves a value
// loaded before the call for longer than a near lifetime, and while the members are connected for longer than milliseconds;
// the calling process never does. Loads that were under way when it was called are not stored.
//
// Errors: *PartialError when an owner did not confirm: some copies may live for StaleFor, and delivery goes on in the background;
// ErrInvalidKey, before anything was done; ErrClosed; *ConfigError for an Ack that is not available. It takes three Bounds plus
// PeerTimeout at most.
func (c *Cache[V]) Invalidate(ctx context.Context, keys ...string) error {
	return c.invalidate(ctx, keys)
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
	if err := checkAck(ctx); err != nil {
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
	return max(ks.policy.ttl, time.Duration(ks.longest.Load()))
}

func (ks *keyspace) invalidate(ctx context.Context, keys []string) error {
	for _, k := range keys {
		if k == "" || len(k) > transport.MaxKeyBytes {
			return ErrInvalidKey
		}
	}
	if len(keys) == 0 {
		return nil
	}
	began := ks.node.clock.Exact()
	remembered := ks.node.bound
	ctx, cancel, err := ks.mutable(ctx)
	switch {
	case err == nil:
		defer cancel()
		if err = ks.tell(ctx, ks.node.members.Load(), keys).err(ks.staleFor()); err != nil {
			remembered = ks.staleFor()
			ks.repay(ks.node.clock.Exact()) // at once: the breaker may have kept the owner from hearing of it at all
		}
	case isContextError(err): // nobody is told, but this process never sees the old values again (R16)
		ks.drop(keys, 0)
		remembered = ks.staleFor()
		err = &PartialError{Keys: slices.Clone(keys), StaleFor: ks.staleFor(), Err: err}
	default:
		return err
	}
	// After the owners: what this process fetched from them meanwhile may be the old value.
	ks.own.Invalidated(keys, began, ks.node.clock.Exact(), remembered)
	for _, k := range keys {
		ks.local.forget(k)
	}
	return err
}

// isContextError tells that a call's context has ended.
func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// telling collects what an invalidation could not reach.
type telling struct {
	mu      sync.Mutex
	members []string
	keys    []string
	last    error
}

func (t *telling) failed(member string, keys []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.members, member) {
		t.members = append(t.members, member)
	}
	t.keys = append(t.keys, keys...)
	t.last = err
}

func (t *telling) err(staleFor time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.members) == 0 {
		return nil
	}
	slices.Sort(t.members)
	return &PartialError{Members: t.members, Keys: t.keys, StaleFor: staleFor, Err: t.last}
}

// errContested says that this node cannot tell who has what it would own.
var errContested = errors.New("nearcache: another process has this node's ID")

// tellers bounds the requests of one invalidation that are under way at once.
const tellers = 16

// tell passes the keys to their owners, and where an owner does not answer, or lately did not, also to those who stand in for
// it (R8).
func (ks *keyspace) tell(ctx context.Context, m *members, keys []string) *telling {
	t := &telling{}
	var g errgroup.Group
	g.SetLimit(tellers)
	for target, part := range m.byOwner(ks.name, keys) {
		if target == m.Self {
			ks.drop(part, 0)
			if m.contested {
				t.failed(ks.node.ID(), part, errContested)
			}
			continue
		}
		for chunk := range chunks(part) {
			g.Go(func() error {
				err := ks.tellOwner(ctx, m, target, chunk)
				if err != nil {
					t.failed(m.Members[target].ID, chunk, err)
					ks.owed.owe(m.Members[target].ID, chunk, ks.node.clock.Exact()+int64(ks.staleFor()))
				}
				if err != nil || m.peers[target].troubled(ks.node) {
					ks.tellStandIns(ctx, m, chunk)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // the failures are in t
	return t
}

// byOwner groups keys of a keyspace by the index of their owner, each key once. Where nobody owns anything there is nothing to tell.
func (m *members) byOwner(keyspace string, keys []string) map[int][]string {
	parts := make(map[int][]string)
	seen := make(map[string]bool, len(keys))
	for _, k := range keys {
		if seen[k] {
			continue
		}
		seen[k] = true
		if o := m.Ring.Owner(ring.Hash(keyspace, k)); o >= 0 {
			parts[o] = append(parts[o], k)
		}
	}
	return parts
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

// tellOwner asks one member to drop keys. It tries twice: an answer lost with a connection costs nothing to ask for again.
func (ks *keyspace) tellOwner(ctx context.Context, m *members, target int, keys []string) error {
	const attempts = 2
	var err error
	for range attempts {
		if !ks.node.reachable(ctx, m.peers[target]) {
			return transport.ErrDown
		}
		if err = ks.tellOnce(ctx, m, target, keys, 0); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (ks *keyspace) tellOnce(ctx context.Context, m *members, target int, keys []string, flags uint32) error {
	return confirmed(ks.exchange(ctx, m, target, ks.node.invalidateRequest(ks.name, keys, flags)))
}

// invalidateRequest makes the request to drop keys.
func (n *Node) invalidateRequest(keyspace string, keys []string, flags uint32) *transport.Request {
	return &transport.Request{Op: transport.OpInvalidate, Flags: flags, Keyspace: keyspace, Keys: keys, Budget: 3 * n.bound}
}

// confirmed says what the answer to it means. A member that does not know the keyspace holds nothing of it.
func confirmed(rep transport.Reply, err error) error {
	switch {
	case err != nil:
		return err
	case rep.Status == transport.StatusOK, rep.Status == transport.StatusUnknownKeyspace:
		return nil
	}
	if rep.Failure.Text == "" {
		return errors.New("nearcache: the member is too busy, or closes")
	}
	return errors.New("nearcache: " + rep.Failure.Text)
}

// standIns is how many members after an owner may hold copies in its place (R8).
const standIns = 2

// tellStandIns tells those who may have stood in for an owner that does not answer. What they hold lives a Bound at most, so
// that a failure here changes nothing.
func (ks *keyspace) tellStandIns(ctx context.Context, m *members, keys []string) {
	parts := make(map[int][]string)
	var list []int
	for _, k := range keys {
		list = m.Ring.Prefer(list[:0], ks.hashOf(k), 1+standIns)
		for _, i := range list[min(1, len(list)):] {
			parts[i] = append(parts[i], k)
		}
	}
	var g errgroup.Group
	g.SetLimit(tellers)
	for target, part := range parts {
		if target == m.Self {
			ks.drop(part, 0)
			continue
		}
		for chunk := range chunks(part) {
			g.Go(func() error { return ks.tellOnce(ctx, m, target, chunk, transport.FlagForwarded) })
		}
	}
	_ = g.Wait() // see above
}

// drop invalidates keys on this node. keys may alias a buffer.
func (ks *keyspace) drop(keys []string, minVersion uint64) {
	now := ks.node.clock.Exact()
	for _, k := range keys {
		eff := ks.shard.Invalidate(k, minVersion, now)
		ks.local.forget(k)
		ks.carryOut(eff)
	}
	ks.count.invalidated.Add(uint64(len(keys)))
	ks.node.log.Wake()
}

// dropAll invalidates the whole keyspace on this node.
func (ks *keyspace) dropAll() {
	eff := ks.shard.Clear(ks.node.clock.Exact())
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
		err = ks.tellEverybody(ctx, ks.node.members.Load()).err(ks.staleFor())
	case isContextError(err): // as in invalidate
		err = &PartialError{StaleFor: ks.staleFor(), Err: err}
	default:
		return err
	}
	ks.own.AllInvalidated(began, ks.node.clock.Exact(), ks.node.bound)
	ks.dropAll()
	return err
}

// tellEverybody passes it on to all other members.
func (ks *keyspace) tellEverybody(ctx context.Context, m *members) *telling {
	t := &telling{}
	var g errgroup.Group
	for target := range m.Members {
		if target == m.Self {
			if m.contested {
				t.failed(ks.node.ID(), nil, errContested)
			}
			continue
		}
		g.Go(func() error {
			if err := ks.tellAll(ctx, m, target); err != nil {
				t.failed(m.Members[target].ID, nil, err)
				ks.owed.owe(m.Members[target].ID, nil, ks.node.clock.Exact()+int64(ks.staleFor()))
			}
			return nil
		})
	}
	_ = g.Wait() // the failures are in t
	return t
}

func (ks *keyspace) tellAll(ctx context.Context, m *members, target int) error {
	if !ks.node.reachable(ctx, m.peers[target]) {
		return transport.ErrDown
	}
	return ks.tellOnce(ctx, m, target, nil, transport.FlagAll)
}

// Expire is not available yet: it returns a *ConfigError.
func (c *Cache[V]) Expire(_ context.Context, _ ...string) error { return notYet("Expire") }

// InvalidateTag is not available yet: it returns a *ConfigError.
func (c *Cache[V]) InvalidateTag(_ context.Context, _ ...string) error {
	return notYet("InvalidateTag")
}

// Update is not available yet: it returns a *ConfigError, and commit is not run.
func (c *Cache[V]) Update(_ context.Context, _ []string, _ func(context.Context) error) error {
	return notYet("Update")
}
