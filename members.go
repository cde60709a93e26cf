package nearcache

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nearcache/nearcache/internal/membership"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

// members is a snapshot of the cluster as this node sees it. It is immutable and replaced as a whole.
type members struct {
	*membership.View
	number uint64 // on this node: 1, 2, ...
	known  bool   // discovery has answered, or there is none
	// contested tells that another process has this node's ID, and came first. It may be the one that hears of invalidations.
	contested bool
	copies    int     // members that keep a key, its owner included: Replicas, or 1 while members differ in that
	peers     []*peer // by index of the ring; nil for this node
	// retired are no members any more, but were within the last window: others may take them for owners yet (R8).
	retired []*peer
	others  []string // the IDs of peers and retired
}

// peer is another member.
type peer struct {
	*transport.Peer
	*followed
	added   int64 // when it became a member
	retires int64 // when it is forgotten; 0: it is a member
}

// followed is what this node knows of a member's invalidation log. It outlives changes of the ring.
type followed struct {
	id string
	// source is what near copies from the member refer to: killing all of them is one store.
	source *near.Source

	mu       sync.Mutex // guards follower, killed and the writing of source
	follower invalidation.Follower
	killed   []invalidation.Cause // kills that are not logged yet

	trouble atomic.Int64  // when it last did not answer this node
	view    atomic.Uint64 // fingerprint of the ring that it last said it goes by
	// restarted is when it was last heard of under another incarnation than before; 0: never.
	restarted atomic.Int64
	leaves    atomic.Int64 // when it last was about to stop, as far as that was looked at

	// For Stats and Node.noteHealth.
	lag                    atomic.Int64 // round trip of the last renewal on its coherence stream; 0: none yet
	restarts, gaps, resets atomic.Uint64
	opened                 uint64 // PeerStatus.Opened; of the goroutine tick, as what follows
	broken                 bool   // its breaker has opened, and not closed since
	met, lost              bool   // it was connected once; it was lost since, and is not back
}

// noAnswer notes that the member did not answer.
func (f *followed) noAnswer(n *Node) { f.trouble.Store(n.clock.Exact()) }

// left tells whether the member stops, or did within the last window: so long its heirs may hold what it owns (R10b).
func (p *peer) left(n *Node) bool {
	now := n.clock.Exact()
	if p.Leaving() {
		p.leaves.Store(now)
		return true
	}
	at := p.leaves.Load()
	return at != 0 && now-at < n.window()
}

// troubled tells whether the member did not answer this node within the last window (W of docs/protocol.md): so long others may
// hold what it owns.
func (f *followed) troubled(n *Node) bool {
	at := f.trouble.Load()
	return at != 0 && n.clock.Exact()-at < n.window()
}

// followed returns what is known of a member, which may be nothing yet.
func (n *Node) followed(id string) *followed {
	n.followMu.Lock()
	defer n.followMu.Unlock()
	f := n.follows[id]
	if f == nil {
		f = &followed{id: id, source: new(near.Source)}
		n.follows[id] = f
	}
	return f
}

// keepFollowing forgets what is known of members that m does not know. Whatever came from them was dropped with the change of the ring.
func (n *Node) keepFollowing(m *members) {
	n.followMu.Lock()
	defer n.followMu.Unlock()
	for id := range n.follows {
		if m.peer(id) == nil {
			delete(n.follows, id)
		}
	}
	n.hearing.mu.Lock()
	defer n.hearing.mu.Unlock()
	n.hearing.contacts.Keep(m.others, n.clock.Exact())
	clear(n.hearing.found)
}

// peer returns another member, or one that was a member until lately; nil: there is none of that ID.
func (m *members) peer(id string) *peer {
	if i := m.Ring.Index(id); i >= 0 {
		return m.peers[i]
	}
	for _, p := range m.retired {
		if p.ID() == id {
			return p
		}
	}
	return nil
}

// missing returns the number of members to which a lane or the coherence stream is not up.
func (m *members) missing(now int64) int {
	n := 0
	for _, p := range m.peers {
		if p != nil && !(p.Ready() && now < p.source.LeaseUntil.Load()) {
			n++
		}
	}
	return n
}

// setMembers follows discovery. A list that makes no sense changes nothing. It is logged without the lock: a handler is the
// application's, and may call this node.
func (n *Node) setMembers(list []peers.Member) {
	held, err := n.update(list)
	if err != nil {
		n.cfg.Logger.Error("discovery reports a list that makes no sense; the last one stays", "error", err)
	}
	if held != nil {
		n.cfg.Logger.Warn("discovery reports far fewer members; the last list stays for a while",
			"members", len(n.members.Load().Members), "reported", len(held.Members), "for", n.pace().Hold)
	}
}

// update gives the table a list. It returns the list if it begins to be held back by it, and an error that is not the last one.
func (n *Node) update(list []peers.Member) (held *membership.View, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed.Load() {
		return nil, nil
	}
	now := n.clock.Exact()
	n.answered.Store(now)
	before := n.table.Held()
	changed, err := n.table.Update(list, n.leaving, now)
	if differs := n.oddList.differs(err); err != nil {
		if !differs {
			err = nil
		}
		return nil, err
	}
	if old := n.members.Load(); changed || !old.known {
		n.becomeLocked(n.table.View(), true)
	}
	if before == nil {
		held = n.table.Held()
	}
	return held, nil
}

// leaving tells whether a member said that it stops.
func (n *Node) leaving(id string) bool {
	p := n.transport.Peer(id)
	return p != nil && p.Leaving()
}

// news tells errors that repeat from new ones, so that each is logged once. It is not safe for concurrent use.
type news struct{ last string }

