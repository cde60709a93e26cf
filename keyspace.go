package nearcache

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/hotkey"
	"github.com/nearcache/nearcache/internal/origin"
	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/near"
	"github.com/nearcache/nearcache/ring"
)

// keyspace is the part of a Cache that does not depend on the type of its values: what this node owns, what it counts, and
// what peers ask of it.
type keyspace struct {
	name     string
	node     *Node
	policy   policy
	shard    *shard.Shard
	limiter  *origin.Limiter
	hot      *hotkey.Keys
	renewals spells // keys of which a load ahead of expiry was begun a moment ago
	crowded  spells // keys in heavy use, of a keyspace without near copies (see reader)
	lacking  spells // those that a replica did not have
	fetchHot int64  // when hot keys without a near copy are fetched again; of the goroutine tick
	local    local
	own      *invalidation.OwnView
	ownTags  *invalidation.OwnTags
	owed     *invalidation.Owed
	owedTags *invalidation.Owed // of tags
	holdings holdings
	holds    *invalidation.Holds
	turns    turns
	settled  bell // rung when something is not owed any more, and with every tick
	count    counters
	audit    audit
	history  history
	opened   int64         // when it was, on the node's clock
	epoch    atomic.Uint64 // bumped by InvalidateAll
	longest  atomic.Int64  // lifetime given to an entry here, ns
	closed   atomic.Bool

	// ctx ends when Close stops waiting for calls under way, of the keyspace or of the node.
	ctx    context.Context //nolint:containedctx // a lifetime, not a request
	cancel context.CancelFunc
	// ends are closed with it. A get waits for the one that its key's hash says: a channel for all gets would be a lock for all.
	ends [16]chan struct{}
}

// local is the typed part of a keyspace, as far as the untyped one needs it.
type local interface {
	// attach tells it of its keyspace.
	attach(ks *keyspace)
	// forget drops the near copy of key and splits its flight.
	forget(key string)
	// forgetAll does so for all keys.
	forgetAll()
	// forgetTags drops the near copies with one of the tags, and ends the sharing of all flights.
	forgetTags(hashes []uint64, now int64)
	// overtaken applies an event of the key from the member that src stands for.
	overtaken(key string, src *near.Source, seq uint64)
	// missed ends the sharing of all flights, after events were missed: some of them may hold an old value (R1b).
	missed()
	// revoked ends the sharing of the flight that holds a lease on key (R1b).
	revoked(key string)
	// underWay returns the number of flights.
	underWay() int
	resize(nearBytes int64)
	// sweep frees expired near copies and returns their number.
	sweep(now int64) int
	nearStats() near.Stats
	nearExpired(now int64) int64
	nearView(key string, now int64) *CopyView
	flying(key string) bool
	// compare compares what this node serves of a key with the origin, for the audit.
	compare(key string)
	// tend keeps the near copy of a hot key and has it fetched anew in time; with again also if there is none.
	tend(key string, again bool, now int64)
	// cool does no more so.
	cool(key string)
	// renew loads a key that this node owns before it expires. key may alias a buffer.
	renew(key string)
}

// policy is the part of a Config that the untyped part needs, with its defaults applied.
type policy struct {
	ttl, nearTTL, notFoundTTL time.Duration
	jitter                    float64
	maxBytes, nearBytes       int64
	maxValueBytes             int
	eviction                  Eviction
	loadTimeout, queueTimeout time.Duration
	lag                       time.Duration
	stale, gather             time.Duration
	refreshAhead              time.Duration
	hot                       HotConfig
	maxLoads                  int
	ack                       Ack
	errors                    map[string]error
	audit                     AuditConfig
}

// policy extracts the effective policy.
func (c Config[V]) policy() policy {
	return policy{
		ttl: c.TTL, nearTTL: c.NearTTL, notFoundTTL: c.NotFoundTTL,
		jitter:   c.Jitter,
		maxBytes: c.MaxBytes, nearBytes: c.NearBytes,
		maxValueBytes: c.MaxValueBytes, eviction: c.Eviction,
		loadTimeout: c.LoadTimeout, queueTimeout: c.LoadQueueTimeout,
		lag:   c.OriginLag,
		stale: c.StaleOnError, gather: c.Gather,
		refreshAhead: c.RefreshAhead, hot: c.Hot,
		maxLoads: c.MaxLoads,
		ack:      c.Ack,
		errors:   c.Errors,
		audit:    c.Audit,
	}
}

// near returns the lifetime wanted for near copies; 0: none are kept.
func (p *policy) near() time.Duration { return max(p.nearTTL, 0) }

// patience is how long a caller waits for a load when there is a stale copy.
func (p *policy) patience() time.Duration { return max(p.queueTimeout, 0) }

