package nearcache

import (
	"context"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/ring"
)

// serveInvalidate drops what a peer says has changed. Keys that another member owns by this node's ring are passed on, once (R8), whether
// or not this node has opened their keyspace.
func (n *Node) serveInvalidate(s *transport.Session, id uint32, req *transport.Request, rep *transport.Reply) bool {
	rep.Status = transport.StatusOK
	ks := n.keyspace(req.Keyspace)
	all := req.Flags&transport.FlagAll != 0
	switch {
	case ks == nil:
		rep.Status = transport.StatusUnknownKeyspace
	case all:
		ks.dropAll()
	default:
		ks.drop(req.Keys, req.Version)
	}
	if all || req.Flags&transport.FlagForwarded != 0 {
		return true
	}
	m, keyspace := n.members.Load(), strings.Clone(req.Keyspace)
	others := m.ownedByOthers(keyspace, req.Keys)
	if len(others) == 0 {
		return true
	}
	started := n.run("forward", func() {
		rep := transport.Reply{Status: transport.StatusOK}
		if err := n.forward(m, keyspace, others); err != nil {
			rep.Status = transport.StatusFailed
			rep.Failure = transport.Failure{Kind: transport.FailurePartial, Text: cut(err.Error(), transport.MaxFailureText), Member: n.ID()}
		}
		s.Answer(id, &rep)
	})
	if !started {
		rep.Status = transport.StatusBusy
		return true
	}
	return false
}

// ownedByOthers returns copies of the keys that other members own; none where the members are not known.
func (m *members) ownedByOthers(keyspace string, keys []string) (others []string) {
	if !m.known {
		return nil
	}
	for _, k := range keys {
		if o := m.Ring.Owner(ring.Hash(keyspace, k)); o >= 0 && o != m.Self {
			others = append(others, strings.Clone(k))
		}
	}
	return others
}

// forward passes keys on to the members that own them by this node's ring.
func (n *Node) forward(m *members, keyspace string, keys []string) error {
	ctx, cancel := context.WithTimeout(n.ctx, n.bound)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(tellers)
	for target, part := range m.byOwner(keyspace, keys) {
		p := m.peers[target]
		for chunk := range chunks(part) {
			g.Go(func() error {
				rep, err := p.Do(ctx, n.invalidateRequest(keyspace, chunk, transport.FlagForwarded))
				if err != nil {
					p.noAnswer(n)
				}
				return confirmed(rep, err)
			})
		}
	}
	return g.Wait()
}
