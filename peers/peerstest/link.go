package peerstest

import (
	"sync/atomic"
	"time"
)

// link is one direction between two hosts. Streams read cut and wait without the network's lock; both are written under it.
type link struct {
	cut   atomic.Bool
	nanos atomic.Int64 // delay

	refuse bool // guarded by Network.mu
	dials  int  // attempts that reached the other host; guarded by Network.mu
}

func (l *link) delay() time.Duration { return time.Duration(l.nanos.Load()) }

// faults is what tests have switched on; the links are computed from it. Guarded by Network.mu.
type faults struct {
	changed  chan struct{} // closed and replaced at every change
	latency  time.Duration // of every direction between two hosts that has none of its own
	delays   map[pair]time.Duration
	cuts     map[pair]bool
	refused  map[pair]bool
	isolated map[string]bool
}

func newFaults() faults {
	return faults{
		changed:  make(chan struct{}),
		delays:   make(map[pair]time.Duration),
		cuts:     make(map[pair]bool),
		refused:  make(map[pair]bool),
		isolated: make(map[string]bool),
	}
}

// linkLocked returns the link from one host to another, made with the faults of the moment at the first use.
func (n *Network) linkLocked(from, to string) *link {
	p := pair{from, to}
	l := n.links[p]
	if l == nil {
		l = &link{}
		n.links[p] = l
		n.faults.apply(p, l)
	}
	return l
}

// apply sets l to what the faults say about p.
func (f *faults) apply(p pair, l *link) {
	delay, ok := f.delays[p]
	if !ok && p.from != p.to {
		delay = f.latency
	}
	l.nanos.Store(int64(delay))
	l.refuse = f.refused[p]
	cut := f.cuts[p] || p.from != p.to && (f.isolated[p.from] || f.isolated[p.to])
	l.cut.Store(cut)
}
