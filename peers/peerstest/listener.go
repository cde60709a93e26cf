package peerstest

import (
	"net"
	"sync"
)

type listener struct {
	host *Host
	addr address

	mu      sync.Mutex // guards waiting and closed
	arrived sync.Cond
	waiting []*conn // made and not yet accepted, at most backlog
	closed  bool
}

func newListener(h *Host, at address) *listener {
	l := &listener{host: h, addr: at}
	l.arrived.L = &l.mu
	return l
}

// Addr returns the address with the host's name and the chosen port.
func (l *listener) Addr() net.Addr { return l.addr }

// Accept blocks until a connection arrives or the listener is closed.
func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) == 0 && !l.closed {
		l.arrived.Wait()
	}
	if l.closed {
		return nil, opError("accept", nil, l.addr, net.ErrClosed)
	}
	c := l.waiting[0]
	l.waiting = l.waiting[1:]
	return c, nil
}

// Close ends Accept and resets the connections that nobody has accepted.
func (l *listener) Close() error {
	n := l.host.network
	n.mu.Lock()
	if n.listeners[string(l.addr)] == l {
		delete(n.listeners, string(l.addr))
	}
	n.mu.Unlock()

	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return opError("close", nil, l.addr, net.ErrClosed)
	}
	l.closed = true
	left := l.waiting
	l.waiting = nil
	l.arrived.Broadcast()
	l.mu.Unlock()
	for _, c := range left {
		c.abort()
	}
	return nil
}

// offer puts c into the backlog; false when it is full or the listener closed.
func (l *listener) offer(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting) >= backlog {
		return false
	}
	l.waiting = append(l.waiting, c)
	l.arrived.Signal()
	return true
}
