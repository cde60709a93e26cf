package shard

import "github.com/nearcache/nearcache/internal/tag"

// Value is what is stored for a key: the bytes of a value, or the knowledge that the origin has none.
//
// Ownership: a Value handed to the Shard belongs to it, Bytes included; nobody writes to it afterwards. A Value that
// comes out is shared and read-only.
type Value struct {
	Bytes    []byte
	LoadedAt int64    // when its load began, at the latest: of a fill, when the lease was granted; all lifetimes count from here (R6)
	Vouched  int64    // when another owner said that it was told of no invalidation of it (R10b); 0: it was loaded for this one
	Version  uint64   // the origin's version; 0: none, it is compared with nothing
	Soft     int64    // fresh until then
	Hard     int64    // kept until then as a stale copy; at least Soft
	Retry    int64    // a load that was to replace the stale copy failed: the next one begins then, or later
	Mark     tag.Mark // its tags; the Shard itself sees to the position (R15)
	Absent   bool     // a negative entry: the key does not exist at the origin
	Inherits bool     // Hard is that of the value that it replaced, since it would have none of its own beyond Soft
	Expired  bool     // by Expire: the stale copy need not wait for the load (see Result.Lapsed)
}

// beganBy counts the age from at where that is earlier. A fill says how old the value was when it was sent, and may have been under way for
// seconds; what is certain is that its load did not begin before the lease was granted.
func (v *Value) beganBy(at int64) {
	if d := v.LoadedAt - at; d > 0 {
		v.LoadedAt -= d
		v.Soft -= d
		v.Hard -= d
	}
}

// markElsewhere is the mark of a value that another member held until now. Positions are times, and this member's: what was invalidated here
// since the load began ends it, although the other one may not know that yet.
func (v *Value) markElsewhere() tag.Mark { return v.Mark.At(max(v.LoadedAt-1, 0)) }

// Lasts tells whether v may be a stale copy once its lifetime is over, here and elsewhere.
func (v *Value) Lasts() bool { return v.Hard > v.Soft && !v.Inherits }

// endBy ends the lifetime at at, if not earlier.
func (v *Value) endBy(at int64) { v.Soft, v.Hard = min(v.Soft, at), min(v.Hard, at) }

// older tells whether version is higher than v's, which has one.
func (v *Value) older(version uint64) bool { return v.Version > 0 && v.Version < version }

// expire makes v, which would be fresh until end, a stale copy, and reports whether it is of any use as one.
func (v *Value) expire(end, now int64) bool {
	if !v.Expired && now < end {
		v.Soft, v.Hard, v.Expired = now, end, true
	}
	return v.Expired && now < v.Hard && !v.Absent
}

// since returns from when on this member had to be told of an invalidation of v.
func (v *Value) since() int64 { return max(v.LoadedAt, v.Vouched) }

// cost is what the value counts in the store beside its key and the store's overhead. What becomes of it later (Retry, Expired, Inherits) does not count:
// stale copies would make each other go when the origin fails.
func (v *Value) cost() int64 {
	bytes := int64(len(v.Bytes)) + v.Mark.Bytes()
	if v.Vouched != 0 || v.Version != 0 || v.Mark != (tag.Mark{}) || v.Absent {
		bytes += restBytes
	}
	return bytes
}

// Token is the right to fill one key, unique over the restarts of the member that gave it. The zero Token is none.
type Token struct {
	Incarnation uint64
	Number      uint64
}

// Kind says what an asker gets.
type Kind uint8

// The kinds of results.
const (
	Hit      Kind = iota + 1 // Value is there, maybe as an absence
	Lease                    // Token is yours: load, then Fill, Pass or Release; Value, if any, is a stale copy that may be served meanwhile
	Stale                    // Value is a stale copy that may be served: somebody loads its successor, has failed to, or does not get to it
	Waiting                  // from Acquire only: queued; the result comes in a Wake
	Failed                   // the load behind the lease failed; Failure is what its holder said
	TimedOut                 // Ask.Until has passed
	Moved                    // the ring changed since Ask.View: find the owner again
	Busy                     // from Acquire only: too many leases or waiters
	Held                     // the key is held (Config.Held): load it, and keep nothing
)

// Result answers an asker.
type Result struct {
	Kind     Kind
	Value    *Value // Hit: of a fill it may be past its lifetime already (see Shard.Fresh). Lease, Stale: a stale copy
	Uncached bool   // Hit: the value is stored nowhere and must not be kept
	Lapsed   bool   // Lease, Stale: Value is no more than past its lifetime; with a lease it is for when the load fails or takes longer than Config.Patience
	Seq      uint64 // Hit, Lease: the log's last number when the value was read, or the lease granted
	Token    Token  // Lease
	Failure  any    // Failed
}

// Wake is the result of somebody who waited. Each Ask that was answered Waiting gets exactly one, unless Leave or Forget
// took it out of the queue.
type Wake struct {
	Waiter any
	Result Result
}

// Revoked is a lease that ended against its holder's will: a fill with its token is refused, and callers who come after
// the cause must not share the holder's load (R1b).
type Revoked struct {
	Key    string
	Token  Token
	Holder string
}

// Outcome says what became of a value.
type Outcome uint8

// The outcomes.
const (
	Stored   Outcome = iota + 1 // resident now
	Passed                      // current, but not kept: uncached, expired already, or too large for the store
	Rejected                    // the lease is not live, a higher version is known, or a condition of Set does not hold
	Outdated                    // Set: the ring changed since Cond.View; nothing was done
)

// Effect is what an operation did and what its caller has to do now, without any lock held.
type Effect struct {
	Outcome Outcome   // Fill, Pass, Set
	Until   int64     // Fill, Set: what was stored is fresh until then
	Lasts   bool      // Fill, Set: Value.Lasts of what was stored
	Seq     uint64    // Fill, Pass, Set: the log's last number when the value was stored or passed
	Dropped int       // Invalidate, Expire, Clear, Move: entries removed, or made stale
	Revoked []Revoked // tell these holders
	Wakes   []Wake    // answer these
}
