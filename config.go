package nearcache

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/nearcache/nearcache/hotkey"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/peers"
)

// NodeConfig configures a Node. Zero fields take the documented defaults; what is invalid is a *ConfigError from Start.
type NodeConfig struct {
	// ID is the member's name, unique in the cluster: the second of two processes with one ID is refused (Stats.Doubt). Default: the
	// advertised address, which is also what the discoveries that know addresses only (peers.Static, peers.DNS) call it.
	ID string
	// Cluster keeps clusters apart: members of another one are refused. Default "nearcache".
	Cluster string
	// Listen is the address peers are served on, as host:port; port 0 takes a free one. Empty together with Listener and
	// Discovery: a cluster of one without a socket.
	Listen string
	// Listener serves peers instead of Listen. It belongs to the node from the call of Start on, which closes it also when it fails.
	Listener net.Listener
	// Advertise is the host:port that the others dial. Default: the listener's address, which must then be one that can be
	// dialled (not a wildcard).
	Advertise string
	// Dial reaches a peer's advertised address. Default: TCP, without any proxy.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Discovery reports the members. Default: none, a cluster of one. A *peers.List takes effect at once; of all others changes settle for up
	// to a second, and lists that shrink too much are held back for a while (package peers).
	Discovery peers.Discovery
	// Zone is the member's failure domain: replicas are spread over zones.
	Zone string
	// Weight is the member's share of the key space relative to the others. 0 means 1; negative: client only, owns nothing.
	Weight int
	// Replicas is how many members keep an entry, its owner included; at most 8. 0 means 1. The others serve it when the owner cannot be
	// reached, and keep it when the owner leaves the list, so that a crash costs no load. Copies follow within a tenth of a second; values
	// over 64 KiB, and what a Set stores without a version, are not copied. An invalidation has to be confirmed by all of them, so that a
	// dead replica may cost a call what a dead owner does. All members need the same: while one is heard that has another number, nobody
	// keeps copies.
	Replicas int
	// MaxBytes bounds the entries this node keeps, as owner or replica, over all keyspaces, keys and overhead included. 0 means 256 MiB.
	MaxBytes int64
	// NearBytes bounds the near copies on this node, over all keyspaces. 0 means 64 MiB; negative: no near cache.
	NearBytes int64
	// Bound is the staleness bound under faults (docs/protocol.md), at least 100 ms and at most a minute. 0 means 1 s; negative: availability
	// first. Then an owner that hears no majority of the others keeps what it has for its lifetime, leases and waits are those of a Bound
	// of 1 s, and an Invalidate that misses a member is a *PartialError however long that member was away. All members need the same: how
	// long a silent one may hold something they judge by their own.
	Bound time.Duration
	// PeerTimeout is how long a peer may take to answer or acknowledge before it is passed over. 0 means 50 ms.
	PeerTimeout time.Duration
	// TLS secures the peer connections in both directions, with TLS 1.3. Members must show a certificate signed by one of ClientCAs, by
	// default RootCAs, whatever ClientAuth says; its callbacks make rotation possible. Nil: plaintext, on loopback addresses only
	// unless Plaintext.
	TLS *tls.Config
	// VerifyMember binds members to their certificates. It is asked at the start of every stream, with the ID and the advertised address that
	// the other member gives itself, and an error refuses the stream and is logged. It is called concurrently, at both ends, and must not
	// block. It needs TLS. Nil: any member may call itself by any ID (SECURITY.md).
	VerifyMember func(id, addr string, state tls.ConnectionState) error
	// Plaintext allows unencrypted peers on other addresses. An open peer port reads all that the loaders can.
	Plaintext bool
	// ShowKeys tells who sees whole keys in Handler. Nil: loopback requests only; others see them shortened.
	ShowKeys func(*http.Request) bool
	// Logger receives events, never requests. It must not block. Nil: discard.
	Logger *slog.Logger
}

