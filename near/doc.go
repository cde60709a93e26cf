// Package near is L1: the decoded values that this process keeps for itself, in front of the owners of the keys.
//
// A value from this process' own shard is served until its deadline. A copy from another member needs more
// (docs/protocol.md, R4): the stream of invalidations from that member must not have had a hole since the copy was
// taken (the generation of its Source is unchanged), and the member must have answered a renewal lately (LeaseUntil),
// unless the copy is so young that it is within the bound anyway (Item.Free). Bumping a generation kills all copies
// from one member at once, without a look at them. So does the invalidation of a tag with all copies that have it (R15).
//
// A hit takes no lock and does not allocate, and is counted for the key (store.Config.Hits). The package is passive: no goroutine, no clock, no I/O; times are
// nanoseconds on the node's own monotonic clock.
package near
