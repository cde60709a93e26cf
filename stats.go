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
	Started        time.Time     // of the node
	Doubt          bool          // what this node owns lives a Bound at most (docs/protocol.md R7), or another process had its ID first
	RingView       uint64        // fingerprint of the member list
	ViewMismatches uint64        // answers from peers with another view
	DiscoveryAge   time.Duration // since discovery last answered; negative: it has not yet
	Announced      uint64        // invalidations that this node, as an owner, told those who may hold copies
	LostPlaces     uint64        // times that a member was so far behind with these that it had to drop all copies from here
	Members        []MemberStats
	Keyspaces      map[string]KeyspaceStats
	Feeds          []FeedStats
	Events         []Event // the last 128, the newest first
}

// MemberStats is what a node knows of a member.
type MemberStats struct {
	Member      peers.Member
	Connected   bool
	Reason      string        // why it is not connected, as far as that is known
	Leaving     bool          // it has said that it stops
	Breaker     string        // closed, open, half-open
	Opened      uint64        // times that its breaker opened
	LastContact time.Duration // ago; negative: never
	Requests    uint64        // sent to it
	Errors      uint64        // of these, the ones it did not answer
	Share       float64       // of the key space, by the ring
	Ideal       float64       // what Share would be if shares were as the weights
	SameRing    bool          // it goes by the same ring as this node, as far as this node heard

	// Lag is the last round trip on the stream of the member's invalidations, behind all of them that were waiting: within it what the member
	// drops is dropped here. Negative: there was none yet.
	Lag time.Duration
	// Times that all near copies from the member were dropped: an invalidation was missed, the member said so, it was started anew.
	Gaps, Resets, Restarts uint64
}

// KeyspaceStats is what a node has counted in one keyspace. Each key asked for counts once in exactly one of NearHits,
// OwnerHits, OriginGets, NotFound and Failed; Gets is their sum. What peers ask for is not counted here.
type KeyspaceStats struct {
	Gets         uint64
	NearHits     uint64
	OwnerHits    uint64 // answered from a shard, local or remote
	OriginGets   uint64 // answered by a load, this caller's or a shared one
	Loads        uint64 // calls of Load, and keys passed to LoadMany
	LoadErrors   uint64
	Refreshes    uint64 // of the loads, the ones begun before the key expired, of what this node owns
	Inherited    uint64 // values that came from the former owner of a key instead of a load
	Copies       uint64 // copies that this node took as a replica
	NotFound     uint64
	Failed       uint64 // ended in an error, shed ones and the caller's own cancellation included
	Shared       uint64 // of all these, the ones that joined another caller's flight
	Stale        uint64 // of all these, the ones that got a value marked stale
	Shed         uint64 // loads that found no slot in time, or were refused because the loader keeps failing
	LoadTimeouts uint64 // of the loads, those that LoadTimeout ended
	LoadPanics   uint64 // of the loads, those that panicked or left their goroutine

	// Why something was not stored.

	Rejected       uint64 // fills of this node that were refused, wherever: lease revoked or version older
	RefusedLease   uint64 // fills that this node refused, as the owner: an invalidation or the end of its life had taken the lease
	RefusedTag     uint64 // likewise: a tag of the value was invalidated meanwhile
	RefusedVersion uint64 // likewise: a higher version is known
	LeasesExpired  uint64 // leases that ended here because their holder did not answer in time
	TooLarge       uint64 // values that were returned but not cached because of their size
	ShardTooLarge  uint64 // values larger than what ShardMaxBytes leaves to a single entry
	NearTooLarge   uint64 // likewise near copies, by NearMaxBytes
	NotKept        uint64 // answers that may not be kept as near copies: at the end of their life, or not cached at the owner either
	OverTagged     uint64 // values with too many or too long tags: every InvalidateTag ends them
	NotInstalled   uint64 // answers that were not kept as near copies, because an invalidation or a ring change overtook them

	// Why something was not served.

	Undecodable     uint64 // entries that the codec could not decode: taken for misses
	NearUnsure      uint64 // near copies that were there, but their owner was not heard for a Bound, or something that it told was missed
	NearTagged      uint64 // near copies that were there, but one of their tags was invalidated
	Misrouted       uint64 // answers "not the owner", or "unknown keyspace"
	PeerErrors      uint64
	Invalidations   uint64 // keys invalidated here, whoever sent them
	TagsInvalidated uint64 // tags invalidated here, whoever sent them

	Evictions       uint64 // entries and near copies that left, or did not get in, for want of room
	Expirations     uint64 // entries and near copies that left after their lifetime
	NearEvictions   uint64 // of the evictions, those of near copies
	NearExpirations uint64 // of the expirations, those of near copies

	// What there is now.

	HotKeys         int64 // here, those of Hot.Pin included
	NegativeEntries int64 // in the shard, expired ones included until they are swept
	HeldExpired     int64 // expired entries and near copies that are not swept yet; those that StaleOnError keeps are none
	NearEntries     int64
	NearBytes       int64
	NearMaxBytes    int64 // the budget of near copies
	ShardEntries    int64
	ShardBytes      int64
	ShardMaxBytes   int64 // the budget of entries
	Leases          int64 // given out by this node and live
	Waiters         int64 // requests that wait here for the end of a lease
	Flights         int64 // gets and loads under way
	LoadsRunning    int64 // loader slots in use
	Audit           AuditStats
	LoadsWaiting    int64 // loads that wait for a slot
	LoaderFailing   bool  // loads are shed, but for 20 a second, since all of the last ones failed
	LoadsAbandoned  int64 // loaders that still run although LoadTimeout is over

	// How long it took. Near hits are not timed.

	OwnerLatency  Latency // the OwnerHits
	OriginLatency Latency // the OriginGets
	LoadLatency   Latency // calls of Load and LoadMany, failed ones included

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
	refreshes   atomic.Uint64
	copies      atomic.Uint64
	rejected    atomic.Uint64
	tooLarge    atomic.Uint64
	overTagged  atomic.Uint64
	undecodable atomic.Uint64
	overtaken   atomic.Uint64
	unkept      atomic.Uint64
	misrouted   atomic.Uint64
	peerErrors  atomic.Uint64
	invalidated atomic.Uint64

	tagsInvalidated atomic.Uint64

	ownerLatency, originLatency, loadLatency latency
}

