package nearcache

import (
	"context"
	"time"

	"github.com/nearcache/nearcache/internal/clock"
	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/near"
	"github.com/nearcache/nearcache/singleflight"
)

// Cache is a keyspace on this node: a named set of keys with one loader and one policy. It is safe for concurrent use.
//
// The path of a Get, from top to bottom (ARCHITECTURE.md has the same numbers):
//
//  1. near copy            Get
//  2. flight               get
//  3. owner                lead, resume (get.go)
//  4. lease, load, fill    load (fill.go)
//  5. stand-ins            resume (get.go)
//
// Values are shared between all callers: treat them as immutable. A []byte that comes out is shared and read-only, with its
// capacity cut to its length, so that an append copies; one that goes in belongs to the caller.
type Cache[V any] struct {
	*keyspace
	cfg     Config[V]
	clock   *clock.Clock
	near    *near.Cache[V]
	flights *flights[V]
	// refreshes are the flights of Refresh: they must not be joined by a Get that began before, nor join one.
	refreshes *flights[V]
	gathering gathering[V]
	private   *Node // the node of New(nil, ...): closed with the cache
}

// result is what a flight brings back.
type result[V any] struct {
	value V
	info  Info
}

type (
	flight[V any]  = singleflight.Flight[result[V], placeholder]
	flights[V any] = singleflight.Group[result[V], placeholder]
)

// Info says where a value came from.
type Info struct {
	Tier    Tier          // where it was found
	Age     time.Duration // since its load began
	Stale   bool          // served past its lifetime (refresh under way, or the load failed)
	Version uint64        // from Config.VersionOf
	Member  string        // ID of the member that answered
}

// Tier is a level of the cache.
type Tier int

// The tiers.
const (
	TierNear   Tier = iota + 1 // a near copy in this process
	TierOwner                  // a shard, here or remote
	TierOrigin                 // loaded for this call or a shared one
)

// New opens the keyspace on the node and returns its cache. The same keyspace may have another V or policy on another member,
// as in a rolling deploy: what cannot be decoded is a miss, counted, and loaded. A nil node makes a complete cache in this process
// alone, with the default budgets.
//
// Errors: *ConfigError for an invalid configuration, an empty name, or one that is open on the node already; ErrClosed.
func New[V any](n *Node, keyspace string, cfg Config[V]) (*Cache[V], error) {
	cfg, err := cfg.effective()
	if err != nil {
		return nil, err
	}
	var private *Node
	if n == nil {
		own := NodeConfig{MaxBytes: max(defaultMaxBytes, cfg.MaxBytes), NearBytes: max(defaultNearBytes, cfg.NearBytes)}
		if n, err = Start(context.Background(), own); err != nil {
			return nil, err
		}
		private = n
	}
	c := &Cache[V]{
		cfg:       cfg,
		clock:     n.clock,
		flights:   singleflight.New[result[V], placeholder](),
		refreshes: singleflight.New[result[V], placeholder](),
		private:   private,
	}
	c.near = near.New[V](store.Config{MaxBytes: max(n.cfg.NearBytes, 0), Hits: c.hits})
	if err := n.open(keyspace, cfg.policy(), c); err != nil {
		if private != nil {
			_ = private.Close(context.Background()) // the first error is the one to tell
		}
		return nil, err
	}
	return c, nil
}

// Get returns the value of key, from wherever it is cheapest: this process, the key's owner, or the loader. It waits for at
// most the context's life, LoadTimeout + LoadQueueTimeout, and a PeerTimeout for each member that does not answer.
//
// Errors: ErrNotFound; *LoadError, *PanicError, ErrLoadTimeout, *OverloadError of the load, here or elsewhere; the context's
// own error; ErrInvalidKey; ErrClosed; *CircularLoadError if a loader calls. A sick peer is not an error.
func (c *Cache[V]) Get(ctx context.Context, key string) (V, error) {
	// Step 1: a fresh near copy. No lock, no allocation.
	if it := c.near.Get(key, c.clock.Now()); it != nil {
		if !it.Absent() {
			c.count.nearHits.Add(1)
			return it.Value, nil
		}
		c.count.nearAbsent.Add(1)
		return it.Value, ErrNotFound
	}
	res, err := c.get(ctx, key)
	return res.value, err
}

// GetInfo is Get that also tells where the value came from.
func (c *Cache[V]) GetInfo(ctx context.Context, key string) (V, Info, error) {
	now := c.clock.Now()
	if it := c.near.Get(key, now); it != nil {
		info := Info{Tier: TierNear, Age: age(it.LoadedAt(), now), Version: it.Version(), Member: c.node.ID()}
		if !it.Absent() {
			c.count.nearHits.Add(1)
			return it.Value, info, nil
		}
		c.count.nearAbsent.Add(1)
		return it.Value, info, ErrNotFound
	}
	res, err := c.get(ctx, key)
	return res.value, res.info, err
}