// Defaults of NodeConfig and Config.
const (
	defaultMaxBytes         = 256 << 20
	defaultNearBytes        = 64 << 20
	defaultBound            = time.Second
	minBound                = 100 * time.Millisecond
	maxBound                = time.Minute
	defaultPeerTimeout      = 50 * time.Millisecond
	defaultTTL              = 5 * time.Minute
	defaultNearTTL          = time.Second
	defaultNotFoundTTL      = 5 * time.Second
	defaultJitter           = 0.1
	defaultMaxValueBytes    = 1 << 20
	defaultLoadTimeout      = 10 * time.Second
	defaultMaxLoads         = 64
	defaultLoadQueueTimeout = 100 * time.Millisecond
	defaultHotPerSecond     = 500
	defaultHotSpread        = 3
)

// problems collects what is wrong with a configuration.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

func (p *problems) require(ok bool, format string, args ...any) {
	if !ok {
		p.add(format, args...)
	}
}

// duration resolves a duration whose zero is a default and whose negative is off, if that is allowed.
func (p *problems) duration(name string, d *time.Duration, def time.Duration, negative bool) {
	switch {
	case *d == 0:
		*d = def
	case *d < 0 && !negative:
		p.add("%s must not be negative", name)
	case *d > transport.MaxDuration:
		p.add("%s must not exceed %v", name, transport.MaxDuration)
	}
}

func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return &ConfigError{Problems: p}
}