// Stats returns a snapshot. Counters are read one after the other: sums over several of them may be off by what happens meanwhile. Its
// cost does not depend on the number of entries.
func (n *Node) Stats() Stats {
	m := n.members.Load()
	s := Stats{
		Node:           n.ID(),
		Started:        n.started,
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
	shares, ideals := m.Ring.Shares(), m.Ring.Ideals()
	for i, e := range m.Members {
		s.Members[i] = memberStats(e, m.peers[i])
		s.Members[i].Share, s.Members[i].Ideal = shares[i], ideals[i]
		s.Members[i].SameRing = m.peers[i] == nil || m.peers[i].view.Load() == s.RingView
	}
	for name, ks := range *n.keyspaces.Load() {
		s.Keyspaces[name] = ks.stats()
	}
	log := n.log.Stats()
	s.Announced, s.LostPlaces = log.Seq, log.Resets
	s.Events = n.events.recent()
	for _, f := range *n.feeds.Load() {
		s.Feeds = append(s.Feeds, f.Stats())
	}
	return s
}

// memberStats describes a member; p is nil for this node.
func memberStats(e peers.Member, p *peer) MemberStats {
	if p == nil {
		return MemberStats{Member: e, Connected: true, Breaker: "closed", Lag: -1}
	}
	st := p.Status()
	ms := MemberStats{
		Member: e, Connected: st.Connected, Reason: st.Reason, Leaving: st.Draining, Breaker: st.Breaker, Opened: st.Opened,
		LastContact: -1, Requests: st.Requests, Errors: st.Errors,
		Lag: -1, Gaps: p.gaps.Load(), Resets: p.resets.Load(), Restarts: p.restarts.Load(),
	}
	if lag := p.lag.Load(); lag != 0 {
		ms.Lag = time.Duration(lag)
	}
	if !st.LastContact.IsZero() {
		ms.LastContact = time.Since(st.LastContact)
	}
	return ms
}
