package transport

import (
	"context"
	"net"
	"sync"
)

// Transport is one member's end of all its connections. Safe for concurrent use.
type Transport struct {
	cfg     Config
	calls   sync.Pool // of *Call: per transport, since their channels belong to its bubble in tests
	orphans orphans
}

type orphans struct{}

func (o *orphans) add(*Peer, Request, Reply) {}

// New returns a transport that neither listens nor dials yet. It must be closed.
func New(cfg Config) *Transport { return &Transport{cfg: cfg.withDefaults()} }

// Serve starts to answer the connections of l and returns. Close closes l. It may be called for several listeners.
func (t *Transport) Serve(l net.Listener) {}

// SetPeers makes ps the members to be connected to: it opens new connections, closes those that are not listed any more and keeps the
// rest. An ID with another address is another peer. Self is skipped. It does not wait for the peers.
func (t *Transport) SetPeers(ps []PeerAddr) {}

// Peer returns the peer with this ID, or nil.
func (t *Transport) Peer(id string) *Peer { return nil }

// Peers returns all peers, sorted by ID.
func (t *Transport) Peers() []*Peer { return nil }

// Drain tells all members that this one stops: they start no new calls here and finish those that wait. New streams are refused.
func (t *Transport) Drain() {}

// Close drains, waits for the calls of others that still run, then closes all connections and waits for the goroutines. When ctx ends it does not
// wait for the calls any more, and returns ctx's error if any were cut off. Own calls that still run fail with ErrDown. It may be called
// several times, also concurrently; each returns when everything has stopped. The handler must not call it.
func (t *Transport) Close(ctx context.Context) error { return nil }