// refreshes bounds the loads a second that replace what a gap in a feed made stale.
func (p *policy) refreshes() int {
	if p.maxLoads <= 0 {
		return defaultMaxLoads
	}
	return p.maxLoads
}

// longestLoad is how long a lease may be in use: the wait for others to load with it and for a slot, and the load.
func (p *policy) longestLoad() time.Duration {
	const unlimited = time.Hour
	load := p.loadTimeout
	if load < 0 {
		load = unlimited
	}
	return load + max(p.queueTimeout, 0) + p.gather
}

// leaseLife is how long a lease lives: a second longer than its holder may need, so that a late end is the holder's own.
func (p *policy) leaseLife() time.Duration { return p.longestLoad() + time.Second }

// retryStale is the pause after a failed load of a key that has a stale copy. Shorter: an origin that fails is asked more often. Longer: what
// is new is seen later.
const retryStale = time.Second

func newKeyspace(n *Node, name string, p policy, l local) *keyspace {
	if n.cfg.NearBytes < 0 || p.nearBytes < 0 {
		p.nearTTL = -1 // nowhere to keep near copies: nobody need announce anything for them
	}
	if p.nearTTL < 0 {
		p.hot.Pin = nil
	}
	ks := &keyspace{
		name: name, node: n, policy: p, local: l, opened: n.clock.Exact(),
		own: invalidation.NewOwnView(p.longestLoad()), ownTags: invalidation.NewOwnTags(p.longestLoad()),
		holds: invalidation.NewHolds(maxHeld),
		owed:  invalidation.NewOwed(maxOwed), owedTags: invalidation.NewOwed(maxOwed),
	}
	ks.ctx, ks.cancel = context.WithCancel(n.ctx)
	for i := range ks.ends {
		ks.ends[i] = make(chan struct{})
	}
	context.AfterFunc(ks.ctx, func() {
		for _, end := range ks.ends {
			close(end)
		}
	})
	ks.audit.set(p.audit)
	ks.hot = hotkey.New(hotkey.Config{PerSecond: p.hot.PerSecond, Pin: p.hot.Pin}, n.clock.Exact())
	ks.limiter = origin.NewLimiter(p.maxLoads, p.queueTimeout)
	ks.shard = shard.New(shard.Config{
		Incarnation: n.incarnation,
		Tokens:      &n.tokens,
		Policy:      p.eviction.store(),
		Dropped:     ks.dropped,
		Seq:         n.log.Seq,
		Cap:         ks.cap,
		Held:        ks.holds.Held,
		Limits:      &n.standing.limits,
		Lag:         int64(p.lag),
		Refreshes:   p.refreshes(),
		Patience:    int64(p.patience()),
		Retry:       int64(retryStale),
	})
	return ks
}

// dropped numbers the change of a key for those who may hold a copy of it (R14). It runs under the shard's lock.
func (ks *keyspace) dropped(key string) {
	if !ks.node.interest.Granted(ring.Hash(ks.name, key)) {
		return
	}
	ks.node.log.Append(invalidation.Event{Keyspace: ks.name, Key: strings.Clone(key)})
}

// cap is how long what is loaded for a key from now on may live, 0 for its lifetime (R7). It runs under the shard's lock.
func (ks *keyspace) cap(key string, now int64) time.Duration {
	if ks.node.capped(ks.route(key), now) {
		return ks.node.bound
	}
	return 0
}

// tick looks after what ends by itself.
func (ks *keyspace) tick(now int64) {
	ks.carryOut(ks.shard.Tick(now))
	ks.tendHot(now)
	for _, s := range []*spells{&ks.renewals, &ks.crowded, &ks.lacking} {
		s.tick(now)
	}
	ks.holds.Tick(now)
	ks.own.Tick(now)
	ks.ownTags.Tick(now)
	ks.repay(now)
	ks.settled.ring()
}

// sweep frees what has expired, and returns how much, and how much there was.
func (ks *keyspace) sweep(now int64) (freed, held int64) {
	freed = int64(ks.shard.Sweep(now) + ks.local.sweep(now))
	return freed, freed + ks.shard.Stats().Entries + ks.local.nearStats().Entries
}

// moved follows a change of the ring: what this node did not own before or does not own now is dropped, near copies all. What another member
// owns now is kept for it, for a while (R10b).
func (ks *keyspace) moved(before, after *members) {
	if before != nil {
		now := ks.node.clock.Exact()
		ks.carryOut(ks.shard.Move(shard.Change{
			View: after.number, Now: now, Until: now + ks.node.window(),
			Fate: func(key string) shard.Fate { return fate(before, after, ring.Hash(ks.name, key)) },
		}))
	}
	ks.local.forgetAll()
}

