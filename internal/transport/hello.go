package transport

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hello returns what this member says about itself at the start of every stream.
func (t *Transport) hello() *hello {
	s := &t.cfg.Self
	return &hello{
		Protocol: ProtocolVersion, Cluster: s.Cluster, Member: s.ID, Addr: s.Addr,
		Incarnation: s.Incarnation, View: t.cfg.View(), MaxValueBytes: MaxValueBytes,
	}
}

var errNoHello = errors.New("nearcache: stream did not begin with a hello")

// check refuses those that this member must not talk to.
func (t *Transport) check(h *hello) error {
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
	return nil
}

// checkClient is check at the server's end of a stream.
func (t *Transport) checkClient(h *hello) error {
	if err := t.check(h); err != nil {
		t.cfg.Logger.Warn("nearcache: stream refused", "reason", err)
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}

// checkServer is check at the client's end, where it is known who should answer. A member whom discovery knows by its address only may
// call itself as it likes, and one that has no ID of its own, and so goes by its address, may be called as discovery likes.
func (t *Transport) checkServer(h *hello, id, addr string) error {
	if err := t.check(h); err != nil {
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
