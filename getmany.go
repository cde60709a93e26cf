package nearcache

import (
	"context"
	"slices"
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
	b := batch[V]{c: c, seen: make(map[string]struct{}, len(keys)), found: make(map[string]V, len(keys))}
	for len(keys) > 0 {
		n := min(len(keys), maxBatch)
		b.get(ctx, keys[:n])
		keys = keys[n:]
	}
	if len(b.errs) > 0 {
		return b.found, &BatchError{Errs: b.errs}
	}
	return b.found, nil
}

// batch is a GetMany under way.
type batch[V any] struct {
	c     *Cache[V]
	in    *load // the load whose loader calls, or nil
	seen  map[string]struct{}
	found map[string]V
	errs  map[string]error
}

// joined is a flight that a batch waits for.
type joined[V any] struct {
	key   string
	f     *flight[V]
	r     route
	leads bool

	// Of a flight that the batch leads: its first request.
	target int // the member asked, and with which flags
	flags  uint32
	a      *asked
	call   *transport.Call
}

// get fetches some of the keys.
func (b *batch[V]) get(ctx context.Context, keys []string) {
	c := b.c
	began := c.clock.Exact()
	all := b.begin(ctx, keys)
	ours := c.leadMany(ctx, all, began)
	for i := range all {
		key, f := all[i].key, all[i].f
		res, err := c.wait(ctx, f)
		if ours {
			c.flights.Reuse(f)
		}
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

// begin answers keys from their near copies, and returns the flights of the others.
func (b *batch[V]) begin(ctx context.Context, keys []string) (all []joined[V]) {
	c := b.c
	for i, key := range keys {
		before := len(b.seen)
		if b.seen[key] = struct{}{}; len(b.seen) == before {
			continue
		}
		if it := c.near.Get(key, c.clock.Now()); it != nil {
			if it.Absent() {
				c.count.nearAbsent.Add(1)
				continue
			}
			c.count.nearHits.Add(1)
			b.found[key] = it.Value
			continue
		}
		in, err := c.enter(ctx, key)
		if err != nil {
			b.fail(key, err)
			continue
		}
		b.in = in
		if all == nil {
			all = make([]joined[V], 0, len(keys)-i)
		}
		f, r, leads := c.join(ctx, key)
		if !leads {
			c.count.shared.Add(1)
		}
		all = append(all, joined[V]{key: key, f: f, r: r, leads: leads})
	}
	return all
}

func (b *batch[V]) fail(key string, err error) {
	if b.errs == nil {
		b.errs = make(map[string]error)
	}
	b.errs[key] = err
}

// message is what a peer is asked at once.
type message struct {
	p     *peer
	calls []*transport.Call
}

// leadMany asks the owners of the flights that the batch leads, one message for each, and waits for their first answers: for a PeerTimeout at
// most. What is not settled by them goes on by itself. It reports whether all is still the caller's alone.
func (c *Cache[V]) leadMany(ctx context.Context, all []joined[V], now int64) (ours bool) {
	var messages []message
	calls := 0
	for i := range all {
		j := &all[i]
		if !j.leads {
			continue
		}
		j.target, j.flags = c.reader(j.r, j.f.Key)
		p := j.r.m.at(j.target)
		if p == nil || !p.Ready() || c.holds.Held(j.f.Key) {
			continue
		}
		j.a = c.ask(j.f, j.r.m, j.target, now)
		j.call = c.newGet(j.f.Key, j.flags)
		messages = addCall(messages, p, j.call)
		calls++
	}
	if calls == 0 {
		c.settleMany(ctx, all)
		return true
	}
	b := transport.NewBatch(calls)
	for _, m := range messages {
		m.p.StartBatch(m.calls, b)
	}
	select {
	case <-b.Done():
		c.settleMany(ctx, all)
		return true
	case <-ctx.Done():
		// The flights may have other callers.
		if !c.node.run("getmany", func() { <-b.Done(); c.settleMany(ctx, all) }) {
			for i := range all {
				if all[i].leads {
					all[i].f.Finish(result[V]{}, ErrClosed)
				}
			}
		}
		return false
	}
}

// addCall adds a call to the message for p.
func addCall(all []message, p *peer, call *transport.Call) []message {
	i := slices.IndexFunc(all, func(m message) bool { return m.p == p })
	if i < 0 {
		i = len(all)
		all = append(all, message{p: p})
	}
	all[i].calls = append(all[i].calls, call)
	return all
}

// settleMany judges the first answers. Leases are gathered: they are loaded together.
func (c *Cache[V]) settleMany(ctx context.Context, all []joined[V]) {
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
		next = i + 1
		j := &all[i]
		if !j.leads {
			continue
		}
		x := fetch[V]{c: c, f: j.f, r: j.r, a: j.a, flags: j.flags}
		switch {
		case j.call == nil && c.holds.Held(j.f.Key):
			x.v = held
		case j.call == nil && j.target == j.r.m.Self:
			x.a = c.ask(j.f, j.r.m, j.target, c.clock.Exact())
			x.askLocal()
		case j.call == nil:
		case j.call.Detached():
			x.call = j.call
		default:
			x.v, x.token = c.judge(j.f, j.a, j.call), j.call.Reply.Token
			j.call.Free()
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
		// Even if it is over: x.a lies in it, so that it must not be used again.
		x.ctx = x.f.Context(ctx) //nolint:fatcontext // each flight has its own
		if x.f.Over() {
			x.succeed()
		} else {
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
