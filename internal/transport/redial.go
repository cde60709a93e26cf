package transport

import (
	"context"
	"net"
	"time"
)

// redialAfter is how long a peer that is passed over may say nothing at all before its connection is given up. Longer: a peer that has
// lost the connection without a word, as after the failure of something between, is away for so long; gRPC's keepalive would take
// 11 s. Shorter: a process that pauses has to be dialled again.
const redialAfter = 2 * time.Second

// dial opens what the peer's connection runs over, and remembers it.
func (p *Peer) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := p.t.cfg.Dial(ctx, addr)
	if err == nil {
		p.under.Store(&c)
	}
	return c, err
}

// giveUpSilent closes the connection of a peer that is passed over and has been silent for too long: gRPC makes another one.
func (p *Peer) giveUpSilent(now int64) {
	if now-max(p.lastContact.Load(), p.breaker.openedAt) < int64(redialAfter) {
		return
	}
	if c := p.under.Swap(nil); c != nil {
		_ = (*c).Close() // it may have ended by itself
	}
}