// differs reports whether err, which may be nil, is another one than the last.
func (s *news) differs(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	differs := text != s.last
	s.last = text
	return differs
}

// tickMembers lets a list take effect whose time has come, and notes whether another process has this node's ID.
func (n *Node) tickMembers(now int64) {
	contested := n.transport != nil && n.transport.Contested()
	n.mu.Lock()
	var was, differed, differ bool
	if !n.closed.Load() {
		old := n.members.Load()
		was, differed, differ = old.contested, n.mixed, n.haveMixed(old, now) || n.apart(old, now)
		if changed := n.table.Tick(now); changed || contested != was || differ != differed {
			n.contested, n.mixed = contested, differ
			n.becomeLocked(n.table.View(), changed || old.known)
		} else if slices.ContainsFunc(old.retired, func(p *peer) bool { return p.over(now) }) {
			m := *old
			n.connectLocked(&m, old)
			n.members.Store(&m)
			n.keepFollowing(&m)
		}
	}
	n.mu.Unlock()
	if differ && !differed {
		n.cfg.Logger.Warn("members differ in their Replicas, or for long in their lists: none keeps copies meanwhile", "replicas", n.cfg.Replicas)
	}
	if contested && !was {
		n.cfg.Logger.Error("another process has this node's ID, and came first: nothing is owned here until it is gone", "id", n.id)
	}
}

// becomeLocked makes a view of the cluster the one in use. Whatever was kept by another view is dropped.
func (n *Node) becomeLocked(v *membership.View, known bool) {
	old := n.members.Load()
	m := &members{View: v, number: 1, known: known, contested: n.contested, copies: n.cfg.Replicas, peers: make([]*peer, len(v.Members))}
	if n.mixed {
		m.copies = 1
	}
	if old != nil {
		m.number = old.number + 1
	}
	if n.transport != nil {
		n.connectLocked(m, old)
	}
	n.members.Store(m)
	n.noteChange(old, m)
	for _, ks := range *n.keyspaces.Load() {
		ks.moved(old, m)
	}
	if old != nil { // others may still go by the former ring, and hold near copies of what this node owned by it (R8b)
		n.log.Reset()
		n.log.Wake()
	}
	if m.copies > 1 && old != nil {
		n.uncopied.moved(old)
	}
	n.keepFollowing(m)
	if known && (old == nil || !old.known) {
		close(n.joined)
	}
}

// connectLocked makes the transport's peers those of m, and those that retire.
func (n *Node) connectLocked(m, old *members) {
	now := n.clock.Exact()
	m.peers, m.retired, m.others = make([]*peer, len(m.Members)), nil, nil
	var before []*peer
	if old != nil {
		before = slices.Concat(old.peers, old.retired)
	}
	added := make(map[string]int64)
	for _, p := range before {
		if p == nil {
			continue
		}
		added[p.ID()] = p.added
		another := slices.ContainsFunc(m.Members, func(e peers.Member) bool { return e.ID == p.ID() || e.Addr == p.Addr() })
		if !another && !p.over(now) {
			r := *p
			if r.retires == 0 {
				r.retires = now + n.window()
			}
			m.retired = append(m.retired, &r)
		}
	}
	addrs := make([]transport.PeerAddr, 0, len(m.Members)+len(m.retired))
	for i, e := range m.Members {
		if i != m.Self {
			addrs = append(addrs, transport.PeerAddr{ID: e.ID, Addr: e.Addr})
		}
	}
	for _, p := range m.retired {
		addrs = append(addrs, transport.PeerAddr{ID: p.ID(), Addr: p.Addr()})
	}
	listed := addrs
	if m.ListedAt != "" {
		listed = append(listed, transport.PeerAddr{ID: n.id, Addr: m.ListedAt})
	}
	n.transport.SetPeers(listed)
	for _, a := range addrs {
		m.others = append(m.others, a.ID)
		i := m.Ring.Index(a.ID)
		if i < 0 {
			continue
		}
		p := &peer{Peer: n.transport.Peer(a.ID), followed: n.followed(a.ID), added: now}
		if at, ok := added[a.ID]; ok {
			p.added = at
		}
		m.peers[i] = p
	}
}

// over tells that nothing connects this node with a peer that is no member any more: its window is over, or it has said that it stops.
func (p *peer) over(now int64) bool { return p.retires != 0 && now >= p.retires || p.Leaving() }

// route is where a key lives in one snapshot.
type route struct {
	m     *members
	hash  uint64
	owner int // index of the owner; -1: nobody owns anything
}

// route finds the owner of a key. It costs a hash and a lookup.
func (n *Node) route(keyspace, key string) route {
	m := n.members.Load()
	h := ring.Hash(keyspace, key)
	return route{m: m, hash: h, owner: m.Ring.Owner(h)}
}

// self tells whether this node is the owner.
func (r route) self() bool { return r.owner == r.m.Self }

// owns tells whether this node is the owner and knows its members. An owner that does not is a stand-in: what it keeps lives
// a Bound at most.
func (r route) owns() bool { return r.m.sure() && r.owner == r.m.Self }

// sure tells whether this node may own anything: it knows its members, and nobody else has its ID.
func (m *members) sure() bool { return m.known && !m.contested }

// peer returns the owner when it is another member, else nil.
func (r route) peer() *peer { return r.m.at(r.owner) }

// at returns the member of an index, nil for this node, and for -1.
func (m *members) at(i int) *peer {
	if i < 0 {
		return nil
	}
	return m.peers[i]
}

// told tells whether invalidations of the key reach this node: it is the owner and sure of it, or holds a live lease from the owner.
func (n *Node) told(r route, now int64) bool {
	if p := r.peer(); p != nil {
		return now < p.source.LeaseUntil.Load()
	}
	return !n.capped(r, now)
}
