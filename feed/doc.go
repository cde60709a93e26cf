// Package feed is the entrance for changes that others made: it connects a node to a stream of changes, a database's log or a broker, so
// that what was written past the cache is invalidated in it. nearcache.Node.Follow applies a Source:
//
//	source, err := outbox.New(outbox.Config{DB: db}) // or a Source of one's own
//	...
//	f, err := node.Follow(ctx, source, nearcache.FeedConfig{}) // before the caches are opened
//
// # Guarantees
//
// A change reaches the cache at least once, and in any order: applying it twice, or late, costs a load at most. What was applied is
// remembered as a Position, from which the stream is read again after a failure, a restart or an outage of any length, as long as the
// source keeps it. A source that cannot give all changes since a position says so (Batch.Gap). Then everything that may have changed is
// served as a stale copy, marked so, while it is loaded anew at a bounded rate.
//
// The stream is as late as its source makes it: the staleness bound of a cache begins when a change is applied.
//
// # A source of one's own
//
// A Source is two methods: Tail and Read. feedtest.Run tests whether they keep what is promised. Memory is one for tests and examples,
// package outbox one for SQL databases.
package feed
