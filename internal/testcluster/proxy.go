package testcluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy passes TCP connections on to a node that advertises the proxy's address instead of its own: what peers say to the node and
// hear from it goes through the proxy, what the node says to others does not.
type Proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex // guards everything below
	target  string
	in, out Flow
	changed chan struct{} // closed and replaced when a Flow changes
	cut     bool
	closed  bool
	conns   map[*proxied]struct{}
}

// Flow is what a direction of the proxy's connections does to bytes. The zero Flow passes them on at once.
type Flow struct {
	Hold  bool          // hold everything back, the end of a connection included
	Delay time.Duration // let them arrive so much later
	Rate  int           // bytes per second; 0: no limit
}

// proxied is a connection through the proxy.
type proxied struct {
	peer net.Conn
	node net.Conn // nil: not connected yet, or not any more
	done chan struct{}
	once sync.Once
}

// NewProxy starts a proxy on a free port of 127.0.0.1. It is closed with the test. To tells it whom it stands for.
func NewProxy(tb testing.TB) *Proxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{listener: l, changed: make(chan struct{}), conns: make(map[*proxied]struct{})}
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Addr is what the node advertises.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// To names the address that the node listens on.
func (p *Proxy) To(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Flow sets what happens to bytes towards the node, and to those from it, from now on. Connections stay; new ones are accepted.
func (p *Proxy) Flow(in, out Flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in, p.out = in, out
	close(p.changed)
	p.changed = make(chan struct{})
}

// BlackHole lets nothing pass in either direction.
func (p *Proxy) BlackHole() { p.Flow(Flow{Hold: true}, Flow{Hold: true}) }

// Reset resets all connections at both ends. New ones are accepted.
func (p *Proxy) Reset() {
	for _, c := range p.all() {
		c.reset()
	}
}

// Cut resets all connections, and new ones at once, until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.Reset()
}

// HalfOpen makes the node lose all its connections; the peers are told nothing, and what they send goes nowhere. New connections work.
func (p *Proxy) HalfOpen() {
	for _, c := range p.all() {
		p.mu.Lock()
		node := c.node
		c.node = nil
		p.mu.Unlock()
		if node != nil {
			abort(node)
		}
	}
}

// Heal ends Cut and every Flow. What was held back arrives.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.cut = false
	p.mu.Unlock()
	p.Flow(Flow{}, Flow{})
}

func (p *Proxy) all() []*proxied {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*proxied, 0, len(p.conns))
	for c := range p.conns {
		all = append(all, c)
	}
	return all
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.Reset()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := &proxied{peer: conn, done: make(chan struct{})}
		p.mu.Lock()
		refuse := p.cut || p.closed
		if !refuse {
			p.conns[c] = struct{}{}
			p.wg.Go(func() { p.serve(c) })
		}
		p.mu.Unlock()
		if refuse {
			abort(conn)
		}
	}
}

// serve connects to the node and passes bytes on until both directions have ended.
func (p *Proxy) serve(c *proxied) {
	defer func() {
		c.reset()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	if !p.open(c, func() Flow { return p.in }) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	node, err := new(net.Dialer).DialContext(context.Background(), "tcp", target)
	if err != nil {
		return
	}
	p.mu.Lock()
	c.node = node
	p.mu.Unlock()
	p.wg.Go(func() {
		<-c.done
		abort(node)
	})
	var both sync.WaitGroup
	both.Go(func() { p.pass(c, node, c.peer, func() Flow { return p.in }) })
	both.Go(func() { p.pass(c, c.peer, node, func() Flow { return p.out }) })
	both.Wait()
}

// pass passes what src sends on to dst, as flow says, which is called with mu held.
func (p *Proxy) pass(c *proxied, dst, src net.Conn, flow func() Flow) {
	type chunk struct {
		bytes []byte
		at    time.Time
	}
	const queued = 16
	chunks := make(chan chunk, queued)
	p.wg.Go(func() {
		defer close(chunks)
		for {
			b := make([]byte, 32<<10)
			n, err := src.Read(b)
			if n > 0 {
				select {
				case chunks <- chunk{b[:n], time.Now()}:
				case <-c.done:
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				if p.half(c) && src != c.peer {
					<-c.done // nobody is told
				}
				return
			}
		}
	})
	for ch := range chunks {
		p.mu.Lock()
		f := flow()
		p.mu.Unlock()
		wait := time.Until(ch.at.Add(f.Delay))
		if f.Rate > 0 {
			wait += time.Duration(len(ch.bytes)) * time.Second / time.Duration(f.Rate)
		}
		if !c.sleep(wait) || !p.open(c, flow) {
			return
		}
		if _, err := dst.Write(ch.bytes); err != nil {
			if p.half(c) {
				continue // it goes nowhere
			}
			c.reset()
			return
		}
	}
	if p.half(c) {
		c.reset() // the peer has given up
		return
	}
	if p.open(c, flow) {
		if t, ok := dst.(*net.TCPConn); ok {
			_ = t.CloseWrite() // it may be gone
		}
	}
}

// half tells whether the node has lost the connection and its peer does not know.
func (p *Proxy) half(c *proxied) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.node == nil
}

// open waits until the direction holds nothing back; false: the connection is over.
func (p *Proxy) open(c *proxied, flow func() Flow) bool {
	for {
		p.mu.Lock()
		hold, changed := flow().Hold, p.changed
		p.mu.Unlock()
		if !hold {
			return true
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

func (c *proxied) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.done:
		return false
	}
}

// reset ends the connection at both ends.
func (c *proxied) reset() {
	c.once.Do(func() {
		close(c.done)
		abort(c.peer)
	})
}

// abort closes a connection so that the other end sees a reset.
func abort(conn net.Conn) {
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it may be closed already
	}
	conn.Close()
}
