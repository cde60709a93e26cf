package nearcache

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/ring"
)

// A member that leaves gives the hottest of what it owns to those who own it next, and one that lost keys to a newcomer gives it what was not
// asked for yet, so that neither change of the ring reaches the origin. It is the second way of R10b, and what peek.go says of the first holds
// for it, with these differences:
//
//   - Nobody asks, so the receiver cannot know how long a value was under way. It gives a permit first, which is its own time. Ages and
//     lifetimes count from the permit: what comes may seem too old but not too young. The permit holds for this life of the receiver only.
//   - A member that leaves is the owner still, by everybody's ring. What it gives away waits at the receiver, resident for nobody, until the
//     ring makes that one the owner. Meanwhile it stands in for the one that leaves, and only then serves it.
//   - An invalidation that reaches the one that leaves is passed on to the next owner, and confirmed when that has (Node.heirs): first it
//     becomes known who that is, then values are read, so that one which is dropped after it was read is dropped there too.

const (
	// handOverTime bounds how long Close hands over, beside its context and drainTimeout.
	handOverTime = time.Second
	// handOverBytes bounds what is handed over at once: keys and values. Lower: more loads after a member has left; higher: a longer Close.
	handOverBytes = 64 << 20
)

// leave gives away what this node owns: it is about to stop.
func (n *Node) leave(ctx context.Context) {
	m := n.members.Load()
	if !m.sure() || len(m.Members) < 2 || n.standing.tenure.Load().DoubtfulAt(n.clock.Exact()) {
		return
	}
	heirs := m.Without(m.Me().ID)
	n.heirs.Store(heirs)
	ctx, cancel := context.WithTimeout(ctx, handOverTime)
	defer cancel()
	h := n.newHandOver(ctx, 0, m.peers, ownerBy(heirs))
	for _, ks := range *n.keyspaces.Load() {
		h.give(ctx, ks, ks.shard.Hottest(h.left), func(key string, now int64) *shard.Value {
			if v, _ := ks.shard.Peek(key, now); v != nil && ks.shard.Fresh(v, now) && ks.route(key).owns() {
				return v
			}
			return nil
		})
	}
}

// passOn gives what this node keeps for others to those who own it: to a newcomer what it has gained, and to a member that comes back what it
// gave away. It waits until all members that are heard go by the same ring: an owner that others do not know yet is in doubt about what it was
// given before.
func (n *Node) passOn(now int64) {
	m := n.members.Load()
	if now < n.passes || n.standing.tenure.Load().DoubtfulAt(now) || n.differs(m, now) {
		return
	}
	kept := make(map[*keyspace][]string)
	for _, ks := range *n.keyspaces.Load() {
		if keys := ks.shard.Asides(); len(keys) > 0 {
			kept[ks] = keys
		}
	}
	if len(kept) == 0 {
		return
	}
	n.passes = now + int64(n.bound)
	n.run("hand over", func() {
		ctx, cancel := context.WithTimeout(n.ctx, n.bound)
		defer cancel()
		h := n.newHandOver(ctx, 0, m.peers, ownerBy(m.Ring))
		for ks, keys := range kept {
			h.give(ctx, ks, keys, func(key string, now int64) *shard.Value {
				r := ks.route(key)
				p := r.peer()
				if r.m != m || p == nil || p.Leaving() || !n.vouches(r, p.Incarnation(), now) {
					return nil
				}
				v, since, given := ks.shard.Aside(key, now)
				if v == nil || !given && p.restarted.Load() > since {
					return nil
				}
				ks.shard.Offered(key)
				return v
			})
		}
	})
}

// handOver is values on their way to other members.
type handOver struct {
	n       *Node
	flags   uint32                   // of the requests
	to      func(hash uint64) string // who gets what lies at hash; "": nobody
	permits map[string]permit        // by member; who has given none gets nothing
	left    int64                    // bytes
}

// permit is leave to give values to a member.
type permit struct {
	to    *peer
	token transport.Token
	at    int64 // when it came: later than it was given
}

// ownerBy returns who owns what lies at a hash by a ring.
func ownerBy(r *ring.Ring) func(hash uint64) string {
	return func(hash uint64) string {
		if o := r.Owner(hash); o >= 0 {
			return r.Members()[o].ID
		}
		return ""
	}
}

// newHandOver asks members for permits.
func (n *Node) newHandOver(ctx context.Context, flags uint32, members []*peer, to func(hash uint64) string) *handOver {
	h := &handOver{n: n, flags: flags, to: to, permits: make(map[string]permit), left: handOverBytes}
	var mu sync.Mutex // guards h.permits
	var g errgroup.Group
	g.SetLimit(tellers)
	for _, p := range members {
		if p == nil || !p.Ready() {
			continue
		}
		g.Go(func() error {
			rep, err := p.Do(ctx, &transport.Request{Op: transport.OpHandOver, Flags: flags, Budget: n.cfg.PeerTimeout})
			if err == nil && rep.Status == transport.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				h.permits[p.ID()] = permit{p, rep.Token, n.clock.Exact()}
			}
			return nil
		})
	}
	_ = g.Wait() // who did not answer gets nothing
	return h
}

// give sends the values of keys, as far as read has them, until ctx ends or enough was sent, and returns the keys that are left or were not
// answered.
func (h *handOver) give(ctx context.Context, ks *keyspace, keys []string, read func(key string, now int64) *shard.Value) (left []string) {
	for batch := range slices.Chunk(keys, transport.MaxBatchOps) {
		if ctx.Err() != nil || h.left <= 0 {
			left = append(left, batch...)
			continue
		}
		parts, total := make(map[*peer][]*transport.Call), 0
		for _, key := range batch {
			p, ok := h.permits[h.to(ks.hashOf(key))]
			if !ok {
				continue
			}
			if v := read(key, h.n.clock.Exact()); v != nil && v.LoadedAt <= p.at && len(v.Bytes) <= transport.InlineValueBytes {
				parts[p.to] = append(parts[p.to], h.call(ks, key, v, p))
				total++
				h.left -= int64(len(key) + len(v.Bytes))
			}
		}
		if total > 0 {
			left = append(left, h.send(ctx, parts, total)...)
		}
	}
	return left
}

