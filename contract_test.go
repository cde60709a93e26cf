package nearcache_test

import (
	"context"
	"crypto/tls"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

// What outside code compiles against: this file breaks when a name or a shape of the contract changes.
var (
	_ func(context.Context, nearcache.NodeConfig) (*nearcache.Node, error)                      = nearcache.Start
	_ func(*nearcache.Node, string, nearcache.Config[string]) (*nearcache.Cache[string], error) = nearcache.New[string]
	_ func(context.Context, nearcache.Ack) context.Context                                      = nearcache.WithAck
	_ func(context.Context, nearcache.Priority) context.Context                                 = nearcache.WithPriority
	_ func() nearcache.SetOption                                                                = nearcache.IfAbsent
	_ func() nearcache.SetOption                                                                = nearcache.IfPresent
	_ func(time.Duration) nearcache.SetOption                                                   = nearcache.WithTTL
	_ func(uint64) nearcache.SetOption                                                          = nearcache.WithVersion
	_ func(...string) peers.Discovery                                                           = peers.Static
	_ func(string, time.Duration) peers.Discovery                                               = peers.DNS
	_ func(...peers.Member) *peers.List                                                         = peers.NewList
	_ peers.Discovery                                                                           = peers.Func(nil)
	_ peers.Discovery                                                                           = (*peers.List)(nil)

	_ = []error{
		nearcache.ErrNotFound, nearcache.ErrOverloaded, nearcache.ErrInvalidKey, nearcache.ErrClosed, nearcache.ErrValueTooLarge,
		nearcache.ErrLoadTimeout, nearcache.ErrHold, &nearcache.LoadError{}, &nearcache.PanicError{}, &nearcache.PartialError{},
		&nearcache.CircularLoadError{},
		&nearcache.OverloadError{}, &nearcache.ConfigError{}, &nearcache.BatchError{},
	}
	_ = []nearcache.Eviction{
		nearcache.EvictDefault, nearcache.EvictLRU, nearcache.EvictLFU, nearcache.EvictTinyLFU, nearcache.EvictRandom,
	}
	_ = []nearcache.Tier{nearcache.TierNear, nearcache.TierOwner, nearcache.TierOrigin}
	_ = []nearcache.Ack{nearcache.AckOwners, nearcache.AckAll}
	_ = []nearcache.Priority{nearcache.PriorityNormal, nearcache.PriorityLow, nearcache.PriorityHigh}
)

var _ interface {
	Ready(context.Context) error
	ReadyWarm(context.Context) error
	Close(context.Context) error
	ID() string
	Addr() string
	Members() []peers.Member
	Owner(keyspace, key string) peers.Member
	Stats() nearcache.Stats
	Handler() http.Handler
} = (*nearcache.Node)(nil)

var _ interface {
	Get(context.Context, string) (int, error)
	GetInfo(context.Context, string) (int, nearcache.Info, error)
	GetMany(context.Context, []string) (map[string]int, error)
	Set(context.Context, string, int, ...nearcache.SetOption) (bool, error)
	Peek(context.Context, string) (int, bool, error)
	Invalidate(context.Context, ...string) error
	Expire(context.Context, ...string) error
	InvalidateTag(context.Context, ...string) error
	InvalidateAll(context.Context) error
	Update(context.Context, []string, func(context.Context) error) error
	Refresh(context.Context, string) (int, error)
	Warm(context.Context, iter.Seq[string], int) error
	Stats() nearcache.KeyspaceStats
	Close(context.Context) error
} = (*nearcache.Cache[int])(nil)

var _ = nearcache.NodeConfig{
	ID: "", Cluster: "", Listen: "", Listener: net.Listener(nil), Advertise: "", Discovery: peers.Discovery(nil), Zone: "", Weight: 0,
	Replicas: 0, MaxBytes: int64(0), NearBytes: int64(0), Bound: time.Duration(0), PeerTimeout: time.Duration(0), TLS: (*tls.Config)(nil),
	Plaintext: false, ShowKeys: func(*http.Request) bool { return false }, Logger: (*slog.Logger)(nil),
}

var _ = nearcache.Config[int]{
	Load:     func(context.Context, string) (int, error) { return 0, nil },
	LoadMany: func(context.Context, []string) (map[string]int, error) { return nil, nil },
	Codec:    nearcache.Codec[int](nil), TTL: time.Duration(0), TTLOf: func(string, int) time.Duration { return 0 },
	VersionOf: func(int) uint64 { return 0 }, SizeOf: func(int) int { return 0 }, Errors: map[string]error{}, Jitter: float64(0),
	NearTTL: time.Duration(0), NotFoundTTL: time.Duration(0), RefreshAhead: time.Duration(0), StaleOnError: time.Duration(0),
	MaxBytes: int64(0), NearBytes: int64(0), MaxValueBytes: int(0), Eviction: nearcache.EvictDefault, LoadTimeout: time.Duration(0),
	MaxLoads: int(0), LoadQueueTimeout: time.Duration(0), OriginLag: time.Duration(0), TagsOf: func(string, int) []string { return nil },
	Ack: nearcache.AckOwners, Hot: nearcache.HotConfig{PerSecond: 0, Pin: []string{}, Spread: 0},
}

var _ = nearcache.KeyspaceStats{
	Gets: uint64(0), NearHits: uint64(0), OwnerHits: uint64(0), OriginGets: uint64(0), Loads: uint64(0), LoadErrors: uint64(0),
	NotFound: uint64(0), Failed: uint64(0), Shared: uint64(0), Stale: uint64(0), Shed: uint64(0), Rejected: uint64(0), PeerErrors: uint64(0),
	Invalidations: uint64(0), Evictions: uint64(0), Expirations: uint64(0), HotKeys: int64(0), NegativeEntries: int64(0),
	HeldExpired: int64(0), NearEntries: int64(0), NearBytes: int64(0), ShardEntries: int64(0), ShardBytes: int64(0),
}

var _ = nearcache.Stats{
	Node: "", Doubt: false, RingView: uint64(0), ViewMismatches: uint64(0), DiscoveryAge: time.Duration(0),
	Members: []nearcache.MemberStats{{
		Member: peers.Member{ID: "", Addr: "", Zone: "", Weight: 0}, Connected: false, Breaker: "", LastContact: time.Duration(0),
		Requests: uint64(0), Errors: uint64(0), Share: float64(0),
	}},
	Keyspaces: map[string]nearcache.KeyspaceStats{},
}

var _ = nearcache.Info{Tier: nearcache.TierNear, Age: time.Duration(0), Stale: false, Version: uint64(0), Member: ""}
