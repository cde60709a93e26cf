package invalidation

import "time"

// Cause says why all near copies from a peer are dead.
type Cause uint8

// The causes of a kill.
const (
	CauseNone    Cause = iota
	CauseFirst         // the first number heard of this incarnation: what was fetched before it may have missed something
	CauseRestart       // the peer has a new incarnation
	CauseHole          // an event was missed
	CauseReset         // the peer says that events were missed
)

// String returns the cause's name.
func (c Cause) String() string {
	switch c {
	case CauseNone:
		return "none"
	case CauseFirst:
		return "first"
	case CauseRestart:
		return "restart"
	case CauseHole:
		return "hole"
	case CauseReset:
		return "reset"
	}
	return "unknown"
}

// State is what the path of a Get needs of a peer.
type State struct {
	Incarnation uint64 // 0: none heard of yet
	Gen         uint64 // copies and fetches of another generation are dead
	LeaseUntil  int64  // before it the peer is known to have told everything
}

// Action is what a message means for what is held of the peer.
//
// Order: whoever publishes a State writes Gen before LeaseUntil, and a reader reads LeaseUntil before Gen. The other way round a reader could
// take the generation from before a kill and the lease from after it, and serve a copy that missed an event long ago.
type Action struct {
	Ignore bool  // from another incarnation: its numbers mean nothing here, apply none of it
	Kill   Cause // if not CauseNone all copies and fetches of the old generation are dead
	State  State // to publish
}

// Follower is what a member knows of a peer's log (R2 to R5): a pure function of what it heard. A broken stream is no event: the lease ends by
// itself, and the next number heard shows whether anything was missed.
//
// Invariant: every event up to last of this incarnation was handed to the caller, or the generation was bumped after it was missed.
//
// The zero Follower has heard nothing. It is not safe for concurrent use: the caller serialises, and applies an Action before it handles
// the next message.
type Follower struct {
	state State
	last  uint64 // number of the newest event accounted for
	known bool   // last is valid: a number of this incarnation was heard
}

// State returns what is known now.
func (f *Follower) State() State { return f.state }

// Contact handles the handshake of a new stream, which takes the place of the one before it: from now on messages of this incarnation
// count, and no others. The peer's first incarnation needs no kill of its own: its first number brings one.
//
// Why not the higher incarnation: it is a start time, and a peer that restarts after its clock was set back has a lower one.
func (f *Follower) Contact(incarnation uint64) Action {
	before := f.state.Incarnation
	if incarnation == before {
		return f.action(CauseNone)
	}
	f.state.Incarnation = incarnation
	f.last, f.known = 0, false
	if before == 0 {
		return f.action(CauseNone)
	}
	return f.bump(CauseRestart)
}

// Inv handles the event with number seq. Unless the action says Ignore, the caller deletes its copy of the key if that is older than
// seq, and marks its fetch (Fetch.Seen), also for events that come twice, late, or behind a hole.
func (f *Follower) Inv(incarnation, seq uint64) Action {
	switch {
	case incarnation != f.state.Incarnation:
		return f.ignore()
	case !f.known:
		return f.jump(seq, CauseFirst)
	case seq == f.last+1:
		f.last = seq
	case seq > f.last:
		return f.jump(seq, CauseHole)
	}
	return f.action(CauseNone)
}

// Reset handles the peer's word that it has dropped events for this member and goes on after seq.
func (f *Follower) Reset(incarnation, seq uint64) Action {
	switch {
	case incarnation != f.state.Incarnation:
		return f.ignore()
	case !f.known:
		return f.jump(seq, CauseFirst)
	}
	return f.jump(max(seq, f.last), CauseReset)
}

// Renewed handles the answer to a renewal that was sent at sent: seq is the number of the last event that the peer sent before it, and
// lease the length it grants (the caller has cut it to its own). The lease counts from sent, never from the receipt (R5): an answer
// that was long under way says nothing about what the peer did meanwhile.
func (f *Follower) Renewed(incarnation, seq uint64, sent int64, lease time.Duration) Action {
	a := f.action(CauseNone)
	switch {
	case incarnation != f.state.Incarnation:
		return f.ignore()
	case !f.known:
		a = f.jump(seq, CauseFirst)
	case seq > f.last:
		a = f.jump(seq, CauseHole)
	}
	f.state.LeaseUntil = max(f.state.LeaseUntil, sent+int64(max(lease, 0)))
	a.State = f.state
	return a
}

func (f *Follower) ignore() Action { return Action{Ignore: true, State: f.state} }

// jump continues after seq without having heard everything before it.
func (f *Follower) jump(seq uint64, c Cause) Action {
	f.last, f.known = seq, true
	return f.bump(c)
}

func (f *Follower) bump(c Cause) Action {
	f.state.Gen++
	return f.action(c)
}

func (f *Follower) action(c Cause) Action { return Action{Kill: c, State: f.state} }