func (h *handOver) call(ks *keyspace, key string, v *shard.Value, p permit) *transport.Call {
	c := h.n.transport.NewCall()
	c.Request = transport.Request{
		Op: transport.OpHandOver, Flags: h.flags, Keyspace: ks.name, Key: key, Token: p.token, Version: v.Version,
		Budget: h.n.cfg.PeerTimeout, Age: time.Duration(p.at - v.LoadedAt), TTL: time.Duration(ks.shard.FreshUntil(v) - p.at),
		StaleFor: time.Duration(v.Hard - v.Soft),
	}
	if tags, known := v.Mark.Tags(); known && len(tags) == 0 {
		c.Request.Flags |= transport.FlagTagged // else any invalidation of a tag ends it there
	} else if known && h.flags&transport.FlagReplica != 0 {
		c.Request.Flags, c.Request.Tags = c.Request.Flags|transport.FlagTagged, packTags(tags)
	}
	if v.Absent {
		c.Request.Flags |= transport.FlagAbsent
	} else {
		c.Request.Value, c.Request.HasValue = v.Bytes, true
	}
	return c
}

// send sends calls to members and waits for the answers. It returns the keys of those that did not get one, or are to be sent again.
func (h *handOver) send(ctx context.Context, parts map[*peer][]*transport.Call, total int) (left []string) {
	b := transport.NewBatch(total)
	for p, calls := range parts {
		p.StartBatch(calls, b)
	}
	ended := ctx.Err() == nil
	select {
	case <-b.Done():
	case <-ctx.Done():
		ended = false
	}
	for _, calls := range parts {
		for _, c := range calls {
			if !ended || c.Err != nil || c.Reply.Status == transport.StatusBusy {
				left = append(left, c.Request.Key)
			}
			if ended || !c.Abandon() {
				c.Free()
			}
		}
	}
	return left
}

// permitHandOver lets a member give values away, or copies, to this node.
func (n *Node) permitHandOver(req *transport.Request, rep *transport.Reply) {
	now := n.clock.Exact()
	t := n.standing.tenure.Load()
	if n.closed.Load() || now >= t.Fence || req.Flags&transport.FlagReplica != 0 && t.CappedAt(now) {
		rep.Status = transport.StatusBusy
		return
	}
	rep.Status = transport.StatusOK
	rep.Token = transport.Token{Incarnation: n.incarnation, Number: uint64(now)}
}

// takeOver takes a value that its owner gives away because it leaves, or its former owner because this node owns it now, or a copy that its
// owner gives to a replica.
func (ks *keyspace) takeOver(s *transport.Session, req *transport.Request, rep *transport.Reply) {
	n := ks.node
	now, r := n.clock.Exact(), ks.route(req.Key)
	at, sender := int64(req.Token.Number), r.m.idOf(s)
	rep.Status = transport.StatusNotStored
	if req.Token.Incarnation != n.incarnation || at > now || now-at > n.window() || sender == "" || now >= n.standing.tenure.Load().Fence {
		return
	}
	replica := req.Flags&transport.FlagReplica != 0
	g := shard.Given{View: r.m.number, Kept: r.keeps(), Until: at + n.window()}
	switch {
	case !replica && r.owns() && r.m.Before(r.hash, now) == sender:
	case !r.m.sure() || r.owner < 0 || r.m.Members[r.owner].ID != sender:
		return
	case replica && !ks.takesCopy(s, r, now):
		rep.Status = transport.StatusBusy
		return
	}
	end := at + int64(req.TTL)
	v := shard.Value{
		Absent: req.Flags&transport.FlagAbsent != 0, Version: req.Version,
		LoadedAt: at - int64(req.Age), Vouched: at, Soft: end, Hard: end + int64(staleFor(req)),
	}
	if req.Flags&transport.FlagTagged != 0 {
		v.Mark = tag.Of(unpackTags(req.Tags))
	}
	if !v.Absent {
		v.Bytes = req.Value
	}
	if !ks.shard.Give(req.Key, v, g, now) {
		return
	}
	rep.Status = transport.StatusStored
	ks.noteLifetime(req.TTL)
	if replica {
		ks.count.copies.Add(1)
		return
	}
	ks.count.inherited.Add(1)
	ks.stored(req.Key, r, end, now)
}

// inherits tells whether this node is a replica of an owner that leaves: who does not know that one any more may take this node for the owner.
func (ks *keyspace) inherits(r route) bool {
	p := r.peer()
	return p != nil && p.Leaving() && r.keeps()
}

// heirloom answers a Get from what the owner of the key gave to this node before it left, whether the asker takes this node for the owner
// or for a stand-in.
func (ks *keyspace) heirloom(req *transport.Request, rep *transport.Reply, r route, remote bool) bool {
	if p := r.peer(); p == nil || !p.Leaving() || req.Flags&transport.FlagFresh != 0 {
		return false
	}
	now, seq := ks.node.clock.Exact(), ks.node.log.Seq()
	grant := ks.grant(req, r, remote, now)
	v, _, given := ks.shard.Aside(req.Key, now)
	if given {
		ks.hit(rep, v, seq, min(grant, ks.node.bound), now)
	}
	return given
}
