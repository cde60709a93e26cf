package sim

// Rules says which rules of docs/protocol.md are in force. A switch that is off is a call that the shell does not make, or a wrapper around
// the real code that undoes what the rule is for.
type Rules struct {
	Tokens      bool // R1, R2: a late fill is refused
	Split       bool // R1: nobody joins a flight from before an invalidation
	JoinAge     bool // R1b: without a live near lease only a young flight is joined
	Revoke      bool // R1b: the holder of a revoked lease is told
	Install     bool // R3: placeholder, generation and number decide about a near copy
	Foreign     bool // R3: an event of another member than the one asked makes an answer no near copy, too
	Borrowed    bool // R3: a near copy that did not come from the owner lives a Bound
	NearLease   bool // R4, R5: a near copy needs a live lease
	SentLease   bool // R5: the lease counts from the sending of the renewal
	Unlisted    bool // R8b: who is not listed keeps nothing of members that go by another ring even without it
	Holes       bool // R5: a hole kills what came from the owner
	Incarnation bool // a new incarnation kills what came from the old one
	Forward     bool // R8: who is not the owner passes an invalidation on
	StandIns    bool // R8: stand-ins of a silent owner are told
	StandInCap  bool // a stand-in's copies live a Bound
	StandInJoin bool // a stand-in's waiters, and who joins a flight that is on its way past the owner, do not get an old load
	Owed        bool // R9: what was not confirmed is told again
	Lag         bool // R11: what is loaded within the lag of an invalidation lives until that is over
	Interest    bool // R14: grants are on record
	OwnView     bool // R16
	TagFetch    bool // R15: what was asked for before an invalidation of its tag becomes no near copy
	TagFlights  bool // R15: nobody joins a flight from before an invalidation of a tag
	OwnTags     bool // R16: for a tag
	AckTwice    bool // R12: with AckAll everybody is told a second time, to drop what was fetched meanwhile
	Waited      bool // R16: the age in an answer that was waited for counts from when it was given, not from when it came
	Holds       bool // R13: what is held is neither kept nor leased, and nobody is asked for it
	Turns       bool // R13: a load of a held key is shared with nobody who comes later
	Linger      bool // R13: a hold that a member was not told of lasts for C after the transaction
	OwnStale    bool // R16: for stale copies
	Spares      bool // R14: interest in what may be kept as a stale copy is on record for as long
	Move        bool // a change of the ring drops what changed its owner

	MoveGrants bool // a change of the ring voids what was granted by the former one
	MoveNear   bool // a change of the ring drops near copies
	Doubt      bool // R7: what is loaded in doubt lives for C at most
	Fence      bool // R7: who is cut off from the majority is in doubt, and what it holds dies
	Half       bool // R7: the majority is taken of no less than half of any ring of the last W
	Ended      bool // R7: what a doubt has ended a later one gives no more time
	Echo       bool // R7: who is told that it is not in a peer's ring is in doubt
	Gained     bool // R7: for a key whose owner was another one by a ring of the last W
	CapLeases  bool // R7: a load that begins in doubt is one that ends in doubt
	Void       bool // R7: what was granted before is void
	Targets    bool // R8: owners by the rings of the last W are told too
	Unequal    bool // R8b: while a member's view differs everybody is told
	SetTargets bool // R8: for a Set, the other members that an invalidation is for are told
	Relay      bool // R8: who does not confirm is told through others
	Silent     bool // R9: who has been out of contact for long need not confirm
	Replicas   bool // R8: replicas are told, and have to confirm
	CopyAge    bool // R10: the age of a copy counts from before it was read
	CopyDoubt  bool // R10: who is in doubt, or may not be told, takes no copies
	PeekAge    bool // R10b: the age of what a peek brings counts from when that was sent
	Vouch      bool // R10b: what the former owner does not vouch for lives a Bound
	Missed     bool // R10b: what is older than an invalidation that this member has heard of is not inherited
	Heirs      bool // R10b: the heirs of who leaves are told
	Mixed      bool // R10: who invalidates reckons with the largest number of Replicas that it has heard
	Apart      bool // R10: copies end when members differ in their rings for long

	// Models of rules that are to be built. The seam is where each is asked for.

	OwnSet bool // R16: for a Set
}

// Complete returns the rules that are built and those that are models, all in force.
func Complete() Rules {
	r := Built()
	r.OwnSet = true
	return r
}

// Built returns the rules that are built, all in force.
func Built() Rules {
	return Rules{
		Tokens: true, Split: true, JoinAge: true, Revoke: true, Install: true, Foreign: true, Borrowed: true, NearLease: true, SentLease: true, Unlisted: true, Holes: true,
		Incarnation: true, Forward: true, StandIns: true, StandInCap: true, StandInJoin: true, Owed: true, Lag: true, Interest: true,
		TagFetch: true, TagFlights: true, OwnTags: true, AckTwice: true,
		OwnView: true, Holds: true, Turns: true, Linger: true, OwnStale: true, Spares: true, Waited: true, Move: true, MoveNear: true, MoveGrants: true,
		Doubt: true, Fence: true, Half: true, Ended: true, Echo: true, Gained: true, CapLeases: true, Void: true,
		Targets: true, Unequal: true, SetTargets: true, Replicas: true, Relay: true, Silent: true, PeekAge: true, Vouch: true, Missed: true, Heirs: true, CopyAge: true, Apart: true, Mixed: true, CopyDoubt: true,
	}
}