// withdraw lets nobody keep anything more of what this node owns of the keyspace, and has near copies elsewhere dropped: an
// invalidation that finds the keyspace unknown here has nothing to announce any more.
//
// Order: first closed, then the event. An answer that was on its way before is for a flight that the event splits.
func (ks *keyspace) withdraw() {
	ks.closed.Store(true)
	ks.announceAll()
	ks.node.log.Wake()
}

// close empties the keyspace for good.
func (ks *keyspace) close() {
	ks.closed.Store(true)
	ks.cancel()
	ks.carryOut(ks.shard.Close())
	ks.local.forgetAll()
}

// stats returns a snapshot.
func (ks *keyspace) stats() KeyspaceStats {
	c := &ks.count
	sh, ne, lim := ks.shard.Stats(), ks.local.nearStats(), ks.limiter.Stats()
	now := ks.node.clock.Exact()
	s := KeyspaceStats{
		NearHits:        uint64(c.nearHits.Load()),
		OwnerHits:       c.ownerHits.Load(),
		OriginGets:      c.originGets.Load(),
		NotFound:        uint64(c.nearAbsent.Load()) + c.notFound.Load(),
		Failed:          c.failed.Load(),
		Shared:          c.shared.Load(),
		Stale:           c.stale.Load(),
		Loads:           c.loads.Load(),
		LoadErrors:      c.loadErrors.Load(),
		Inherited:       c.inherited.Load(),
		Copies:          c.copies.Load(),
		Shed:            lim.Shed,
		Rejected:        c.rejected.Load(),
		RefusedLease:    sh.RefusedLease,
		RefusedTag:      sh.RefusedTag,
		RefusedVersion:  sh.RefusedVersion,
		TooLarge:        c.tooLarge.Load(),
		OverTagged:      c.overTagged.Load(),
		Undecodable:     c.undecodable.Load(),
		NotInstalled:    c.overtaken.Load(),
		NotKept:         c.unkept.Load(),
		NearTooLarge:    ne.TooLarge,
		ShardTooLarge:   sh.TooLarge,
		NearUnsure:      ne.Unsure,
		NearTagged:      ne.Tagged,
		Misrouted:       c.misrouted.Load(),
		PeerErrors:      c.peerErrors.Load(),
		Invalidations:   c.invalidated.Load(),
		TagsInvalidated: c.tagsInvalidated.Load(),
		Evictions:       sh.Evictions + ne.Evictions,
		Expirations:     sh.Expirations + ne.Expirations,
		NearEvictions:   ne.Evictions,
		NearExpirations: ne.Expirations,
		LeasesExpired:   sh.Expired,
		LoadTimeouts:    lim.Timeouts,
		LoadPanics:      lim.Panics,
		NegativeEntries: sh.Counted,
		HeldExpired:     ks.shard.Expired(now) + ks.local.nearExpired(now),
		NearEntries:     ne.Entries,
		NearBytes:       ne.Bytes,
		NearMaxBytes:    ne.MaxBytes,
		ShardEntries:    sh.Entries,
		ShardBytes:      sh.Bytes + sh.AsideBytes,
		ShardMaxBytes:   sh.MaxBytes,
		Leases:          sh.Leases,
		Waiters:         sh.Waiters,
		Flights:         int64(ks.local.underWay()),
		LoadsRunning:    lim.InUse,
		Audit:           ks.audit.snapshot(),
		HotKeys:         int64(ks.hot.Len()),
		Refreshes:       c.refreshes.Load(),
		Top:             ks.topKeys(now),
		LoadsWaiting:    lim.Waiting,
		LoadsAbandoned:  lim.Abandoned,
		OwnerLatency:    c.ownerLatency.load(),
		OriginLatency:   c.originLatency.load(),
		LoadLatency:     c.loadLatency.load(),
		LoaderFailing:   lim.Open,
	}
	s.Gets = s.NearHits + s.OwnerHits + s.OriginGets + s.NotFound + s.Failed
	return s
}

// view returns what this node knows of a key.
func (ks *keyspace) view(key string) KeyView {
	now := ks.node.clock.Exact()
	r := ks.node.route(ks.name, key)
	v := KeyView{Keyspace: ks.name, Here: r.self(), Near: ks.local.nearView(key, now), Flight: ks.local.flying(key)}
	if r.owner >= 0 {
		v.Owner = r.m.Members[r.owner].ID
	}
	if e, _ := ks.shard.Peek(key, now); e != nil {
		v.Shard = &CopyView{
			Absent: e.Absent, Age: age(e.LoadedAt, now), Left: time.Duration(ks.shard.FreshUntil(e) - now), Version: e.Version, Bytes: len(e.Bytes),
		}
	}
	if l, ok := ks.shard.Leased(key); ok {
		v.Lease = &LeaseView{Holder: l.Holder, Age: age(l.Granted, now), Left: time.Duration(l.Expires - now), Waiters: l.Waiters}
	}
	return v
}
