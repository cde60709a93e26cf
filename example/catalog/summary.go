package main

import (
	"encoding/json"
	"io"
	"time"

	"github.com/nearcache/nearcache"
)

// summary is what happened in a run: the result of -json, and what the table shows.
type summary struct {
	Pass     bool
	Verdicts []verdict
	Seconds  float64
	Nodes    int
	Trace    string
	TTL      string
	Seed     uint64

	Reads    uint64
	Tiers    []tierSummary // all of them, failed reads included
	Failures map[string]int
	Wrong    map[string]int

	Capacity     int // loads a second
	LoadTime     ms  // of one load at the database, without waiting
	Origin       costSummary
	Separate     costSummary // the same reads with a cache in each process
	NoCache      costSummary // the same reads without any
	LoadsBy      causeSummary
	Stalls       int // times that the machine stopped a node's process for long enough to matter
	LongestStall ms
	Writes       writeSummary
	Staleness    staleSummary
	Killed       *crashSummary `json:",omitempty"`

	NodeStats map[string]nearcache.KeyspaceStats // each node's own counters at the end, but a killed one's
}

// verdict is one promise, and whether it was kept.
type verdict struct {
	Pass   bool
	What   string
	Detail string
}

type tierSummary struct {
	Tier          string
	Reads         uint64
	Share         float64 // 0 to 1
	P50, P99, Max ms
}

type costSummary struct {
	Loads       int
	Busiest     int // loads in the busiest second
	LongestWait ms  // of a load for the database
	LastWait    ms  // of the newest load: grows until the end if the database cannot keep up
}

type causeSummary struct {
	First, Expired, Invalidated, Lost, Stalled, Repeated int
}

type writeSummary struct {
	Committed, Confirmed int
	Unconfirmed          map[string]int // calls of Invalidate by the error's text
	P50, P99, Max        ms
}

type staleSummary struct {
	Judged   int // answers compared with the history
	Stale    int // older than an invalidation that had been confirmed
	Beyond   int // of those, by more than the bound
	OwnNode  int // of those, on the node that had invalidated
	Unknown  int // versions that never existed
	Worst    ms
	Bound    ms // with its slack
	Promised ms // without
}

type crashSummary struct {
	Node       string
	At         ms
	Reads      uint64 // in the time after the crash, on the other nodes
	Failed     int    // of those
	P50, P99   ms
	Slowest    ms
	ExtraLoads int // to load again what was lost
	Busiest    int // loads in the busiest second since
}

// ms is a duration that is written to JSON as milliseconds.
type ms time.Duration

// MarshalJSON writes m as a number of milliseconds.
func (m ms) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(m) / float64(time.Millisecond))
}

// UnmarshalJSON reads a number of milliseconds.
func (m *ms) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*m = ms(f * float64(time.Millisecond))
	return nil
}

func (s *summary) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// summarize closes the books after everything has ended.
func (r *run) summarize(ran time.Duration) *summary {
	s := &summary{
		Seconds:  ran.Seconds(),
		Nodes:    r.cfg.nodes,
		Trace:    r.cfg.trace,
		TTL:      r.cfg.ttl.String(),
		Seed:     r.cfg.seed,
		Capacity: r.cfg.capacity,
	}
	crashed := time.Duration(-1)
	r.tally.locked(func() {
		t := r.tally
		t.stale.judge(1<<63 - 1)
		t.summarizeLocked(s)
		if t.crash.node >= 0 {
			crashed = t.crash.killed
		}
	})
	r.origin.locked(func(c *cost, l *ledger) {
		s.Origin, s.LoadTime = c.summary(), ms(c.queue.perLoad)
		n := l.causes()
		s.LoadsBy = causeSummary{
			First: n[causeFirst], Expired: n[causeExpired], Invalidated: n[causeInvalidated],
			Lost: n[causeLost], Stalled: n[causeStalled], Repeated: n[causeRepeated],
		}
		s.Stalls, s.LongestStall = len(l.stalls), ms(l.longestStall())
		if s.Killed != nil {
			s.Killed.ExtraLoads = n[causeLost]
			s.Killed.Busiest = c.busiestFrom(int(crashed / time.Second))
		}
	})
	s.NodeStats = r.cluster.stats()
	s.Verdicts = r.judge(s)
	s.Pass = true
	for _, v := range s.Verdicts {
		s.Pass = s.Pass && v.Pass
	}
	return s
}

func (t *tally) summarizeLocked(s *summary) {
	for i := range t.nodes {
		s.Reads += t.nodes[i].total()
	}
	for i := range t.latency {
		h := &t.latency[i]
		s.Tiers = append(s.Tiers, tierSummary{
			Tier:  tier(i).String(),
			Reads: h.count,
			Share: float64(h.count) / max(1, float64(s.Reads)),
			P50:   ms(h.quantile(0.5)), P99: ms(h.quantile(0.99)), Max: ms(h.max),
		})
	}
	s.Failures, s.Wrong = t.failures, t.wrong
	s.Separate, s.NoCache = t.separate.summary(), t.noCache.summary()
	w := &t.writes
	s.Writes = writeSummary{
		Committed: w.committed, Confirmed: w.confirmed, Unconfirmed: w.unconfirmed,
		P50: ms(w.latency.quantile(0.5)), P99: ms(w.latency.quantile(0.99)), Max: ms(w.latency.max),
	}
	s.Staleness = staleSummary{
		Judged: t.stale.judged, Stale: t.stale.stale, Beyond: t.stale.beyond, OwnNode: t.stale.ownStale, Unknown: t.stale.unknown,
		Worst: ms(t.stale.worst), Bound: ms(staleBound), Promised: ms(bound),
	}
	if c := &t.crash; c.node >= 0 {
		s.Killed = &crashSummary{
			Node: nodeName(c.node), At: ms(c.killed), Reads: c.reads.count, Failed: c.failed,
			P50: ms(c.reads.quantile(0.5)), P99: ms(c.reads.quantile(0.99)), Slowest: ms(c.reads.max),
		}
	}
}

func (c *cost) summary() costSummary {
	return costSummary{Loads: c.loads, Busiest: c.busiest(), LongestWait: ms(c.longest), LastWait: ms(c.last)}
}
