package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// writer changes prices: it commits a new version of a product to the origin and then, as an application does after its commit, calls
// Invalidate, on any node. A call that is not confirmed is repeated until one is.
type writer struct {
	cfg     config
	run     *run
	rand    *rand.Rand
	changes sync.WaitGroup

	mu      sync.Mutex // guards what follows
	waiting map[int]*call
	busy    map[string]bool // products with a change under way
	nextID  int
}

// call is an invalidation that a node was asked for.
type call struct {
	node   int
	answer chan *invalidatedReport // gets one value; nil: the node is gone
}

// retryAfter is the pause before an unconfirmed invalidation is repeated.
const retryAfter = 250 * time.Millisecond

func newWriter(cfg config, r *run) *writer {
	return &writer{
		cfg:     cfg,
		run:     r,
		rand:    rand.New(rand.NewPCG(cfg.seed, 1)), //nolint:gosec // reproducible, not secret
		waiting: make(map[int]*call),
		busy:    make(map[string]bool),
	}
}

// loop changes prices at the configured rate until ctx ends, and returns when every invalidation is confirmed or given up.
func (w *writer) loop(ctx context.Context) {
	defer w.changes.Wait()
	if w.cfg.writes == 0 {
		return
	}
	tick := time.NewTicker(time.Second / time.Duration(w.cfg.writes))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key, node := w.pick()
		if !w.claim(key) {
			continue
		}
		w.changes.Go(func() {
			defer w.release(key)
			w.change(ctx, key, node)
		})
	}
}

// pick returns a product that is being asked for about now, popular ones more often, and the living node to invalidate on.
func (w *writer) pick() (key string, node int) {
	now := int(w.run.clock.now().Seconds() * float64(w.cfg.rate))
	return w.run.trace.Key(max(0, now-w.rand.IntN(w.cfg.rate))), w.living(w.rand.IntN(w.cfg.nodes))
}

// living returns node, or if it is gone the next one that is not; node itself if all are.
func (w *writer) living(node int) int {
	t := w.run.tally
	t.locked(func() {
		for range t.nodes {
			if !t.nodes[node].gone {
				return
			}
			node = (node + 1) % len(t.nodes)
		}
	})
	return node
}

// change commits a new price and has it invalidated.
func (w *writer) change(ctx context.Context, key string, node int) {
	t := w.run.tally
	var version uint64
	err := w.run.origin.reprice(key, func(v uint64) {
		version = v
		t.locked(func() {
			t.writes.committed++
			t.stale.commit(key, v)
		})
	})
	if err != nil {
		w.run.fail(err)
		return
	}
	for {
		r := w.invalidate(key, node)
		if r != nil && r.Error == "" {
			t.locked(func() {
				t.writes.confirmed++
				t.writes.latency.add(r.Took)
				t.stale.confirm(key, ack{at: r.At, version: version, node: node})
			})
			return
		}
		text := "the node was killed"
		if r != nil {
			text = r.Error
		}
		t.locked(func() { t.writes.unconfirmed[text]++ })
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
		node = w.living((node + 1) % w.cfg.nodes)
	}
}

// invalidate asks node to invalidate key and waits for its report; nil: the node is gone.
func (w *writer) invalidate(key string, node int) *invalidatedReport {
	w.run.origin.locked(func(_ *cost, l *ledger) { l.invalidating(key) })
	defer func() {
		w.run.origin.locked(func(_ *cost, l *ledger) { l.invalidated(key, w.run.clock.now()) })
	}()
	c := &call{node: node, answer: make(chan *invalidatedReport, 1)}
	w.mu.Lock()
	id := w.nextID
	w.nextID++
	w.waiting[id] = c
	w.mu.Unlock()
	p := w.run.cluster.nodes[node]
	if p.write(command{Invalidate: &invalidateCommand{ID: id, Key: key}}) != nil {
		w.answer(id, nil)
	}
	return <-c.answer
}

// answer ends the call id; r nil: its node is gone.
func (w *writer) answer(id int, r *invalidatedReport) {
	w.mu.Lock()
	c := w.waiting[id]
	delete(w.waiting, id)
	w.mu.Unlock()
	if c != nil {
		c.answer <- r
	}
}

// gone ends the calls to a node that will not answer.
func (w *writer) gone(node int) {
	w.mu.Lock()
	var ids []int
	for id, c := range w.waiting {
		if c.node == node {
			ids = append(ids, id)
		}
	}
	w.mu.Unlock()
	for _, id := range ids {
		w.answer(id, nil)
	}
}

// claim tells whether no change of key is under way, and begins one.
func (w *writer) claim(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[key] {
		return false
	}
	w.busy[key] = true
	return true
}

func (w *writer) release(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.busy, key)
}
