package nearcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nearcache/nearcache/internal/origin"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/near"
)

// loaded is what a loader brought back, ready to be stored.
type loaded[V any] struct {
	value   V
	bytes   []byte
	absent  bool
	version uint64
	tags    []string
	tagged  bool          // tags are known
	ttl     time.Duration // counted from start; 0: do not keep
	start   int64         // of the load
}

// load runs the loader with a lease and gives the value to the member that gave the lease (step 4).
func (x *fetch[V]) load() {
	x.hold()
	if x.relieve() {
		defer x.abortable()()
	}
	if x.c.policy.gather > 0 {
		x.c.gather(x)
		return
	}
	l, err := x.c.callLoader(x.ctx, x.f.Key)
	x.deliver(&l, err)
}

// deliver ends a load: with a lease the owner is told, then the callers.
func (x *fetch[V]) deliver(l *loaded[V], err error) {
	c := x.c
	c.holdings.remove(x.holding())
	if err != nil {
		kind := c.failureKind(x.ctx, err)
		x.release(c.toWire(kind, err))
		if x.askAgain() {
			return
		}
		x.f.Finish(result[V]{info: Info{Tier: TierOrigin, Member: c.node.ID()}}, c.loadFailed(x.f.Key, kind, err))
		return
	}
	x.fill(l)
	res, err := c.loadedResult(l)
	x.f.Finish(res, err)
}

// fill offers what was loaded to the owner and, if it took it, keeps a near copy. A refused value goes to the callers that wait
// for this flight and nowhere else (R1, R2).
func (x *fetch[V]) fill(l *loaded[V]) {
	c := x.c
	if len(l.bytes) > transport.MaxValueBytes {
		c.count.tooLarge.Add(1)
		x.release(transport.Failure{Kind: transport.FailureTooLarge, Text: ErrValueTooLarge.Error(), Member: c.node.ID()})
		return
	}
	// The near copy rests on this request: its lifetime counts from here, and only events that come from here on concern it, but for those
	// of tags: its load began with the lease.
	gen := x.a.fetch.Gen
	x.a = &asked{m: x.a.m, target: x.a.target, source: x.a.source, sent: c.clock.Exact(), tagPos: x.a.tagPos}
	x.a.fetch.Gen = gen
	x.f.State.current.Store(x.a)

	rep, err := x.giveBack(c.fillRequest(x.f.Key, x.token, l))
	switch {
	case err != nil:
	case rep.Status == transport.StatusRejected:
		c.count.rejected.Add(1)
	case rep.Status == transport.StatusAccepted:
		rep.Age = time.Duration(c.clock.Now() - l.start) // as in hit
		c.keep(x.f, x.a, &rep, near.Item[V]{Value: l.value, Absent: l.absent, Mark: markOf(l.tags, l.tagged)}, c.sizeOf(x.f, l.value, l.bytes))
	}
}

// fillRequest makes the Fill for what was loaded.
func (c *Cache[V]) fillRequest(key string, token transport.Token, l *loaded[V]) *transport.Request {
	req := &transport.Request{
		Op: transport.OpFill, Keyspace: c.name, Key: key, Token: token,
		Near: c.policy.near(), Version: l.version, TTL: max(l.ttl, 0),
		Age: time.Duration(c.clock.Exact() - l.start), Tags: l.tags, StaleFor: c.policy.stale,
	}
	if l.tagged {
		req.Flags |= transport.FlagTagged
	}
	if l.absent {
		req.Flags |= transport.FlagAbsent
	} else {
		req.Value, req.HasValue = l.bytes, true
	}
	if len(l.bytes) > c.policy.maxValueBytes {
		c.count.tooLarge.Add(1)
		req.Flags |= transport.FlagUncached
	}
	if l.ttl <= 0 {
		req.Flags |= transport.FlagUncached
	}
	return req
}

// release gives the lease back without a value, if there is one.
func (x *fetch[V]) release(f transport.Failure) {
	if x.token == (transport.Token{}) {
		return
	}
	_, _ = x.giveBack(&transport.Request{ // there is nothing to do about a failure but what giveBack does
		Op: transport.OpRelease, Keyspace: x.c.name, Key: x.f.Key, Token: x.token, Failure: f,
	})
}

// giveBack tells the member that gave the lease how its load ended.
func (x *fetch[V]) giveBack(req *transport.Request) (transport.Reply, error) {
	return x.c.giveBack(x.a.m, x.a.target, req)
}

