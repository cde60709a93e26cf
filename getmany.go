package nearcache

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/origin"
	"github.com/nearcache/nearcache/internal/transport"
)

// maxBatch is how many keys of a GetMany are asked for at once, and thus the most that one LoadMany gets.
const maxBatch = 512

// GetMany returns the values of the keys that exist. Keys that do not are not in the map, and are no error; duplicates are asked
// for once; the order does not matter. Each owner is asked in one message, and what is missing everywhere is loaded by
// LoadMany, at most 512 keys at a time, or by Load where there is no LoadMany.
//
// Errors: *BatchError with the keys that failed; the others are in the map.
func (c *Cache[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	found := make(map[string]V, len(keys))
	b := batch[V]{c: c, found: found, seen: make(map[string]struct{}, len(keys))}
	for len(keys) > 0 {
		n := min(len(keys), maxBatch)
		b.get(ctx, keys[:n])
		keys = keys[n:]
	}
	if len(b.errs) > 0 {
		return found, &BatchError{Errs: b.errs}
	}
	return found, nil
}

// batch is a GetMany under way.
type batch[V any] struct {
	c     *Cache[V]
	in    *load // the load whose loader calls, or nil
	seen  map[string]struct{}
	found map[string]V
	errs  map[string]error
	wait  []*flight[V]
	led   []led[V]
}

// led is a flight that a batch leads, and its first request.
type led[V any] struct {
	f      *flight[V]
	r      route
	target int // the member asked, and with which flags
	flags  uint32
	a      *asked
	call   *transport.Call
}

// get fetches some of the keys.
func (b *batch[V]) get(ctx context.Context, keys []string) {
	c := b.c
	began := c.clock.Exact()
	b.wait, b.led = b.wait[:0], b.led[:0]
	for _, k := range keys {
		if _, ok := b.seen[k]; !ok {
			b.seen[k] = struct{}{}
			b.begin(ctx, k)
		}
	}
	if len(b.led) > 0 {
		c.leadMany(ctx, b.led)
		b.led = nil // it may still be in use
	}
	for _, f := range b.wait {
		key := f.Key
		res, err := c.wait(ctx, f)
		b.in.leave(need{c.keyspace, key})
		c.countResult(key, res.info, err, began)
		switch {
		case err == nil:
			b.found[key] = res.value
		case !isNotFound(err):
			b.fail(key, err)
		}
	}
}

// begin answers a key from its near copy, or finds its flight.
func (b *batch[V]) begin(ctx context.Context, key string) {
	c := b.c
	if it := c.near.Get(key, c.clock.Now()); it != nil {
		if it.Absent() {
			c.count.nearAbsent.Add(1)
			return
		}
		c.count.nearHits.Add(1)
		b.found[key] = it.Value
		return
	}
	in, err := c.enter(ctx, key)
	if err != nil {
		b.fail(key, err)
		return
	}
	b.in = in
	f, r, leads := c.join(ctx, key)
	b.wait = append(b.wait, f)
	if leads {
		b.led = append(b.led, led[V]{f: f, r: r})
	} else {
		c.count.shared.Add(1)
	}
}

func (b *batch[V]) fail(key string, err error) {
	if b.errs == nil {
		b.errs = make(map[string]error)
	}
	b.errs[key] = err
}

// leadMany asks the owners, one message for each, and waits for their first answers: for a PeerTimeout at most. What is not
// settled by them goes on by itself.
func (c *Cache[V]) leadMany(ctx context.Context, all []led[V]) {
	byPeer := make(map[*peer][]*transport.Call)
	calls := 0
	for i := range all {
		l := &all[i]
		l.target, l.flags = c.reader(l.r, l.f.Key)
		p := l.r.m.at(l.target)
		if p == nil || !p.Ready() || c.holds.Held(l.f.Key) {
			continue
		}
		l.a = c.ask(l.f, l.r.m, l.target)
		l.call = c.newGet(l.f.Key, l.flags)
		byPeer[p] = append(byPeer[p], l.call)
		calls++
	}
	if calls == 0 {
		c.settleMany(ctx, all)
		return
	}
	b := transport.NewBatch(calls)
	for p, part := range byPeer {
		p.StartBatch(part, b)
	}
	select {
	case <-b.Done():
		c.settleMany(ctx, all)
	case <-ctx.Done():
		// The flights may have other callers.
		if !c.node.run("getmany", func() { <-b.Done(); c.settleMany(ctx, all) }) {
			for i := range all {
				all[i].f.Finish(result[V]{}, ErrClosed)
			}
		}
	}
}

// settleMany judges the first answers. Leases are gathered: they are loaded together.
func (c *Cache[V]) settleMany(ctx context.Context, all []led[V]) {
	var leases []*fetch[V]
	next := 0
	defer func() {
		if next < len(all) { // a codec has left this goroutine (see deserted): the others go on without it
			rest := all[next:]
			c.node.run("getmany", func() { c.settleMany(ctx, rest) })
		}
		if len(leases) > 0 {
			c.resumeMany(ctx, leases)
		}
	}()
	for i := range all {
		l := &all[i]
		next = i + 1
		x := fetch[V]{c: c, f: l.f, r: l.r, a: l.a, flags: l.flags}
		switch {
		case l.call == nil && c.holds.Held(l.f.Key):
			x.v = held
		case l.call == nil && l.target == l.r.m.Self:
			x.a = c.ask(l.f, l.r.m, l.target)
			x.askLocal()
		case l.call == nil:
		case l.call.Detached():
			x.call = l.call
		default:
			x.v, x.token = c.judge(l.f, l.a, l.call), l.call.Reply.Token
			l.call.Free()
		}
		switch {
		case x.v == settled: // as most are: x has not left the stack
		case x.v == granted:
			leases = append(leases, x.moved())
		default:
			c.resume(ctx, x.moved())
		}
	}
}

// moved returns a copy that may outlive its caller. x is not used any more.
func (x fetch[V]) moved() *fetch[V] { return &x }

// resumeMany loads the keys of many leases: with one call of LoadMany, or with as many calls of Load at once as there are slots, so that
// the keys of one GetMany do not shed each other.
func (c *Cache[V]) resumeMany(ctx context.Context, all []*fetch[V]) {
	for _, x := range all {
		x.hold()
		x.ctx = ctx //nolint:fatcontext // each flight has its own
		if x.f.Over() {
			x.succeed()
		} else {
			x.ctx = x.f.Context(ctx)
			x.relieve()
		}
	}
	load := c.loadEach
	if c.cfg.LoadMany != nil {
		load = c.loadMany
	}
	if !c.node.run("getmany", func() { load(ctx, all) }) {
		for _, x := range all {
			x.f.Finish(result[V]{}, ErrClosed)
		}
	}
}

// loadEach runs Load for each key.
func (c *Cache[V]) loadEach(_ context.Context, all []*fetch[V]) {
	var g errgroup.Group
	g.SetLimit(c.policy.maxLoads)
	for _, x := range all {
		stop := context.AfterFunc(c.ctx, x.f.Abort)
		g.Go(func() error {
			defer stop()
			x.load()
			return nil
		})
	}
	_ = g.Wait() // load has no error
}

// loadMany runs LoadMany in one slot. Its context ends when nobody waits for any of the keys.
func (c *Cache[V]) loadMany(ctx context.Context, all []*fetch[V]) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	var left atomic.Int64
	left.Store(int64(len(all)))
	keys := make([]string, len(all))
	for i, x := range all {
		keys[i] = x.f.Key
		defer context.AfterFunc(x.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	running, ctx := c.beginLoad(ctx, keys...)
	defer running.end()
	type outcome struct {
		l   loaded[V]
		err error
	}
	got, err := origin.Call(ctx, c.limiter, c.job(ctx, keys[0]), func(ctx context.Context) ([]outcome, error) {
		c.count.loads.Add(uint64(len(keys)))
		start := c.clock.Exact()
		values, err := c.cfg.LoadMany(ctx, keys)
		for _, x := range all {
			c.loaded(x.f.Key, start)
		}
		c.count.loadLatency.add(time.Duration(c.clock.Exact() - start))
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		out := make([]outcome, len(all))
		for i, x := range all { // keys belongs to the loader now, which may have sorted it
			k := x.f.Key
			v, ok := values[k]
			out[i].l, out[i].err = c.prepare(k, v, ok, start)
		}
		return out, nil
	})
	var g errgroup.Group
	g.SetLimit(tellers)
	for i, x := range all {
		o := outcome{err: err}
		if err == nil {
			o = got[i]
		}
		g.Go(func() error { x.deliver(&o.l, o.err); return nil })
	}
	_ = g.Wait() // deliver has no error
}
