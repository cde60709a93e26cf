package transport

import (
	"sync/atomic"
	"time"
)

// Peer is the client's side of the connection to one member. Safe for concurrent use.
type Peer struct {
	t      *Transport
	id     string
	addr   string
	errors atomic.Uint64
}

// PeerStatus is a peer's state for people to read.
type PeerStatus struct {
	ID          string
	Addr        string
	Ready       bool
	Connected   bool      // a lane is up
	Breaker     string    // "closed", or "open" while the peer is suspect
	Draining    bool      // it said that it stops
	Reason      string    // why no lane is up, as far as it is known
	LastContact time.Time // of the last frame; zero: never
	Requests    uint64    // sent
	Errors      uint64    // calls that got no answer: timed out, lost with a lane, refused here
	Incarnation uint64
	View        uint64 // its ring's fingerprint
	InView      bool   // this member is in its ring
}

// ID returns the member's ID.
func (p *Peer) ID() string { return p.id }

// Addr returns the address that is dialled.
func (p *Peer) Addr() string { return p.addr }

// Ready tells whether a call has a chance: a lane is up, the peer is who it should be, neither draining nor suspect. It costs a few loads.
func (p *Peer) Ready() bool { return false }

// Incarnation returns the one of the newest lane; 0: there was none yet.
func (p *Peer) Incarnation() uint64 { return 0 }

// Status returns a snapshot.
func (p *Peer) Status() PeerStatus { return PeerStatus{} }

// Start sends c's request. It never waits for the peer: a call that cannot be sent is completed at once with ErrDown, ErrBusy or ErrRequest. The
// caller may be made to encode and send the requests of others together with its own.
func (p *Peer) Start(c *Call) {}

// StartBatch sends the requests of cs on one lane, in as few frames as possible, with one wake-up at their end: b.Done instead of
// the calls' own. Each call ends on its own and with its own error.
func (p *Peer) StartBatch(cs []*Call, b *Batch) {}
