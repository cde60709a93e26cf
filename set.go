package nearcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nearcache/nearcache/internal/membership"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// SetOption changes what a Set does.
type SetOption func(*setOptions)

type setOptions struct {
	flags   uint32
	ttl     time.Duration
	version uint64
}

// IfAbsent stores only where no fresh value is resident at the owner.
func IfAbsent() SetOption { return func(o *setOptions) { o.flags |= transport.FlagIfAbsent } }

// IfPresent stores only where a fresh value is resident at the owner.
func IfPresent() SetOption { return func(o *setOptions) { o.flags |= transport.FlagIfPresent } }

// WithTTL gives the value a lifetime of its own; it must be positive.
func WithTTL(d time.Duration) SetOption { return func(o *setOptions) { o.ttl = d } }

// WithVersion gives the version of the value, which Config.VersionOf otherwise tells: a lower one than the resident is not stored.
func WithVersion(v uint64) SetOption { return func(o *setOptions) { o.version = v } }

// Set stores v at the key's owner, as something that was just written to the origin: the last writer wins unless a version
// forbids it. It returns when the owner has stored it; near copies elsewhere go as after an Invalidate. Where a database is the
// source of truth Invalidate is the call to use: two writers may reach the owner in another order than the database.
//
// stored is false when a condition or a higher version forbade it, and when the value is not to be kept: TTLOf says so, or the owner
// has no room for it. Then what was resident is gone all the same. Errors: ErrValueTooLarge; *ConfigError for a lifetime that is not
// positive; *PartialError when the owner did not confirm, or was not asked because ctx had ended (what was resident is invalidated then; StaleFor
// says how long it may live), or as by Invalidate; the codec's error, or a *PanicError;
// ErrInvalidKey; ErrClosed.
func (c *Cache[V]) Set(ctx context.Context, key string, v V, opts ...SetOption) (stored bool, err error) {
	if key == "" || len(key) > transport.MaxKeyBytes {
		return false, ErrInvalidKey
	}
	req, err := c.setRequest(key, v, opts)
	if err != nil {
		return false, err
	}
	ctx, cancel, err := c.mutable(ctx)
	if err == nil {
		defer cancel()
		err = ctx.Err() // this node could store it all the same, but nobody has to want that any more
	}
	if err != nil {
		if isContextError(err) {
			return false, &PartialError{Keys: []string{key}, StaleFor: c.staleFor(), Err: err}
		}
		return false, err
	}
	stored, member, err := c.setAtOwner(ctx, req)
	t := c.newTelling([]string{key}, transport.FlagForwarded) // the owner has the value: nobody passes on that it is old
	t.least = req.Version                                     // a replica may have a copy of it already
	if err == nil {                                           // its owner has heard of it
		t.asked[membership.Target{ID: member, Counts: true}] = t.keys
	}
	told := c.tell(ctx, t)
	c.forget(key)
	switch {
	case told != nil:
		return stored, told
	case err != nil: // old values are gone all the same
		return false, &PartialError{Members: []string{member}, Keys: []string{key}, StaleFor: c.node.bound, Err: err}
	}
	return stored, nil
}

// setRequest makes the request of a Set.
func (c *Cache[V]) setRequest(key string, v V, opts []SetOption) (req *transport.Request, err error) {
	defer recoverTo(&err) // the application's own functions are called
	var o setOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.version == 0 && c.cfg.VersionOf != nil {
		o.version = c.cfg.VersionOf(v)
	}
	if o.ttl < 0 {
		return nil, &ConfigError{Problems: []string{fmt.Sprintf("WithTTL: %v is not positive", o.ttl)}}
	}
	if o.ttl == 0 {
		o.ttl = c.ttlOf(key, v)
	}
	b, err := encode(c.cfg.Codec, v)
	if err != nil {
		return nil, err
	}
	if len(b) > c.policy.maxValueBytes {
		return nil, ErrValueTooLarge
	}
	tags, known := c.tagsOf(key, v)
	if known {
		o.flags |= transport.FlagTagged
	}
	c.noteLifetime(o.ttl)
	return &transport.Request{
		Op: transport.OpSet, Flags: o.flags, Keyspace: c.name, Key: key, Tags: tags,
		TTL: min(o.ttl, transport.MaxDuration), StaleFor: c.policy.stale, Version: o.version,
		Value: b, HasValue: true,
	}, nil
}

