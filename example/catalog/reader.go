package main

import (
	"context"
	"sync"
	"time"

	"github.com/nearcache/nearcache/example/internal/trace"
)

// reader replays one node's share of the trace at a steady rate, whatever the answers take, as visitors of a shop do.
type reader struct {
	settings settings
	trace    *trace.Trace
	clock    clock
	get      func(ctx context.Context, id string) (product, tier, error)
	slots    chan struct{} // bounds the reads under way
	reads    sync.WaitGroup

	mu   sync.Mutex // guards what follows
	lost []bool
	done readsReport // not reported yet
}

// maxReads bounds the reads under way in one node. It is far more than a healthy run needs; at the bound the replay falls behind.
const maxReads = 4096

// readTimeout is how long a reader waits: a cache that hangs shows as failed reads.
const readTimeout = 5 * time.Second

func newReader(s settings, t *trace.Trace, c clock, get func(context.Context, string) (product, tier, error)) *reader {
	return &reader{
		settings: s,
		trace:    t,
		clock:    c,
		get:      get,
		slots:    make(chan struct{}, maxReads),
		lost:     make([]bool, s.Nodes),
	}
}

// run reads until ctx ends, and returns when no read is under way any more.
func (r *reader) run(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for next := 0; ; {
		asleep := r.clock.now()
		select {
		case <-ctx.Done():
			r.reads.Wait()
			return
		case <-tick.C:
		}
		if awake := r.clock.now(); awake-asleep > stallAfter {
			r.stalled(asleep, awake)
		}
		due := int(r.clock.now().Seconds() * float64(r.settings.Rate))
		for ; next < due && ctx.Err() == nil; next++ {
			if !r.mine(next) {
				continue
			}
			request := next
			r.slots <- struct{}{}
			r.reads.Go(func() {
				r.read(request)
				<-r.slots
			})
		}
	}
}

// stallAfter is how long a process may oversleep before that counts as a stall. An exchange with a peer is a few steps of two
// processes, so a quarter of the time that the peer has for all of it.
const stallAfter = peerTimeout / 4

func (r *reader) stalled(from, to time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done.Stalls = append(r.done.Stalls, stallRecord{from, to})
}

// lose tells that a node is gone, so that this one takes its part of that node's requests.
func (r *reader) lose(node int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost[node] = true
}

// take returns what was read since the last call.
func (r *reader) take() readsReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	done := r.done
	r.done = readsReport{Reads: make([]readRecord, 0, cap(done.Reads))}
	return done
}

func (r *reader) mine(request int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return deal(r.settings.Seed, request, r.lost) == r.settings.Node
}

func (r *reader) read(request int) {
	// Not the run's context: what has been asked is answered, also when the run ends.
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	id := r.trace.Key(request)
	began := time.Now()
	p, where, err := r.get(ctx, id)
	latency := time.Since(began)
	var wrong error
	if err == nil {
		wrong = p.check(id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done.Reads = append(r.done.Reads, record(request, r.clock.at(began), latency, where, p.Version))
	if err != nil {
		count(&r.done.Failures, err)
	}
	if wrong != nil {
		count(&r.done.Wrong, wrong)
	}
}

// count counts err under its text.
func count(m *map[string]int, err error) {
	if *m == nil {
		*m = make(map[string]int)
	}
	(*m)[err.Error()]++
}