// effective returns the configuration with its defaults, or all that is wrong with it.
func (c NodeConfig) effective() (NodeConfig, error) {
	var p problems
	if c.Cluster == "" {
		c.Cluster = "nearcache"
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.NearBytes == 0 {
		c.NearBytes = defaultNearBytes
	}
	p.require(len(c.ID) <= transport.MaxKeyspaceBytes, "ID must not exceed %d bytes", transport.MaxKeyspaceBytes)
	p.require(len(c.Cluster) <= transport.MaxKeyspaceBytes, "Cluster must not exceed %d bytes", transport.MaxKeyspaceBytes)
	p.require(len(c.Zone) <= transport.MaxKeyspaceBytes, "Zone must not exceed %d bytes", transport.MaxKeyspaceBytes)
	p.require(c.MaxBytes > 0, "MaxBytes must not be negative")
	p.require(c.MaxBytes <= math.MaxInt, "MaxBytes must fit the address space")
	p.require(c.NearBytes <= math.MaxInt, "NearBytes must fit the address space")
	p.require(c.Replicas >= 0, "Replicas must not be negative")
	p.require(c.Replicas <= transport.MaxReplicas, "Replicas must not exceed %d", transport.MaxReplicas)
	c.Replicas = max(c.Replicas, 1)
	p.require(c.Weight <= maxWeight, "Weight must not exceed %d", maxWeight)
	p.require(c.Listen == "" || c.Listener == nil, "Listen and Listener exclude each other")
	p.require(c.Discovery == nil || c.Listen != "" || c.Listener != nil, "Discovery needs Listen or Listener")
	p.duration("PeerTimeout", &c.PeerTimeout, defaultPeerTimeout, false)
	p.duration("Bound", &c.Bound, defaultBound, true)
	p.require(c.Bound < 0 || c.Bound >= minBound && c.Bound <= maxBound, "Bound must be between %v and %v", minBound, maxBound)
	if c.TLS != nil {
		p.require(len(c.TLS.Certificates) > 0 || c.TLS.GetCertificate != nil || c.TLS.GetConfigForClient != nil, "TLS needs a certificate")
	}
	p.require(c.TLS != nil || c.VerifyMember == nil, "VerifyMember needs TLS")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = slog.New(safeLog{c.Logger.Handler()})
	return c, p.err()
}

// maxWeight keeps the ring's points countable.
const maxWeight = 100

// Config configures a Cache. Zero fields take the documented defaults, negative values switch off where that makes sense,
// anything else that is invalid is a *ConfigError from New.
type Config[V any] struct {
	// Load reads one key from the origin. Load or LoadMany is required. It may run on any goroutine, many at a time, and
	// should honour its context, which ends after LoadTimeout or when nobody waits for the result any more; it carries the
	// values of the first caller's context. The result is shared with every caller of the key: what a result depends on (a
	// tenant, a permission) belongs into the key. The bytes it returns may be reused by it afterwards.
	//
	// It may call this or another cache, and should pass its context on: a call that would close a circle of loads is known by it, and
	// refused with a *CircularLoadError, and its slot of MaxLoads is lent to the loads that its calls cause. A circle over several
	// processes, or without the context, ends by LoadTimeout.
	Load func(ctx context.Context, key string) (V, error)
	// LoadMany reads several keys at once, for GetMany. Keys that are absent from the result are not found; ErrNotFound, wrapped or
	// not, is a result without any. The list of keys belongs to it, the result to the cache.
	LoadMany func(ctx context.Context, keys []string) (map[string]V, error)
	// Gather lets the loads that single Gets cause on this node within so long after the first one run as one LoadMany, at most 512 keys at a time:
	// fewer and larger queries, at so much more latency; a millisecond is much. It needs LoadMany, and then Load is not used. 0: they do not.
	Gather time.Duration
	// Codec turns values into bytes and back. Default: identity for []byte and string, protobuf for proto.Message, else JSON.
	Codec Codec[V]
	// TTL is the lifetime of an entry at its owner, counted from the start of its load. 0 means 5 min. It must be finite: it is
	// the only bound for an invalidation that could not be acknowledged.
	TTL time.Duration
	// TTLOf gives a value a lifetime of its own. 0 means TTL; negative: do not cache this value.
	TTLOf func(key string, v V) time.Duration
	// VersionOf gives the version of a value. A fill never replaces a higher version.
	VersionOf func(v V) uint64
	// SizeOf gives the bytes that a decoded value counts in the near cache. Nil: its encoded length.
	SizeOf func(v V) int
	// Errors are loader errors that keep their identity (errors.Is) across members, by a code for the wire. Every member has
	// to use the same codes.
	Errors map[string]error
	// Jitter shortens each lifetime by a random share of up to Jitter, so that keys loaded together do not expire together.
	// 0 means 0.1; negative: none; below 1.
	Jitter float64
	// NearTTL is the lifetime of a near copy. 0 means 1 s; negative: no near cache for this keyspace.
	NearTTL time.Duration
	// NotFoundTTL is the lifetime of the knowledge that a key does not exist. 0 means 5 s; negative: it is not cached.
	NotFoundTTL time.Duration
	// RefreshAhead is how long before its end a value that is asked for is loaded anew, in the background and once in the whole cluster: readers
	// are served at once. A value that nobody asks for meanwhile expires. It is capped at half of a value's lifetime, and should be longer
	// than a load takes. The owner of the key loads, within its own MaxLoads; a load that fails is tried again after a second. 0: a
	// value is loaded when it has expired, and its readers wait for that. Not negative.
	RefreshAhead time.Duration
	// StaleOnError is how long a value is kept beyond its lifetime, and a near copy beyond its own, to be served when the load that
	// replaces it fails or is shed, or takes longer than LoadQueueTimeout: marked stale, in place of an error. The load goes on, and after a
	// failed one the next begins a second later. What this member knows to be invalidated is not served; what it cannot know, since it was cut
	// off from the others, may be. Kept values count in the same budgets. 0: none are kept.
	StaleOnError time.Duration
	// MaxBytes is this keyspace's part of the node's MaxBytes, which the parts must not exceed together. 0: an equal share of what the
	// others leave.
	MaxBytes int64
	// NearBytes is this keyspace's part of the node's NearBytes, likewise. 0: an equal share of what the others leave; negative: no near cache
	// for this keyspace.
	NearBytes int64
	// MaxValueBytes is the largest encoded value that is cached; larger ones are returned, not cached, and counted. 0 means
	// 1 MiB; negative: only the wire's limit, 16 MiB.
	MaxValueBytes int
	// Eviction is what makes room for a new entry at its owner, within MaxBytes. It is each member's own; near copies have the default.
	Eviction Eviction
	// LoadTimeout ends a load. 0 means 10 s; negative: no limit, which is not for loaders that call a cache (see Load).
	LoadTimeout time.Duration
	// MaxLoads bounds the concurrent loads on this node. 0 means 64; negative: unbounded.
	MaxLoads int
	// LoadQueueTimeout is how long a load may wait for a slot before it is shed, and how long a caller waits for a load when there is a stale
	// copy (StaleOnError). 0 means 100 ms; negative: shed at once.
	LoadQueueTimeout time.Duration
	// OriginLag is how far behind the store may be that Load reads, a replica of the database say. 0: not at all. What was loaded less than it
	// after an invalidation of the key may be what was invalidated: it lives until OriginLag after that invalidation only, so that the bound
	// is Bound plus OriginLag plus LoadTimeout, for the calling process too. With VersionOf and invalidations that carry a version, as a
	// feed's do, it is not needed.
	OriginLag time.Duration
	// TagsOf gives the tags of a value, for InvalidateTag: at most 64, each of 1 to 255 bytes. A value with more, or another one, counts as having
	// every tag, and is counted in KeyspaceStats.OverTagged; so does every value that a member without TagsOf has loaded. Each tag counts 8
	// bytes in each tier. It is called for what was loaded and for what is Set, and fails the load, or the Set, if it panics.
	TagsOf func(key string, v V) []string
	// Ack is what Invalidate, InvalidateAll, InvalidateTag, Expire and Set wait for, unless WithAck says otherwise.
	Ack Ack
	// Audit is what is checked in production. Nothing by default.
	Audit AuditConfig
	// Hot is about keys that are read very often.
	Hot HotConfig
}

// HotConfig says which keys are hot on this node, 128 at most. The near copy of a hot key is not displaced by others (within half of the near
// cache's budget), is fetched anew when NearTTL is over, while the key is read or pinned, and lives so much longer (a quarter, 0.2 s at least, half
// at most); and the key is loaded anew before it expires. So its readers wait for nobody, as long as NearTTL is half a second or more, and a load
// takes less than a second and a fifth of the lifetime.
// Where a keyspace has no near cache, a hot key is loaded anew before it expires all the same, and Spread says who serves it.
type HotConfig struct {
	// PerSecond is how often a key must be read within a second on this node to become hot, at once. It is hot until it was read less than half as
	// often for ten seconds on end. Of a key that its owner sees used an eighth as often, by all members together, every member that
	// reads it keeps its near copy from being displaced. 0 means 500; negative: none of this.
	PerSecond int
	// Pin are keys that are always hot, read or not, at most 128. They take part where PerSecond is negative too.
	Pin []string
	// Spread is how many members at most serve a key that is read as often as PerSecond says of the whole cluster, where the keyspace has no near
	// copies that would take the load off its owner. They are the first ones of those that keep the key (NodeConfig.Replicas): a replica has
	// confirmed each invalidation that returned nil, so what is read there is no older than at the owner. 0 means 3; 1 or negative: the
	// owner alone serves.
	Spread int
}

// Ack is what Invalidate waits for.
type Ack int

// The acknowledgements. AckAll holds while the members do not change, and without OriginLag; else what it promises is what AckOwners does. It costs
// two messages to each member and their answers. One that does not answer is waited for until it can hold nothing any more, and a Bound
// at least, as long as discovery reports it.
const (
	AckOwners Ack = iota // whoever may own it: within Bound everywhere when it returns nil
	AckAll               // every near copy too: gone everywhere when it returns nil
)

type ackKey struct{}

// WithAck overrides Config.Ack for the calls made with the returned context. Calls with an Ack that does not exist return a *ConfigError.
func WithAck(ctx context.Context, a Ack) context.Context { return context.WithValue(ctx, ackKey{}, a) }

// ack is what a call waits for.
func (ks *keyspace) ack(ctx context.Context) (Ack, error) {
	a, ok := ctx.Value(ackKey{}).(Ack)
	if !ok {
		a = ks.policy.ack
	}
	if !a.valid() {
		return a, &ConfigError{Problems: []string{fmt.Sprintf("WithAck: there is no Ack %d", a)}}
	}
	return a, nil
}

func (a Ack) valid() bool { return a == AckOwners || a == AckAll }

// effective returns the configuration with its defaults, or all that is wrong with it.
func (c Config[V]) effective() (Config[V], error) {
	var p problems
	p.require(c.Load != nil || c.LoadMany != nil, "Load or LoadMany is required")
	if c.Codec == nil {
		codec, err := defaultCodec[V]()
		if err != nil {
			p.add("Codec: %v", err)
		}
		c.Codec = codec
	}
	p.duration("TTL", &c.TTL, defaultTTL, false)
	p.duration("NearTTL", &c.NearTTL, defaultNearTTL, true)
	p.duration("NotFoundTTL", &c.NotFoundTTL, defaultNotFoundTTL, true)
	p.duration("LoadTimeout", &c.LoadTimeout, defaultLoadTimeout, true)
	p.duration("LoadQueueTimeout", &c.LoadQueueTimeout, defaultLoadQueueTimeout, true)
	if c.Jitter == 0 {
		c.Jitter = defaultJitter
	}
	c.Jitter = max(c.Jitter, 0)
	p.require(c.Jitter < 1, "Jitter must be below 1")
	p.require(c.MaxBytes >= 0, "MaxBytes must not be negative")
	switch {
	case c.MaxValueBytes == 0:
		c.MaxValueBytes = defaultMaxValueBytes
	case c.MaxValueBytes < 0:
		c.MaxValueBytes = transport.MaxValueBytes
	case c.MaxValueBytes > transport.MaxValueBytes:
		p.add("MaxValueBytes must not exceed %d", transport.MaxValueBytes)
	}
	if c.MaxLoads == 0 {
		c.MaxLoads = defaultMaxLoads
	}
	for code, err := range c.Errors {
		p.require(code != "" && len(code) <= transport.MaxKeyspaceBytes, "Errors: a code must have 1 to %d bytes", transport.MaxKeyspaceBytes)
		p.require(err != nil, "Errors: %q has no error", code)
	}
	p.require(c.Ack.valid(), "there is no Ack %d", c.Ack)
	p.require(c.Eviction.valid(), "there is no Eviction %d", c.Eviction)
	p.duration("RefreshAhead", &c.RefreshAhead, 0, false)
	c.Hot.check(&p, c.NearTTL)
	c.optional(&p)
	return c, p.err()
}

// check resolves the default and adds what is wrong.
func (h *HotConfig) check(p *problems, nearTTL time.Duration) {
	if h.PerSecond == 0 {
		h.PerSecond = defaultHotPerSecond
	}
	if h.Spread == 0 {
		h.Spread = defaultHotSpread
	}
	h.Pin = slices.Clone(h.Pin) // the caller's own
	p.require(len(h.Pin) <= hotkey.MaxHot, "Hot.Pin must not have more than %d keys", hotkey.MaxHot)
	p.require(len(h.Pin) == 0 || nearTTL > 0, "Hot.Pin needs a near cache: NearTTL is negative")
	p.require(!slices.ContainsFunc(h.Pin, func(key string) bool { return key == "" || len(key) > transport.MaxKeyBytes }),
		"Hot.Pin: a key must have 1 to %d bytes", transport.MaxKeyBytes)
}

// optional adds what is wrong with what is off by default.
func (c Config[V]) optional(p *problems) {
	p.duration("Gather", &c.Gather, 0, false)
	p.require(c.Gather <= 0 || c.LoadMany != nil, "Gather needs LoadMany")
	p.duration("StaleOnError", &c.StaleOnError, 0, false)
	p.require(c.OriginLag >= 0, "OriginLag must not be negative")
	p.require(c.Audit.Invalidations >= 0 && c.Audit.Invalidations <= maxAuditRate, "Audit.Invalidations must be between 0 and %d", maxAuditRate)
	p.require(c.Audit.Values >= 0 && c.Audit.Values <= maxAuditRate, "Audit.Values must be between 0 and %d", maxAuditRate)
	p.require(c.Audit.Values == 0 || c.OriginLag == 0 || c.VersionOf != nil, "Audit.Values with OriginLag needs VersionOf")
}
