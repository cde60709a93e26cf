package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxMemberStreams bounds the lanes and coherence streams that a member may have open here: a few, and those that a broken connection
// has left behind.
const maxMemberStreams = 64

// claims keeps which process speaks for which member. An ID belongs to the process that came first, known by its incarnation and
// address, until
//   - its last stream has ended, or
//   - another one comes from an address that this member's list has for the ID, and the first did not, or
//   - another one comes and the first has been silent for four renewals: its machine is gone, its connection not yet.
//
// Any other process that claims the ID is refused. Whoever lost it is refused with its next frame. Two processes that claim one ID and
// meet decide it between them: see Transport.meet.
type claims struct {
	// mu guards the fields below, and the sessions and bulks of claims. It is a leaf.
	mu   sync.Mutex
	held map[string]*claim // by member
}

// claim is one process' hold of an ID.
type claim struct {
	addr        string
	incarnation uint64
	sessions    map[*Session]struct{}
	bulks       int // of sessions

	// Of its lanes together: see Session.
	pending atomic.Int64 // answers that are owed
	late    atomic.Int64 // bytes of the values that are not sent yet
}

// enter lets s speak for its member. listed tells whether this member's list has a member at an address. It fails with the status to
// refuse the stream with.
func (cs *claims) enter(s *Session, listed func(member, addr string) bool, now, silence int64) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.held[s.Member]
	if c == nil || c.addr != s.Addr || c.incarnation != s.Incarnation {
		if c != nil && !c.yields(s, listed, now, silence) {
			return status.Error(codes.AlreadyExists, fmt.Sprintf(
				"nearcache: member %.64q is already here from %.80q: another process has the same ID", s.Member, c.addr))
		}
		c.replaceLocked()
		c = &claim{addr: s.Addr, incarnation: s.Incarnation, sessions: make(map[*Session]struct{})}
		if cs.held == nil {
			cs.held = make(map[string]*claim)
		}
		cs.held[s.Member] = c
	}
	switch {
	case s.Bulk && c.bulks >= 2*maxBulkStreams, !s.Bulk && len(c.sessions)-c.bulks >= maxMemberStreams:
		return status.Error(codes.ResourceExhausted, "nearcache: member has too many streams")
	case s.Bulk:
		c.bulks++
	}
	c.sessions[s] = struct{}{}
	s.claim = c
	return nil
}

// yields tells whether the claim ends for the sake of s, which is another process'.
func (c *claim) yields(s *Session, listed func(member, addr string) bool, now, silence int64) bool {
	if listed(s.Member, s.Addr) && !listed(s.Member, c.addr) {
		return true
	}
	for old := range c.sessions {
		if now-old.heard.Load() < silence {
			return false
		}
	}
	return true
}

// replaceLocked ends the claim.
func (c *claim) replaceLocked() {
	if c == nil {
		return
	}
	for s := range c.sessions {
		s.replaced.Store(true)
	}
}

// leave ends what enter began.
func (cs *claims) leave(s *Session) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := s.claim
	delete(c.sessions, s)
	if s.Bulk {
		c.bulks--
	}
	if len(c.sessions) == 0 && cs.held[s.Member] == c {
		delete(cs.held, s.Member)
	}
}

// streams returns how many sessions a member has.
func (cs *claims) streams(member string) int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.held[member]
	if c == nil {
		return 0
	}
	return len(c.sessions)
}

// silence is how long a member that lives is never silent: it sends renewals.
func (t *Transport) silence() int64 { return 4 * int64(t.cfg.RenewEvery) }

// listed tells whether this member's list has a member at an address. One that is known by its address only is there by whatever ID it
// has.
func (t *Transport) listed(member, addr string) bool {
	p := t.Peer(member)
	if p == nil {
		p = t.Peer(addr)
	}
	return p != nil && p.addr == addr
}

// meet refuses a process that has this member's ID, and decides which of the two goes on: the one that the list has at its address, or
// else the one that started first, each by its own clock. AlreadyExists tells the other one that it has to give way.
func (t *Transport) meet(h *hello) error {
	self := &t.cfg.Self
	if h.Addr == self.Addr && h.Incarnation == self.Incarnation {
		return status.Error(codes.FailedPrecondition, "nearcache: this member has dialled itself: discovery has another address of it")
	}
	first := self.Incarnation < h.Incarnation || self.Incarnation == h.Incarnation && self.Addr < h.Addr
	if first || t.named.Load() {
		return status.Error(codes.AlreadyExists, fmt.Sprintf(
			"nearcache: %.80q has the ID of this member, %.64q: two members must not have the same", h.Addr, h.Member))
	}
	t.contestedAt.Store(t.now())
	return status.Error(codes.FailedPrecondition, fmt.Sprintf(
		"nearcache: %.80q has the ID of this member, %.64q, and had it first: this one gives way", h.Addr, h.Member))
}

// greet asks the process at the address that the list has for this member's own ID whether it is there, and has the ID: its refusal says so.
func (p *Peer) greet() error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	st, err := p.open(ctx, laneDesc(), laneMethod)
	if err != nil {
		return err
	}
	f := &replyFrame{}
	if err := p.shake(st, cancel, &requestFrame{Hello: p.t.hello()}, f, func() *hello { return f.Hello }); err != nil {
		return err
	}
	return errors.New("nearcache: another member is there by now")
}

// contestedFor is how long a refusal counts: a process that is refused tries again more often.
const contestedFor = 3 * time.Second

// Contested tells whether another process has this member's ID and came first: a peer refuses this one, or it gave way. The refusal of a
// peer ends when that accepts this process: one that has come in the very moment in which its predecessor went was refused once.
func (t *Transport) Contested() bool {
	after := t.now() - int64(contestedFor)
	counts := func(at *atomic.Int64) bool { v := at.Load(); return v != 0 && v > after }
	if counts(&t.contestedAt) {
		return true
	}
	for _, p := range *t.peers.Load() {
		if counts(&p.contestedAt) {
			return true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rival != nil && counts(&t.rival.contestedAt)
}

// errReplaced ends the streams of a process that lost its claim.
func errReplaced() error {
	return status.Error(codes.AlreadyExists, "nearcache: another process has taken over this member's ID")
}
