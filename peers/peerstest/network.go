package peerstest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	backlog       = 128   // connections made and not yet accepted, per listener
	firstPort     = 32768 // of the ports given to ":0" and to the dialling side
	bufferedBytes = 64 << 10
)

// Network joins hosts. The zero value is not usable; see NewNetwork.
type Network struct {
	mu sync.Mutex // guards everything below
	// Lock order: mu is never held while a stream's or a listener's lock is taken.

	hosts     map[string]*Host
	links     map[pair]*link
	listeners map[string]*listener // by address, host:port
	conns     map[*conn]struct{}   // ends that are not closed
	nextPort  int

	faults faults
}

// pair names a direction: bytes that from sends to to.
type pair struct{ from, to string }

// NewNetwork returns a network without hosts, delay or faults.
func NewNetwork() *Network {
	return &Network{
		hosts:     make(map[string]*Host),
		links:     make(map[pair]*link),
		listeners: make(map[string]*listener),
		conns:     make(map[*conn]struct{}),
		nextPort:  firstPort,
		faults:    newFaults(),
	}
}

// Host returns the host of that name, and makes it at the first call. After Crash it is a new one.
func (n *Network) Host(name string) *Host {
	name = canonicalHost(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[name]
	if h == nil {
		h = &Host{network: n, name: name}
		n.hosts[name] = h
	}
	return h
}

// Listen listens at addr, host:port, on the host that addr names. Port 0 picks a free one.
func (n *Network) Listen(addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, opError("listen", nil, address(addr), err)
	}
	return n.Host(host).Listen(addr)
}

// Dial connects to addr from a host of its own that has no name, which only the faults of addr's host reach.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return n.Host("").Dial(ctx, addr)
}

// Host is one machine of a Network.
type Host struct {
	network *Network
	name    string
	dead    bool // guarded by network.mu; never becomes false again
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Listen listens at addr on this host: ":port" or the host's own name with a port; port 0 picks a free one. The listener's
// address carries the host's name. It fails when the address is in use, belongs to another host, or the host has crashed.
func (h *Host) Listen(addr string) (net.Listener, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, opError("listen", nil, address(addr), err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, opError("listen", nil, address(addr), err)
	}
	if host != "" && canonicalHost(host) != h.name {
		return nil, opError("listen", nil, address(addr), syscall.EADDRNOTAVAIL)
	}
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.dead {
		return nil, opError("listen", nil, address(addr), syscall.ENETDOWN)
	}
	at := joinAddress(h.name, int(port))
	if port == 0 {
		at = n.freeAddressLocked(h.name)
	}
	if n.listeners[string(at)] != nil {
		return nil, opError("listen", nil, at, syscall.EADDRINUSE)
	}
	l := newListener(h, at)
	n.listeners[string(at)] = l
	return l, nil
}

// freeAddressLocked returns an address of the host at which nobody listens. Dialling ends get theirs here too.
func (n *Network) freeAddressLocked(host string) address {
	for {
		at := joinAddress(host, n.nextPort)
		n.nextPort++
		if n.nextPort > 65535 {
			n.nextPort = firstPort
		}
		if n.listeners[string(at)] == nil {
			return at
		}
	}
}

// Dial connects to addr, host:port. It takes one round trip of the delay between the two hosts, hangs while the way is cut in
// either direction, and fails when nobody listens, ctx ends or this host has crashed.
func (h *Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	to, toHost, err := parseAddress(addr)
	if err != nil {
		return nil, opError("dial", nil, address(addr), err)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, opError("dial", nil, to, err)
		}
		p, err := h.path(toHost)
		if err != nil {
			return nil, opError("dial", nil, to, err)
		}
		if p.changed != nil {
			select {
			case <-p.changed:
			case <-ctx.Done():
			}
			continue
		}
		if err := sleep(ctx, p.roundTrip); err != nil {
			return nil, opError("dial", nil, to, err)
		}
		c, err := h.connect(to, toHost)
		if errors.Is(err, errCut) {
			continue
		}
		if err != nil {
			return nil, opError("dial", nil, to, err)
		}
		return c, nil
	}
}

// path is what a dial meets before it reaches the other host.
type path struct {
	changed   <-chan struct{} // the way is cut: closed when a fault changes; else nil
	roundTrip time.Duration
}

func (h *Host) path(to string) (path, error) {
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.dead {
		return path{}, syscall.ENETDOWN
	}
	out, back := n.linkLocked(h.name, to), n.linkLocked(to, h.name)
	if out.refuse {
		out.dials++
		return path{}, syscall.ECONNREFUSED
	}
	if out.cut.Load() || back.cut.Load() {
		return path{changed: n.faults.changed}, nil
	}
	return path{roundTrip: out.delay() + back.delay()}, nil
}

// connect makes a connection to the listener at to and puts its far end into the backlog.
func (h *Host) connect(to address, toHost string) (net.Conn, error) {
	near, far, l, err := h.pairUp(to, toHost)
	if err != nil {
		return nil, err
	}
	if !l.offer(far) {
		near.abort()
		far.abort()
		return nil, syscall.ECONNREFUSED
	}
	return near, nil
}

func (h *Host) pairUp(to address, toHost string) (near, far *conn, l *listener, err error) {
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	out, back := n.linkLocked(h.name, toHost), n.linkLocked(toHost, h.name)
	if h.dead {
		return nil, nil, nil, syscall.ENETDOWN
	}
	if out.cut.Load() || back.cut.Load() {
		return nil, nil, nil, errCut
	}
	out.dials++
	l = n.listeners[string(to)]
	if l == nil || out.refuse {
		return nil, nil, nil, syscall.ECONNREFUSED
	}
	local := n.freeAddressLocked(h.name)
	there, here := newStream(out, back), newStream(back, out)
	near = &conn{host: h, dialled: true, peer: toHost, local: local, remote: to, in: here, out: there}
	far = &conn{host: l.host, peer: h.name, local: to, remote: local, in: there, out: here}
	n.conns[near] = struct{}{}
	n.conns[far] = struct{}{}
	return near, far, l, nil
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
