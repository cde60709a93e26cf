package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// hello returns what this member says about itself at the start of every stream.
func (t *Transport) hello() *hello {
	s := &t.cfg.Self
	return &hello{
		Protocol: ProtocolVersion, Cluster: s.Cluster, Member: s.ID, Addr: s.Addr,
		Incarnation: s.Incarnation, View: t.cfg.View(), MaxValueBytes: MaxValueBytes, Replicas: uint32(s.Replicas),
	}
}

var (
	errNoHello       = errors.New("nearcache: stream did not begin with a hello")
	errNoCertificate = errors.New("nearcache: peer shows no certificate")
)

// check refuses those that this member must not talk to. at is the other end of the connection.
func (t *Transport) check(at *peer.Peer, h *hello) error {
	switch {
	case h == nil:
		return errNoHello
	case h.Protocol != ProtocolVersion:
		return fmt.Errorf("nearcache: peer speaks protocol version %d, this member version %d", h.Protocol, ProtocolVersion)
	case h.Cluster != t.cfg.Self.Cluster:
		return fmt.Errorf("nearcache: peer belongs to cluster %.64q, this member to %.64q", h.Cluster, t.cfg.Self.Cluster)
	case h.Member == "":
		return errors.New("nearcache: peer has no member ID")
	}
	return t.verify(at, h)
}

// verify asks the application whether the certificate at the other end is that of the member it is said to be.
func (t *Transport) verify(at *peer.Peer, h *hello) error {
	if t.cfg.VerifyMember == nil {
		return nil
	}
	var shown tls.ConnectionState
	if at != nil {
		if info, ok := at.AuthInfo.(credentials.TLSInfo); ok {
			shown = info.State
		}
	}
	if len(shown.PeerCertificates) == 0 {
		return errNoCertificate
	}
	if err := t.cfg.VerifyMember(h.Member, h.Addr, shown); err != nil {
		return fmt.Errorf("nearcache: the certificate is not that of member %.64q at %.80q: %w", h.Member, h.Addr, err)
	}
	return nil
}

// checkClient is check at the server's end of a stream.
func (t *Transport) checkClient(at *peer.Peer, h *hello) error {
	if err := t.check(at, h); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if h.Member == t.cfg.Self.ID {
		return t.meet(h)
	}
	return nil
}

// refusals keeps the log of refused streams short: whoever is refused tries again at once.
type refusals struct {
	// mu guards the fields below. It is a leaf.
	mu     sync.Mutex
	reason string
	at     int64
}

// refuse logs why a stream is refused, what is new of it, and returns err.
func (t *Transport) refuse(h *hello, err error) error {
	const every = 10 * time.Second
	r, now := &t.refusals, t.now()
	r.mu.Lock()
	known := r.reason == err.Error() && now-r.at < int64(every)
	if !known {
		r.reason, r.at = err.Error(), now
	}
	r.mu.Unlock()
	if !known {
		var member, addr string
		if h != nil {
			member, addr = h.Member, h.Addr
		}
		t.cfg.Logger.Warn("nearcache: stream refused", "member", member, "addr", addr, "reason", err)
	}
	return err
}

// checkServer is check at the client's end, where it is known who should answer. A member whom discovery knows by its address only may
// call itself as it likes, and one that has no ID of its own, and so goes by its address, may be called as discovery likes.
func (t *Transport) checkServer(at *peer.Peer, h *hello, id, addr string) error {
	if err := t.check(at, h); err != nil {
		return err
	}
	if h.Member != id && id != addr && h.Member != h.Addr {
		return fmt.Errorf("nearcache: %.64q is member %.64q, not %.64q", addr, h.Member, id)
	}
	if h.Addr != addr {
		return fmt.Errorf("nearcache: member %.64q is reached at %.64q, not %.64q", id, h.Addr, addr)
	}
	return nil
}
