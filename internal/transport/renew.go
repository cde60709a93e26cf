package transport

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

const (
	defaultMaxAge = time.Hour        // of a connection with TLS
	renewTimeout  = 5 * time.Second  // for the new connection
	retireTime    = 30 * time.Second // for the calls that a lane of the old one still has
)

// renew replaces the peer's connections when they are older than MaxAge, so that certificates and authorities that have been replaced
// go out of use: TLS asks for them at the beginning of a connection only.
func (p *Peer) renew() {
	for {
		age := p.t.cfg.MaxAge
		if !p.sleep(age - age/10 + time.Duration(rand.Int64N(int64(age/5)+1))) {
			return
		}
		if err := p.redial(); err != nil && p.ctx.Err() == nil {
			p.t.cfg.Logger.Warn("nearcache: peer keeps its old connection, a new one failed", "peer", p.id, "addr", p.addr, "err", err)
		}
	}
}

// sleep returns false if the peer is closed meanwhile.
func (p *Peer) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// redial makes a new connection, and moves the lanes to it one after the other: each finishes its calls while another one takes the new
// ones. The coherence stream moves last; the bulk connection is made anew by the next large value.
func (p *Peer) redial() error {
	conn, err := p.t.dial(p.addr)
	if err != nil {
		return err
	}
	if err := p.awaitReady(conn); err != nil {
		_ = conn.Close()
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return conn.Close()
	}
	old, bulk := p.conn, p.bulkConn
	p.conn, p.bulkConn = conn, nil
	p.mu.Unlock()
	defer func() { _ = old.Close() }()
	if bulk != nil {
		p.closeLater(bulk)
	}
	for i := range p.lanes {
		p.move(i)
	}
	return nil
}

// closeLater closes a bulk connection when the calls on it have ended.
func (p *Peer) closeLater(bulk *grpc.ClientConn) {
	ok := p.spawn(func() {
		p.sleep(maxBulkTime)
		_ = bulk.Close()
	})
	if !ok {
		_ = bulk.Close()
	}
}

// awaitReady connects.
func (p *Peer) awaitReady(conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(p.ctx, renewTimeout)
	defer cancel()
	conn.Connect()
	for {
		s := conn.GetState()
		if s == connectivity.Ready {
			return nil
		}
		if !conn.WaitForStateChange(ctx, s) {
			return ctx.Err()
		}
		if s == connectivity.Idle {
			conn.Connect()
		}
	}
}

// move lets lane i end, and waits for the one that takes its place.
func (p *Peer) move(i int) {
	l := p.lanes[i].Load()
	if l == nil {
		return // it will come up on the new connection
	}
	l.retire()
	late := time.NewTimer(retireTime)
	defer late.Stop()
	look := time.NewTicker(minSweep)
	defer look.Stop()
	for {
		if next := p.lanes[i].Load(); next != nil && next != l {
			return
		}
		select {
		case <-look.C:
		case <-late.C:
			l.cancel()
			return
		case <-p.ctx.Done():
			return
		}
	}
}

// retire makes the lane take no more calls, and end when it has no more.
func (l *lane) retire() {
	l.draining.Store(true)
	l.mu.Lock()
	idle := !l.closed && !l.sending && !l.half && l.quick == 0 && l.waiting == 0
	l.half = l.half || idle
	l.mu.Unlock()
	if idle {
		_ = l.st.CloseSend() // as in receive
	}
}
