package nearcache

import (
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/counter"
	"github.com/nearcache/nearcache/peers"
)

// Stats is a snapshot of what a node knows and has counted. It is a copy: changing it changes nothing.
type Stats struct {
	Node           string
	Doubt          bool          // what this node owns lives a Bound at most (docs/protocol.md R7), or another process had its ID first
	RingView       uint64        // fingerprint of the member list
	ViewMismatches uint64        // answers from peers with another view
	DiscoveryAge   time.Duration // since discovery last answered; negative: it has not yet
	Members        []MemberStats
	Keyspaces      map[string]KeyspaceStats
	Feeds          []FeedStats
}

// MemberStats is what a node knows of a member.
type MemberStats struct {
	Member      peers.Member
	Connected   bool
	Breaker     string        // closed, open, half-open
	LastContact time.Duration // ago; negative: never
	Requests    uint64        // sent to it
	Errors      uint64        // of these, the ones it did not answer
	Share       float64       // of the key space, by the ring
}

// KeyspaceStats is what a node has counted in one keyspace. Each key asked for counts once in exactly one of NearHits,
// OwnerHits, OriginGets, NotFound and Failed; Gets is their sum. What peers ask for is not counted here.
type KeyspaceStats struct {
	Gets            uint64
	NearHits        uint64
	OwnerHits       uint64 // answered from a shard, local or remote
	OriginGets      uint64 // answered by a load, this caller's or a shared one
	Loads           uint64 // calls of Load, and keys passed to LoadMany
	LoadErrors      uint64
	Inherited       uint64 // values that came from the former owner of a key instead of a load
	NotFound        uint64
	Failed          uint64 // ended in an error, shed ones and the caller's own cancellation included
	Shared          uint64 // of all these, the ones that joined another caller's flight
	Stale           uint64 // of all these, the ones that got a value marked stale
	Shed            uint64 // loads that found no slot in time
	Rejected        uint64 // fills refused: lease revoked or version older
	TooLarge        uint64 // values that were returned but not cached because of their size
	OverTagged      uint64 // values with too many or too long tags: every InvalidateTag ends them
	Undecodable     uint64 // entries that the codec could not decode: taken for misses
	NotInstalled    uint64 // answers that were not kept as near copies, because an invalidation or a ring change overtook them
	Misrouted       uint64 // answers "not the owner", or "unknown keyspace"
	PeerErrors      uint64
	Invalidations   uint64 // keys invalidated here, whoever sent them
	TagsInvalidated uint64 // tags invalidated here, whoever sent them
	Evictions       uint64
	Expirations     uint64
	HotKeys         int64 // promoted or pinned here
	NegativeEntries int64 // in the shard, expired ones included until they are swept
	HeldExpired     int64 // expired entries and near copies that are not swept yet
	NearEntries     int64
	NearBytes       int64
	ShardEntries    int64
	ShardBytes      int64
	Leases          int64 // given out by this node and live
	Flights         int64 // gets and loads under way
	LoadsRunning    int64 // loader slots in use
	Audit           AuditStats
	// Top are the most used keys, 64 at most, those with the highest Rate first. A key is among them a second after it came into use.
	Top []KeyStats
}

// KeyStats is what a node knows of one of the most used keys of a keyspace. A use is a read on this node, or a request of another member
// that was answered here. Counts are what happened in the last time Since, and are lower bounds like Rate: what happened to a key before
// it was among the thousand most used ones is not in them.
type KeyStats struct {
	Key        string        // whole; Handler shortens it for those who may not see keys
	Rate       float64       // uses a second, at least: a mean over the last seconds, in which each counts half of the one after it
	RateError  float64       // Rate may be too low by this at most, and by 64 hits of a near copy that lives long
	NearHits   uint64        // reads on this node, by what answered them; an absence is an answer
	OwnerHits  uint64        // by a shard, local or remote
	OriginGets uint64        // by a load, this caller's or a shared one
	Failed     uint64        // by an error
	Served     uint64        // requests of other members
	Loads      uint64        // by this node
	LoadTime   time.Duration // of the last of them; 0: there was none
	Since      time.Duration
	Owner      string        // ID of the member, by this node's ring; empty: there is none
	Bytes      int64         // of the value as this node holds it, encoded as its owner, else as a near copy; 0: it holds none
	Left       time.Duration // of the lifetime of that copy
	HotSince   time.Duration // it became hot so long ago; 0: it is not
	Pinned     bool          // it is always hot, by Hot.Pin
}

// counters are what a keyspace counts as it goes; the rest of KeyspaceStats is read from its parts.
type counters struct {
	nearHits    counter.Counter // striped: a shared word would cost more than the hit it counts
	nearAbsent  counter.Counter
	ownerHits   atomic.Uint64
	originGets  atomic.Uint64
	notFound    atomic.Uint64
	failed      atomic.Uint64
	stale       atomic.Uint64
	shared      atomic.Uint64
	loads       atomic.Uint64
	loadErrors  atomic.Uint64
	inherited   atomic.Uint64
	rejected    atomic.Uint64
	tooLarge    atomic.Uint64
	overTagged  atomic.Uint64
	undecodable atomic.Uint64
	notKept     atomic.Uint64
	misrouted   atomic.Uint64
	peerErrors  atomic.Uint64
	invalidated atomic.Uint64

	tagsInvalidated atomic.Uint64
}

// Stats returns a snapshot. Counters are read one after the other: sums over several of them may be off by what happens meanwhile. Its
// cost does not depend on the number of entries.
func (n *Node) Stats() Stats {
	m := n.members.Load()
	s := Stats{
		Node:           n.ID(),
		Doubt:          n.doubtful(),
		RingView:       m.Ring.Fingerprint(),
		ViewMismatches: n.differing.Load(),
		DiscoveryAge:   -1,
		Members:        make([]MemberStats, len(m.Members)),
		Keyspaces:      make(map[string]KeyspaceStats),
	}
	if at := n.answered.Load(); at != 0 {
		s.DiscoveryAge = time.Duration(n.clock.Exact() - at)
	}
	shares := m.Ring.Shares()
	for i, e := range m.Members {
		s.Members[i] = memberStats(e, m.peers[i])
		s.Members[i].Share = shares[i]
	}
	for name, ks := range *n.keyspaces.Load() {
		s.Keyspaces[name] = ks.stats()
	}
	for _, f := range *n.feeds.Load() {
		s.Feeds = append(s.Feeds, f.Stats())
	}
	return s
}

// memberStats describes a member; p is nil for this node.
func memberStats(e peers.Member, p *peer) MemberStats {
	if p == nil {
		return MemberStats{Member: e, Connected: true, Breaker: "closed"}
	}
	st := p.Status()
	ms := MemberStats{
		Member: e, Connected: st.Connected, Breaker: st.Breaker, LastContact: -1, Requests: st.Requests, Errors: st.Errors,
	}
	if !st.LastContact.IsZero() {
		ms.LastContact = time.Since(st.LastContact)
	}
	return ms
}
