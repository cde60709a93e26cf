package peerstest

import "time"

// SetLatency delays every byte, and half of every dial's round trip, by d in each direction between two different hosts,
// from now on. Delay overrides it for one direction. A host's way to itself has no delay.
func (n *Network) SetLatency(d time.Duration) {
	n.change(func(f *faults) { f.latency = max(0, d) })
}

// Delay delays every byte from one host to another by d, from now on. Bytes never overtake each other.
func (n *Network) Delay(from, to string, d time.Duration) {
	n.change(func(f *faults) { f.delays[direction(from, to)] = max(0, d) })
}

// Cut holds back what two hosts send each other, until Heal. Nothing is lost and nobody is told: connections stay open and
// fill their buffers, dials hang. An a equal to b cuts a host off from itself.
func (n *Network) Cut(a, b string) {
	n.change(func(f *faults) { f.cuts[direction(a, b)], f.cuts[direction(b, a)] = true, true })
}

// CutOneWay holds back what from sends to to, and lets the other direction through. Dials hang from both sides, as they need an
// answer.
func (n *Network) CutOneWay(from, to string) {
	n.change(func(f *faults) { f.cuts[direction(from, to)] = true })
}

// Isolate cuts a host off from all others, those included that come later, until Rejoin.
func (n *Network) Isolate(host string) {
	n.change(func(f *faults) { f.isolated[canonicalHost(host)] = true })
}

// Rejoin ends Isolate.
func (n *Network) Rejoin(host string) {
	n.change(func(f *faults) { delete(f.isolated, canonicalHost(host)) })
}

// Refuse refuses dials from one host to another, as a firewall does that says so; open connections stay.
func (n *Network) Refuse(from, to string) {
	n.change(func(f *faults) { f.refused[direction(from, to)] = true })
}

// Heal ends Cut, CutOneWay and Refuse between two hosts, in both directions. What was held back arrives at once.
func (n *Network) Heal(a, b string) {
	n.change(func(f *faults) {
		for _, p := range []pair{direction(a, b), direction(b, a)} {
			delete(f.cuts, p)
			delete(f.refused, p)
		}
	})
}

// HealAll ends every Cut, CutOneWay, Isolate and Refuse. Delays stay.
func (n *Network) HealAll() {
	n.change(func(f *faults) {
		clear(f.cuts)
		clear(f.refused)
		clear(f.isolated)
	})
}

// Reset breaks all connections between two hosts: both sides see them reset at once, what is under way is lost. Dials
// work again at once.
func (n *Network) Reset(a, b string) {
	a, b = canonicalHost(a), canonicalHost(b)
	n.mu.Lock()
	var broken []*conn
	for c := range n.conns {
		if c.host.name == a && c.peer == b || c.host.name == b && c.peer == a {
			broken = append(broken, c)
		}
	}
	n.mu.Unlock()
	for _, c := range broken {
		c.abort()
	}
}

// Crash ends the host as the end of its process does: listeners close, its side of each connection is reset, and the
// others see that as soon as the network lets them. The Host is dead for ever, so what still runs in the test on behalf of the
// crashed process can neither listen nor dial; Network.Host returns the host that comes up in its place.
func (h *Host) Crash() {
	n := h.network
	n.mu.Lock()
	if h.dead {
		n.mu.Unlock()
		return
	}
	h.dead = true
	delete(n.hosts, h.name)
	var listeners []*listener
	for _, l := range n.listeners {
		if l.host == h {
			listeners = append(listeners, l)
		}
	}
	var conns []*conn
	for c := range n.conns {
		if c.host == h {
			conns = append(conns, c)
		}
	}
	n.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close() // closed already at worst
	}
	for _, c := range conns {
		c.abort()
	}
}

// Dials returns how many dials from one host have reached another, refused ones included.
func (n *Network) Dials(from, to string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.linkLocked(canonicalHost(from), canonicalHost(to)).dials
}

// Conns returns how many connections that one host has dialled to another it has not closed.
func (n *Network) Conns(from, to string) int {
	from, to = canonicalHost(from), canonicalHost(to)
	n.mu.Lock()
	defer n.mu.Unlock()
	open := 0
	for c := range n.conns {
		if c.dialled && c.host.name == from && c.peer == to {
			open++
		}
	}
	return open
}

func direction(from, to string) pair { return pair{canonicalHost(from), canonicalHost(to)} }

// change changes the faults, applies them to all links and wakes whoever waits for one.
func (n *Network) change(apply func(*faults)) {
	n.mu.Lock()
	apply(&n.faults)
	for p, l := range n.links {
		n.faults.apply(p, l)
	}
	close(n.faults.changed)
	n.faults.changed = make(chan struct{})
	var streams []*stream
	for c := range n.conns {
		streams = append(streams, c.in, c.out)
	}
	n.mu.Unlock()
	for _, s := range streams {
		s.wake()
	}
}
