// Package tag is what a member knows of the tags of values (docs/protocol.md R15): which ones were invalidated last, and whether a
// value is older than that.
//
// An invalidation of a tag costs the same however many entries have it: it takes a number, its position, and notes it for the tag. A value
// carries a Mark: its tags, and the position that was reached before its load began. It is dead when one of its tags has a newer one. So
// nothing has to be found, and what was being loaded when the tag was invalidated is dead on arrival, although its tags are not known before
// the load is over.
//
// # Whose positions
//
// Positions are local: each Table has its own, and a position is compared with positions of the same Table only. A member has two in each
// keyspace. That of its shard moves when the member itself is told of an invalidation; the mark of an entry has the position at which the
// shard granted the lease, or accepted the Set. That of its near copies moves also when the log of another member says that this one
// was told; the mark of a near copy has the position before the request for it left. What comes later concerns the copy, and whether it came
// or was lost is what the rules for all events of a log tell (R3 to R5).
//
// Why not one numbering for the cluster, merged by maximum: two invalidations that begin at once on two members would have to be
// told apart and ordered, or the second one is taken for the first where it arrives later, and what was loaded between them lives on. With
// local positions each one that arrives counts. A member that one did not reach has not confirmed it, so that the caller gets no nil; if
// it was cut off from everybody, what it holds is over before others may count it as gone (R7); one that starts, or opens the keyspace,
// begins with an empty table and nothing that could be older.
//
// # The table is bounded
//
// A tag is its 64-bit hash, and a Table has 65,536 places of 8 bytes for all of them, made when the first tag is invalidated. Tags that share
// a place are invalidated together, so that the invalidation of another tag may end an entry, one in 65,536 for each tag of it, and cost
// a load; none is ever missed. Why not a map of the tags with a floor for those that it has forgotten: it costs ten times the memory and a
// lock, and when it overflows it ends everything that is older than the floor at once.
//
// The package is passive: no goroutine, no clock, no I/O.
package tag
