package transport

import (
	"context"
	"net"
	"sync"
	"syscall"

	"github.com/nearcache/nearcache/internal/foreign"
)

// Limits of incoming connections. A member has two; while it reconnects, the former ones may still be open.
const (
	connsPerPeer = 4
	spareConns   = 64 // for members that this one has not heard of, and for strangers
)

// limited is a listener that closes connections beyond a limit as soon as they are accepted: altogether, and from one host.
//
// It does not wrap the connections that it passes on, because gRPC reads those of type *net.TCPConn without a buffer of their own, but
// asks them whether they are closed when it would have to refuse one.
type limited struct {
	net.Listener
	limit func() (total, perHost int)
	ctx   context.Context //nolint:containedctx // the listener's life: ends with Close
	end   context.CancelFunc

	mu    sync.Mutex // guards the fields below. It is a leaf
	open  map[net.Conn]string
	hosts map[string]int
}

func newLimited(l net.Listener, limit func() (total, perHost int)) *limited {
	ctx, end := context.WithCancel(context.Background())
	return &limited{Listener: l, limit: limit, ctx: ctx, end: end, open: make(map[net.Conn]string), hosts: make(map[string]int)}
}

// Accept implements net.Listener. A listener that panics has failed.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := foreign.Call(l.ctx, "Listener.Accept", l.Listener.Accept, closeLate)
		if err != nil {
			return nil, err
		}
		if c = l.admit(c); c != nil {
			return c, nil
		}
	}
}

// Close implements net.Listener. It does not wait for a listener that hangs.
func (l *limited) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	defer l.end()
	_, err := foreign.Call(ctx, "Listener.Close", func() (struct{}, error) { return struct{}{}, l.Listener.Close() }, nil)
	return err
}

// admit counts c, or closes it and returns nil.
func (l *limited) admit(c net.Conn) net.Conn {
	var host string
	if a := c.RemoteAddr(); a != nil {
		host = a.String()
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	total, perHost := l.limit()
	full := func() bool { return len(l.open) >= total || l.hosts[host] >= perHost }
	if full() {
		l.sweepLocked()
	}
	if full() {
		_ = c.Close() // without a word: strangers do not get one
		return nil
	}
	if _, ok := c.(syscall.Conn); !ok {
		c = &countedConn{Conn: c, l: l}
	}
	l.open[c] = host
	l.hosts[host]++
	return c
}

// sweepLocked forgets the connections that have been closed.
func (l *limited) sweepLocked() {
	for c := range l.open {
		if s, ok := c.(syscall.Conn); ok && isClosed(s) {
			l.forgetLocked(c)
		}
	}
}

func isClosed(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

func (l *limited) forgetLocked(c net.Conn) {
	host, ok := l.open[c]
	if !ok {
		return
	}
	delete(l.open, c)
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

// countedConn is a connection that is none of the system's: it tells when it is closed.
type countedConn struct {
	net.Conn
	l *limited
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.l.mu.Lock()
	c.l.forgetLocked(c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// connLimits is how many connections this member takes: from everybody, and from one host, on which all members may be.
func (t *Transport) connLimits() (total, perHost int) {
	n := connsPerPeer * len(*t.peers.Load())
	return n + 2*spareConns, n + spareConns
}