// setAtOwner finds the owner and stores the value there, and follows a ring that changes meanwhile.
func (c *Cache[V]) setAtOwner(ctx context.Context, req *transport.Request) (stored bool, member string, err error) {
	const attempts = 3
	var last error
	for range attempts {
		r := c.route(req.Key)
		if r.owner < 0 {
			return false, "", errors.New("nearcache: no member owns anything")
		}
		member = r.m.Members[r.owner].ID
		if p := r.peer(); p != nil && !c.node.reachable(ctx, p) {
			return false, member, transport.ErrDown
		}
		rep, err := c.exchange(ctx, r.m, r.owner, req)
		if err != nil {
			return false, member, err
		}
		var again bool
		if stored, again, last = setAnswer(rep.Status); !again {
			return stored, member, last
		}
		select {
		case <-time.After(time.Duration(1 + rand.Int64N(int64(tick)))):
		case <-ctx.Done():
			return false, member, ctx.Err()
		}
	}
	return false, member, last
}

// Why an owner did not take a Set.
var (
	errNoKeyspace = errors.New("nearcache: the owner does not have the keyspace")
	errDisagree   = errors.New("nearcache: members disagree on the owner")
	errBusy       = errors.New("nearcache: the owner is too busy, or closes")
)

// setAnswer says what an owner's answer to a Set means, and whether to find the owner and ask again.
func setAnswer(s transport.Status) (stored, again bool, err error) {
	switch s {
	case transport.StatusStored:
		return true, false, nil
	case transport.StatusNotStored:
		return false, false, nil
	case transport.StatusUnknownKeyspace:
		return false, false, errNoKeyspace
	case transport.StatusNotOwner:
		return false, true, errDisagree
	default:
		return false, true, errBusy
	}
}

// Peek returns the value of key if it is resident: in this process, or at its owner. It never loads and never waits for a load.
// An owner that does not answer has nothing resident.
//
// Errors: the context's own error; ErrInvalidKey; ErrClosed.
func (c *Cache[V]) Peek(ctx context.Context, key string) (v V, ok bool, err error) {
	if it := c.near.Get(key, c.clock.Now()); it != nil {
		return it.Value, !it.Absent(), nil
	}
	if err := c.admit(ctx, key); err != nil {
		return v, false, err
	}
	r := c.route(key)
	if r.owner < 0 {
		return v, false, nil
	}
	if p := r.peer(); p != nil && !c.node.reachable(ctx, p) {
		return v, false, ctx.Err()
	}
	sent := c.clock.Exact()
	rep, err := c.exchange(ctx, r.m, r.owner, &transport.Request{Op: transport.OpPeek, Keyspace: c.name, Key: key})
	if err != nil {
		return v, false, ctx.Err()
	}
	loaded := invalidation.LoadedBy(sent, rep.Age)
	if rep.Status != transport.StatusHit || c.own.Old(key, loaded, sent) || c.ownTags.Old(rep.Tags, rep.Flags&transport.ReplyTagged != 0, loaded, sent) {
		return v, false, nil
	}
	if v, err = decode(c.cfg.Codec, rep.Value); err != nil {
		c.count.undecodable.Add(1)
		var none V
		return none, false, nil //nolint:nilerr // what cannot be decoded is a miss
	}
	return v, true, nil
}

// Refresh loads key even if it is resident, stores the value as a Get does, and returns it. Callers that refresh a key at once share one
// load; its errors are those of Get.
func (c *Cache[V]) Refresh(ctx context.Context, key string) (V, error) {
	if c.holds.Held(key) { // it is loaded anyway
		res, err := c.get(ctx, key)
		return res.value, err
	}
	in, err := c.enter(ctx, key)
	if err != nil {
		var none V
		return none, err
	}
	defer in.leave(need{c.keyspace, key})
	now, began := c.clock.Now(), c.clock.Exact()
	f, leads := c.refreshes.Join(key, now, now-int64(c.node.bound))
	if leads {
		c.resume(ctx, &fetch[V]{c: c, f: f, r: c.route(key), flags: transport.FlagFresh})
	} else {
		c.count.shared.Add(1)
	}
	res, err := f.Wait(ctx)
	c.countResult(key, res.info, err, began)
	return res.value, err
}
