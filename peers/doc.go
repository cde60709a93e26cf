// Package peers says who is in a cluster. A Discovery reports the members; the node in the root package follows it.
//
//	peers.Static("10.0.0.7:7946", "10.0.0.8:7946")          // a fixed list
//	peers.DNS("catalog-cache.prod.svc:7946", 0)             // addresses behind a name, for example a headless service
//	peers.DNS("_cache._tcp.catalog.prod.example.com", 0)    // SRV records
//	peers.NewList()                                         // what the program sets
//	peers.Func(func(ctx context.Context, update func([]peers.Member)) error { ... })
//
// What a Discovery reports is a complete list each time. The node never waits for it on the path of a read: while discovery
// fails, the last list stays. It says who belongs to the cluster, not who is healthy: that each node finds out by itself, and
// a member that hangs for a moment should stay on the list.
//
// The node follows with care: changes that come together are one change, at most once a second, and a list that has lost more than half
// of the members at once is not believed for 10 s, unless they had said that they stop. The first list counts at once, and so does
// every Set of a List that is the node's Discovery itself.
//
// # Names
//
// Keys are placed by the members' IDs, so all members have to call each other the same. A discovery that knows IDs reports
// them; otherwise the address is the ID, in the spelling of CanonicalAddr. An ID that stays the same while the address
// changes keeps a restarted member's keys in place.
//
// The package starts no goroutine and keeps no state of its own; everything in it is safe for concurrent use.
package peers
