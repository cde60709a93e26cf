package nearcache

import (
	"context"
	"maps"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/ring"
)

// serveInvalidate drops what a peer says has changed. Keys that another member owns by this node's ring are passed on, once (R8), whether
// or not this node has opened their keyspace; but not for a peer that goes by the same ring, and tells that member itself: unless that has just come
// back, so that the peer may take it for one that has left, and its heir for the owner.
func (n *Node) serveInvalidate(s *transport.Session, id uint32, req *transport.Request, rep *transport.Reply) bool {
	rep.Status = transport.StatusOK
	ks := n.keyspace(req.Keyspace)
	all := req.Flags&transport.FlagAll != 0
	if ks == nil {
		rep.Status = transport.StatusUnknownKeyspace
	} else {
		ks.obey(req)
	}
	m := n.members.Load()
	by, hops := m.Ring, req.Flags&transport.FlagForwarded
	if heirs := n.heirs.Load(); heirs != nil {
		by, hops = heirs, 0 // they have copies of what this node owns (handover.go), whoever believes that it does
	}
	same := s.View() == by.Fingerprint() && req.Flags&transport.FlagRelayed == 0
	if all || !m.known || hops != 0 || req.Flags&transport.FlagCopies != 0 {
		return true
	}
	flags, least := req.Flags&transport.FlagSoft|transport.FlagForwarded, req.Version
	keyspace, others := strings.Clone(req.Keyspace), m.keptByOthers(by, n.toldCopies(m), req.Keyspace, req.Keys)
	if same {
		maps.DeleteFunc(others, func(owner string, _ []string) bool { return !n.isBack(m, owner) })
	}
	if len(others) == 0 {
		return true
	}
	return n.answerLater("forward", s, id, rep, func(ctx context.Context) error { return n.forward(ctx, m, keyspace, others, flags, least) })
}

// isBack tells whether a member is in another life than a window ago.
func (n *Node) isBack(m *members, id string) bool {
	p := m.peer(id)
	if p == nil {
		return false
	}
	at := p.restarted.Load()
	return at != 0 && n.clock.Exact()-at < n.window()
}

// keptByOthers groups copies of the keys that other members may keep by a ring, as owners or replicas, by member.
func (m *members) keptByOthers(by *ring.Ring, copies int, keyspace string, keys []string) map[string][]string {
	others := make(map[string][]string)
	for _, k := range keys {
		for _, o := range by.Prefer(nil, ring.Hash(keyspace, k), copies) {
			if id := by.Members()[o].ID; id != m.Me().ID {
				others[id] = append(others[id], strings.Clone(k))
			}
		}
	}
	return others
}

// answerLater does something for a Bound at most, and answers a request then. It returns false: the answer follows.
func (n *Node) answerLater(name string, s *transport.Session, id uint32, rep *transport.Reply, do func(context.Context) error) bool {
	started := n.run(name, func() {
		ctx, cancel := context.WithTimeout(n.ctx, n.bound)
		defer cancel()
		rep := transport.Reply{Status: transport.StatusOK}
		if err := do(ctx); err != nil {
			rep.Status = transport.StatusFailed
			rep.Failure = transport.Failure{Kind: transport.FailurePartial, Text: cut(err.Error(), transport.MaxFailureText), Member: n.ID()}
		}
		s.Answer(id, &rep)
	})
	if !started {
		rep.Status = transport.StatusBusy
	}
	return !started
}

// forward passes keys on to the members that keep them by this node's ring. One that can hold nothing any more need not confirm.
func (n *Node) forward(ctx context.Context, m *members, keyspace string, parts map[string][]string, flags uint32, least uint64) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(tellers)
	for member, part := range parts {
		for chunk := range chunks(part) {
			g.Go(func() error {
				req := n.invalidateRequest(keyspace, chunk, flags)
				req.Version = least
				err := n.pass(ctx, m.peer(member), req)
				if err != nil && n.gone(m, member, n.clock.Exact()) {
					return nil
				}
				return err
			})
		}
	}
	return g.Wait()
}

// serveRelay passes an Invalidate on to the member that it is for, and answers what that answers (R8).
func (n *Node) serveRelay(s *transport.Session, id uint32, req *transport.Request, rep *transport.Reply) bool {
	p := n.members.Load().peer(req.Key)
	if p == nil || !p.Ready() {
		rep.Status = transport.StatusFailed
		rep.Failure = transport.Failure{Kind: transport.FailurePartial, Text: transport.ErrDown.Error(), Member: n.ID()}
		return true
	}
	pass := &transport.Request{
		Op: transport.OpInvalidate, Flags: req.Flags | transport.FlagRelayed, Keyspace: strings.Clone(req.Keyspace), Version: req.Version, Budget: n.bound,
	}
	for _, k := range req.Keys {
		pass.Keys = append(pass.Keys, strings.Clone(k))
	}
	for _, t := range req.Tags {
		pass.Tags = append(pass.Tags, strings.Clone(t))
	}
	return n.answerLater("relay", s, id, rep, func(ctx context.Context) error { return n.pass(ctx, p, pass) })
}
