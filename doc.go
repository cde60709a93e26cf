// Package nearcache is a cache that an application links: it wraps the function that loads a value, and every process of
// the application becomes both a client and an owner of one part of the key space. It exists to protect a database that
// cannot take the read load.
//
//	node, err := nearcache.Start(ctx, nearcache.NodeConfig{
//		Listen:    "127.0.0.1:7946",
//		Discovery: peers.Static("127.0.0.1:7946", "127.0.0.1:7947"),
//	})
//	...
//	defer node.Close(ctx)
//	products, err := nearcache.New(node, "product", nearcache.Config[Product]{Load: db.Product, TTL: 5 * time.Minute})
//	...
//	p, err := products.Get(ctx, "8812")
//	...
//	err = products.Invalidate(ctx, "8812") // after the database commit
//
// New(nil, ...) is a complete cache in one process.
//
// # Tiers
//
// A near copy in the process lives for NearTTL (one second) and absorbs hot keys. The key's owner, by a consistent-hash ring
// over the members, keeps the encoded value for TTL (five minutes) and answers over gRPC. A missing key is loaded once in
// the whole cluster: the owner gives one caller a lease, and the others wait for its value.
//
// # Staleness
//
// When Invalidate returns nil no member serves a value loaded before the call for longer than NodeConfig.Bound, and the calling
// process does not serve it at all. InvalidateTag promises the same for all values that have a tag (Config.TagsOf). A load that was
// under way when the key, or a tag of its value, was invalidated is not stored. When an owner did not confirm, and may still hold it,
// the error is a *PartialError that says how long an old copy may live. docs/protocol.md has the rules.
//
// Changes that others make at the origin come in through a stream of them: Node.Follow, package feed.
//
// # Failures
//
// A sick peer costs a bounded delay and a load, never an error. Loads are bounded (MaxLoads), queue for a bounded time
// (LoadQueueTimeout), and end (LoadTimeout). The loader's errors are the same for all callers on all members:
// ErrNotFound, *LoadError, *PanicError, ErrLoadTimeout, *OverloadError; a caller's own cancellation is its own.
//
// # Values
//
// A value is shared by all callers of its key: treat it as immutable. Keys are 1 to 65,535 bytes of any content; keys with the same
// {tag} live on the same member.
//
// All types are safe for concurrent use. There is no package-level state: several nodes can live in one process.
package nearcache
