package nearcache

import (
	"sync"
	"time"
)

// HistorySeconds is how far Node.History goes back.
const HistorySeconds = 300

// Sample is what a node counted in one keyspace in about a second: see KeyspaceStats.
type Sample struct {
	At         time.Time // the end of the second
	Took       time.Duration
	NearHits   uint64
	OwnerHits  uint64
	OriginGets uint64
	NotFound   uint64
	Failed     uint64
	Loads      uint64
}

// Gets is the number of keys asked for.
func (s Sample) Gets() uint64 {
	return s.NearHits + s.OwnerHits + s.OriginGets + s.NotFound + s.Failed
}

// history is what was counted second by second. The zero value is ready for use.
type history struct {
	mu      sync.Mutex // guards what follows. It is a leaf
	at      int64      // of the last sample
	total   Sample     // counted until then
	samples []Sample   // a ring of HistorySeconds once it is full; next is the oldest then
	next    int
}

// add notes the counters at now, a second after the last time or later.
func (h *history) add(total Sample, now int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Sample{
		At: total.At, Took: time.Duration(now - h.at),
		NearHits: total.NearHits - h.total.NearHits, OwnerHits: total.OwnerHits - h.total.OwnerHits,
		OriginGets: total.OriginGets - h.total.OriginGets, NotFound: total.NotFound - h.total.NotFound,
		Failed: total.Failed - h.total.Failed, Loads: total.Loads - h.total.Loads,
	}
	first := h.at == 0
	h.at, h.total = now, total
	switch {
	case first: // since when it counts nobody knows
	case len(h.samples) < HistorySeconds:
		h.samples = append(h.samples, s)
	default:
		h.samples[h.next] = s
		h.next = (h.next + 1) % HistorySeconds
	}
}

// list returns the samples, the oldest first.
func (h *history) list() []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(append(make([]Sample, 0, len(h.samples)), h.samples[h.next:]...), h.samples[:h.next]...)
}

// History returns by keyspace what was counted in each of the last HistorySeconds seconds, the oldest first; a second in which the process
// did not run is part of the next one. Memory for it is bounded: some 25 KiB a keyspace.
func (n *Node) History() map[string][]Sample {
	all := make(map[string][]Sample)
	for name, ks := range *n.keyspaces.Load() {
		all[name] = ks.history.list()
	}
	return all
}

// sample is what was counted so far.
func (ks *keyspace) sample() Sample {
	c := &ks.count
	return Sample{
		At: time.Now(), NearHits: uint64(c.nearHits.Load()), OwnerHits: c.ownerHits.Load(), OriginGets: c.originGets.Load(),
		NotFound: uint64(c.nearAbsent.Load()) + c.notFound.Load(), Failed: c.failed.Load(), Loads: c.loads.Load(),
	}
}

// tickHistory takes a sample of each keyspace once a second. It is of the goroutine tick only.
func (n *Node) tickHistory(now int64) {
	if now < n.sampleAt {
		return
	}
	n.sampleAt = now + int64(time.Second)
	for _, ks := range *n.keyspaces.Load() {
		ks.history.add(ks.sample(), now)
	}
}
