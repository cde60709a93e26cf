// Package invalidation holds the decisions of the coherence protocol (docs/protocol.md, rules R1b to R9, R14 and R16): how a
// member tells the others that a key changed, and how a member knows whether what it holds of another one may still be served.
//
// An owner has one Log of the keys it dropped. Every member that may hold near copies of it reads the log over one ordered stream: a
// Subscriber at the owner, a Follower at the reader. An Interest tells which keys anybody can hold at all, so that the others
// cost neither a number nor a message. A Fetch is the placeholder of a key that is being fetched.
//
// A Doubt tells an owner whether it is one (R7). Contacts find out whether a member that does not answer can hold anything yet (R9b), Owed is
// what such a member has to be told (R9), and an OwnView what this process invalidated itself (R16).
//
// Everything here is passive: no goroutine, no clock, no I/O. Times are nanoseconds on the member's own monotonic clock; clocks of
// two members are never compared. The streams that carry Batches, the timers that renew and the stores that drop
// copies belong to the caller.
//
// # The argument
//
// A near copy taken from owner P was read at P when P's log stood at number s. It is stale once P appends an event of its key with a
// number above s, and from then on must not be served for longer than H (a lease's length) after the invalidation was acknowledged.
//
//  1. P numbers an event inside the critical section that drops the entry, and a value is sent with a number that was read
//     before the value (Log.Seq). So every value that an event concerns carries a lower number than the event.
//  2. The follower applies events by number. Whatever did not arrive shows as a hole, at the latest in the next renewal's answer, because
//     the answer carries the number of the last event sent before it. A hole kills every copy from P at once, by its generation.
//  3. P answers a renewal only after everything it appended before it got the renewal. So a lease that lasts beyond (acknowledgement + H)
//     was asked for after the acknowledgement, and its answer came behind the event, or showed that the event was missed.
//
// Package invalidation does not yet know acknowledgements by near copies (R12). Tags (R15) are events to it; what they end is the matter of
// internal/tag.
package invalidation