// giveBack ends a lease by a Fill or Release. If that does not arrive it is sent again in the background for as long as the lease may
// live, which is a second where its member is none any more: those who wait behind it have nobody else to hear from. What arrives twice
// is refused the second time.
func (ks *keyspace) giveBack(m *members, target int, req *transport.Request) (transport.Reply, error) {
	n := ks.node
	rep, err := ks.exchange(n.ctx, m, target, req)
	if err == nil && rep.Status != transport.StatusBusy || n.ctx.Err() != nil {
		return rep, err
	}
	again, loaded := *req, n.clock.Exact()-int64(req.Age)
	n.run("give back", func() {
		const pause, maxPause = 20 * time.Millisecond, 500 * time.Millisecond // a member that died leaves many leases at once
		ctx, cancel := context.WithTimeout(n.ctx, ks.policy.leaseLife())
		defer cancel()
		id, met := m.peers[target].ID(), n.clock.Exact()
		for wait := pause; sleep(ctx, wait) && n.clock.Exact()-met < int64(time.Second); wait = min(2*wait, maxPause) {
			p := n.transport.Peer(id) // another one if it left the members and came back
			if p == nil {
				continue
			}
			again.Age = time.Duration(n.clock.Exact() - loaded)
			if rep, err := p.Do(ctx, &again); err == nil && rep.Status != transport.StatusBusy {
				return
			}
			met = n.clock.Exact()
		}
	})
	return rep, err
}

// sleep waits, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// loadAlone loads without a lease, under the same limits, and stores the value nowhere (step 5).
func (x *fetch[V]) loadAlone() {
	c := x.c
	x.becomeUntold()
	if x.relieve() {
		defer x.abortable()()
	}
	l, err := c.callLoader(x.ctx, x.f.Key)
	if err != nil {
		kind := c.failureKind(x.ctx, err)
		x.f.Finish(result[V]{info: Info{Tier: TierOrigin, Member: c.node.ID()}}, c.loadFailed(x.f.Key, kind, err))
		return
	}
	res, err := c.loadedResult(&l)
	x.f.Finish(res, err)
}

func (c *Cache[V]) loadedResult(l *loaded[V]) (result[V], error) {
	info := Info{Tier: TierOrigin, Age: age(l.start, c.clock.Now()), Version: l.version, Member: c.node.ID()}
	if l.absent {
		return result[V]{info: info}, ErrNotFound
	}
	return result[V]{value: l.value, info: info}, nil
}

// callLoader runs the loader for one key, in a slot, and encodes what it returns. Absence is a result. All of the application's
// functions run under the same protection.
func (c *Cache[V]) callLoader(ctx context.Context, key string) (loaded[V], error) {
	running, ctx := c.beginLoad(ctx, key)
	defer running.end()
	return origin.Call(ctx, c.limiter, c.job(ctx, key), func(ctx context.Context) (loaded[V], error) {
		c.count.loads.Add(1)
		start := c.clock.Exact()
		v, err := c.loadOne(ctx, key)
		c.loaded(key, start)
		c.count.loadLatency.add(time.Duration(c.clock.Exact() - start))
		if err != nil && !isNotFound(err) {
			return loaded[V]{}, err
		}
		return c.prepare(key, v, err == nil, start)
	})
}

// job says how a load is run for the callers of ctx.
func (ks *keyspace) job(ctx context.Context, key string) origin.Job {
	return origin.Job{Timeout: ks.policy.loadTimeout, Priority: rank(ctx), Key: ks.hashOf(key)}
}

// loadOne calls Load, or LoadMany where there is no Load.
func (c *Cache[V]) loadOne(ctx context.Context, key string) (v V, err error) {
	if c.cfg.Load != nil {
		return c.cfg.Load(ctx, key)
	}
	m, err := c.cfg.LoadMany(ctx, []string{key})
	if err != nil {
		return v, err
	}
	v, ok := m[key]
	if !ok {
		return v, ErrNotFound
	}
	return v, nil
}

// prepare makes what a loader returned ready to be stored. What panics in it fails this key only.
func (c *Cache[V]) prepare(key string, v V, present bool, start int64) (l loaded[V], err error) {
	defer recoverTo(&err)
	if !present {
		return loaded[V]{absent: true, tagged: true, ttl: c.jittered(c.policy.notFoundTTL), start: start}, nil
	}
	b, err := encode(c.cfg.Codec, v)
	if err != nil {
		return loaded[V]{}, err
	}
	v = own(c.cfg.Codec, v, b)
	l = loaded[V]{value: v, bytes: b, ttl: c.ttlOf(key, v), start: start}
	if c.cfg.VersionOf != nil {
		l.version = c.cfg.VersionOf(v)
	}
	l.tags, l.tagged = c.tagsOf(key, v)
	return l, nil
}

// ttlOf returns the lifetime of a value; 0: do not keep.
func (c *Cache[V]) ttlOf(key string, v V) time.Duration {
	ttl := c.policy.ttl
	if c.cfg.TTLOf != nil {
		if d := c.cfg.TTLOf(key, v); d != 0 {
			ttl = min(d, transport.MaxDuration)
		}
	}
	if ttl > 0 {
		c.noteLifetime(ttl)
	}
	return c.jittered(ttl)
}

// noteLifetime remembers the longest lifetime given here: that long an invalidation that was missed can matter.
func (ks *keyspace) noteLifetime(ttl time.Duration) {
	for old := ks.longest.Load(); int64(ttl) > old; old = ks.longest.Load() {
		if ks.longest.CompareAndSwap(old, int64(ttl)) {
			return
		}
	}
}

// jittered shortens a lifetime by a random share of it. What was positive stays so.
func (ks *keyspace) jittered(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return 0
	}
	return max(ttl-time.Duration(rand.Float64()*ks.policy.jitter*float64(ttl)), 1)
}

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }
