package transport

import "time"

// Op is what a request asks a peer to do.
type Op uint8

// The operations of a lane. Their numbers are on the wire and never change.
const (
	OpGet        Op = iota + 1 // read a key at its owner: a value, an absence, a lease, or a place in the queue
	OpFill                     // store what a lease holder loaded
	OpRelease                  // give a lease back without a value
	OpPeek                     // read a resident entry or nothing: never loads, waits or forwards
	OpSet                      // store a value without a lease
	OpInvalidate               // drop keys, or a whole keyspace
	OpPing                     // answered at once with StatusOK
	OpHold                     // say that the load of a lease goes on, after the lane broke that the lease may have come on
	OpRelay                    // pass an Invalidate on to the member that Key names, and answer what it answers
	OpHandOver                 // without a token: ask for one; with it: the owner gives away a value
	OpUpdate                   // drop keys, and keep nothing of them for LeaseLife (R13); 0: that is over
	OpStats                    // tell what the receiver has counted, or with Key what it knows of one key, as JSON
)

// endsLoad tells that others may wait for what the request says.
func (o Op) endsLoad() bool { return o == OpFill || o == OpRelease }

// Flags of a Request.
const (
	FlagNear      uint32 = 1 << iota // the asker wants to keep a near copy
	FlagStandIn                      // the asker could not reach the owner and takes the receiver as its stand-in
	FlagFresh                        // a resident entry does not do: grant a lease (Refresh)
	FlagUncached                     // Fill: pass the value to the waiters, store it nowhere
	FlagAbsent                       // Fill: the key does not exist at the origin
	FlagIfAbsent                     // Set: only where there is no entry
	FlagIfPresent                    // Set: only where there is one
	FlagAll                          // Invalidate: the whole keyspace; with Tags only what has one of them, if the receiver knows tags
	FlagSoft                         // Invalidate: keep the value as a stale copy
	FlagForwarded                    // Invalidate: took its one hop already
	FlagRelayed                      // Invalidate: comes from another member than who sends it
	FlagTagged                       // Fill, Set: Tags are all the tags of the value; else they are not known
	FlagGained                       // Peek: the asker owns the key, and the receiver did before
	FlagCopies                       // Invalidate: near copies and flights only, since no owner has the old value any more (R12); Peek: near copies as well, no value
	FlagAhead                        // Get: a fresh entry does only where its successor is being loaded: grant a lease
	FlagReplica                      // HandOver: the receiver is a replica of the key: it takes a copy (R10). Tags are hashes, of 8 bytes each
	FlagSpread                       // Get: what the receiver has as a replica of the key does (R10); if it has nothing it answers with a miss
)

// Token is the right to fill one key: unique over restarts of the owner that gave it.
// The zero Token is none.
type Token struct {
	Incarnation uint64
	Number      uint64
}

// Request is one operation for a peer.
//
// Ownership: on the client every field belongs to the caller and is only read until the call is done; Value is never
// written again, because gRPC may hold on to it. On the server every string, those in lists and in Failure too, aliases the
// receive buffer and is valid until Handler.Serve returns: whoever keeps one clones it. Value is a slice of its own
// there and belongs to the handler.
type Request struct {
	Op        Op
	Flags     uint32
	Keyspace  string
	Key       string
	Budget    time.Duration // how long the asker is willing to wait for the final answer; at least 1 µs on the wire
	LeaseLife time.Duration // Get: how long a granted lease may live; Update: how long the hold lasts
	Near      time.Duration // Get, Fill: the near lifetime the asker would use; 0: no near copy
	Version   uint64        // Get: version held; Fill, Set: version of the value; Invalidate: versions below this are dead
	Hot       uint32        // Get: the key is hot for the asker, which reads it so often a second at least; 0: it is not
	Token     Token         // Fill, Release; Update: of the hold
	Age       time.Duration // Fill, Set: since the load began
	TTL       time.Duration // Fill, Set: lifetime counted from the load's start
	StaleFor  time.Duration // Fill, Set: how long past TTL the value may be served marked stale; Get: how long past Near
	Epoch     uint64        // the keyspace's epoch at the asker
	TagPos    uint64        // not used: the owner keeps it with the lease
	Tags      []string      // Fill, Set, Invalidate
	Keys      []string      // Invalidate, Relay, Update: the keys
	Failure   Failure       // Release: why there is no value
	Value     []byte        // Fill, Set
	// HasValue tells an empty value from none: a proto3 bytes field of length zero decodes to nil.
	HasValue bool
}

// Status is the kind of an answer. Its numbers are on the wire and never change.
type Status uint8

// The kinds of answers.
const (
	StatusOK              Status = iota + 1 // Ping, Release, Invalidate, Relay, Update: done
	StatusHit                               // Value is fresh
	StatusStale                             // Value is past its lifetime; somebody refreshes it
	StatusAbsent                            // known not to exist at the origin
	StatusLease                             // Token is yours: load and fill, or release
	StatusWaiting                           // queued behind the lease's holder; the real answer follows (the transport keeps this to itself)
	StatusLarge                             // the value has Size bytes: ask again with Peer.Bulk (the transport keeps this to itself)
	StatusNotOwner                          // not by the receiver's ring
	StatusNotModified                       // the version held is current
	StatusBusy                              // shed by the receiver
	StatusFailed                            // Failure says why
	StatusUnknownKeyspace                   // the receiver has no such keyspace
	StatusMiss                              // Peek, Get with FlagSpread: nothing resident
	StatusAccepted                          // Fill: stored
	StatusRejected                          // Fill: the lease is no longer live, or a higher version is there
	StatusStored                            // Set
	StatusNotStored                         // Set: a condition or a higher version forbade it
	StatusHeld                              // Get: the key is held (R13): whoever wants its value loads it, and keeps nothing
)

// FailureKind says why there is no value. Its numbers are on the wire and never change.
type FailureKind uint8

// The kinds of failures.
const (
	FailureNone     FailureKind = iota
	FailureLoad                 // the loader returned an error
	FailurePanic                // the loader panicked or left its goroutine
	FailureTimeout              // LoadTimeout ended the load, or the wait for it
	FailureShed                 // no loader slot in time
	FailureCanceled             // nobody waited for the load any more
	FailureTooLarge             // larger than the wire carries: whoever wants it loads it
	FailureClosed               // the holder's node or keyspace closed
	FailurePartial              // Invalidate: some targets did not confirm
)

// Failure is an error that crossed the wire.
type Failure struct {
	Kind   FailureKind
	Code   string // Config.Errors' code of the loader's error, if it has one; FailureShed: when to try again, as a Go duration
	Text   string // the error's text, cut to MaxFailureText bytes
	Member string // the member the failure happened on
}

// Reply is the answer to one Request.
//
// Ownership: on the server Value belongs to the handler and is never written after Serve or Answer got it. On the client
// Value is a slice of its own that belongs to the caller.
type Reply struct {
	Status   Status
	Flags    uint32
	Seq      uint64        // the owner's log number when it read the value
	Age      time.Duration // since the load of the value began
	TTL      time.Duration // lifetime left; 0 with a value: do not keep it
	Near     time.Duration // near lifetime granted; 0: no near copy
	Version  uint64
	Rate     uint32 // uses of the key a second that the owner knows of; 0: none, or it does not tell
	Token    Token
	Life     time.Duration // Lease: how long it lives
	TagPos   uint64        // not used: the owner keeps it with the lease
	Epoch    uint64        // the keyspace's epoch at the receiver
	Failure  Failure
	Size     uint64        // Large
	Failed   []uint32      // Invalidate: indexes of Keys that were not confirmed
	Tags     []uint64      // Hit: hashes of the value's tags; the handler's are shared and read-only
	Waited   time.Duration // from the arrival of the request to this answer; 0: it was given at once, or by an earlier version
	Value    []byte
	HasValue bool

	// Incarnation is that of the peer that answered: Seq is a number of this incarnation's log. The client's side sets it from
	// the stream's hello; it is not part of the answer on the wire.
	Incarnation uint64
}

// Flags of a Reply.
const (
	ReplyUncached uint32 = 1 << iota // the asker must not keep the value
	ReplyLoaded                      // the asker waited for the load of the value
	ReplyTagged                      // Tags are all the tags of the value; else they are not known
	ReplyVouched                     // Peek: what the receiver is told about the value from now on, it passes on to the asker
	ReplyLasting                     // Hit, Accepted: a near copy may be kept as a stale one for StaleFor
	ReplyLapsed                      // Stale, Lease: the copy is no more than past its lifetime. It comes with a lease if it is small, for when the load fails or takes long
)

// Limits of the wire. What exceeds them is refused before it is used.
const (
	MaxKeyBytes      = 1<<16 - 1
	MaxKeyspaceBytes = 255
	MaxValueBytes    = 16 << 20 // also the bound of MaxValueBytes in a Config
	InlineValueBytes = 64 << 10 // larger ones travel alone on the bulk connection
	MaxBatchOps      = 256      // requests or replies in a frame
	MaxBatchKeys     = 1024     // Keys in an Invalidate; Invs, and Revokes, in a Down
	MaxSilent        = 64       // Silent members in a Down
	MaxTags          = 64       // Tags of a request or an Inv
	MaxTagBytes      = 255
	MaxReplicas      = 8   // of a key, its owner included; a hello that says more is taken to say this
	MaxNameBytes     = 255 // cluster, member, address, and the code of a failure
	MaxFailureText   = 1 << 10
	MaxDuration      = 10 * 365 * 24 * time.Hour // longer ones are cut to this
)

// Down is one message of the coherence stream, from the member whose log it is to one that may hold near copies.
// Its parts apply in this order: Reset, Invs, Revokes, Renewal.
type Down struct {
	Reset     bool   // forget everything from this member: the subscriber fell behind, or is new
	Seq       uint64 // with Reset: continue after this number; with Renewed: the number of the last Inv sent before it
	Invs      []Inv
	Revokes   []Revoke
	Renewed   bool
	Nonce     uint64        // of the renewal this answers
	NearLease time.Duration // H, as the sender grants it
	InView    bool          // the receiver is in the sender's ring
	View      uint64        // fingerprint of the sender's ring
	Silent    []Silence     // with Renewed: members that the sender does not hear
}

// Silence tells for how long at least a member has not been heard: no renewal of it was received.
type Silence struct {
	Member string
	Age    time.Duration
}

// Inv tells that a key, or with All its whole keyspace, changed at the origin. With All and Tags only what has one of them did: who
// knows no tags drops more.
type Inv struct {
	Seq      uint64
	Keyspace string
	Key      string
	All      bool
	Epoch    uint64
	Tags     []string
}

// Revoke tells a lease holder that its fill will be refused.
type Revoke struct {
	Keyspace string
	Key      string
	Token    Token
}
