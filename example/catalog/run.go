package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/nearcache/nearcache/example/internal/trace"
)

// run is one performance: an origin, a cluster in front of it, readers, a writer, and the books.
type run struct {
	cfg     config
	trace   *trace.Trace
	tally   *tally
	origin  *origin
	cluster *cluster
	writer  *writer
	clock   clock

	mu  sync.Mutex // guards err
	err error      // the stage itself broke
}

// The staleness bound that the library promises with its defaults (docs/protocol.md): NodeConfig.Bound, and for the slack a tenth more.
const (
	bound      = time.Second
	staleBound = bound + bound/10
)

// discoveryLag is how long after its crash a node is taken off the member list, as a service registry would.
const discoveryLag = 2 * time.Second

// crashWindow is the time after a crash in which its effects on the reads are looked for.
const crashWindow = discoveryLag + time.Second

// perform runs the demonstration until its end, or until ctx ends, and returns what happened. An error means that it could not be run.
func perform(ctx context.Context, cfg config, live *display) (_ *summary, err error) {
	r := &run{cfg: cfg}
	if r.trace, err = trace.Open(cfg.trace); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nearcache-catalog-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r.tally = newTally(cfg, r.trace)
	r.writer = newWriter(cfg, r)
	// An entry may live a tenth shorter than its TTL (Config.Jitter), and the origin sees a load a little later than it began.
	ledger := newLedger(cfg.ttl*9/10 - 50*time.Millisecond)
	r.origin, err = openOrigin(dir, r.trace.Keys(), cfg.nodes, newCost(cfg.capacity, cfg.latency), ledger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.origin.close()) }()
	if r.cluster, err = startCluster(ctx, r.settings(), r); err != nil {
		return nil, err
	}
	live.begin(r)
	ran := r.play(ctx, live)
	live.end()
	return r.summarize(ran), r.failure()
}

func (r *run) settings() []settings {
	var all []settings
	for i := range r.cfg.nodes {
		all = append(all, settings{
			Node:     i,
			Nodes:    r.cfg.nodes,
			Origin:   r.origin.url,
			Trace:    r.cfg.trace,
			Rate:     r.cfg.rate,
			Seed:     r.cfg.seed,
			TTL:      r.cfg.ttl,
			MaxLoads: r.cfg.maxLoads(),
		})
	}
	return all
}

// play lets readers and writer loose, shows the progress, ends them in order and returns how long they ran.
func (r *run) play(ctx context.Context, live *display) time.Duration {
	if !r.cfg.keep {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.cfg.duration)
		defer cancel()
	}
	zero := time.Now()
	r.clock = newClock(zero)
	r.origin.start(r.clock)
	r.cluster.send(command{Start: &zero})
	var acts sync.WaitGroup
	acts.Go(func() { r.writer.loop(ctx) })
	if r.cfg.kill {
		acts.Go(func() { r.crash(ctx) })
	}
	live.follow(ctx, r)
	ran := r.clock.now()
	acts.Go(r.cluster.halt)
	acts.Wait()
	r.cluster.stop()
	return ran
}

// crash kills the last node in the middle of the run. The load balancer notices at once, discovery later.
func (r *run) crash(ctx context.Context) {
	if !sleep(ctx, r.cfg.duration/2) {
		return
	}
	node := r.cfg.nodes - 1
	at := r.clock.now()
	r.tally.crashed(node, at, at+crashWindow)
	r.origin.locked(func(_ *cost, l *ledger) { l.lost(at) })
	r.cluster.kill(node)
	r.cluster.send(command{Lost: &node})
	if !sleep(ctx, discoveryLag) {
		return
	}
	r.cluster.addrs[node] = ""
	r.cluster.send(command{Members: r.cluster.addrs})
}

// reads, invalidated and gone receive the nodes' reports.

func (r *run) reads(node int, reads *readsReport) {
	r.tally.add(node, reads)
	if len(reads.Stalls) > 0 {
		r.origin.locked(func(_ *cost, l *ledger) {
			for _, s := range reads.Stalls {
				l.stalled(stall{s[0], s[1]})
			}
		})
	}
}

func (r *run) invalidated(_ int, i *invalidatedReport) { r.writer.answer(i.ID, i) }

func (r *run) gone(node int) {
	r.tally.locked(func() { r.tally.nodes[node].gone = true })
	r.writer.gone(node)
}

// fail records that the stage itself broke.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

func (r *run) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// sleep pauses and tells whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
