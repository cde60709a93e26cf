package transport

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Limits of one lane. What exceeds them fails at once with ErrBusy.
const (
	maxQuick   = 1 << 10  // calls without any answer yet, beyond which Start refuses
	maxBatched = 15 << 10 // the same for StartBatch, whose calls exist already
	maxWaiting = 16 << 10 // calls that wait at the peer
	slotBits   = 15       // maxBatched + maxWaiting fit
	maxSlots   = 1 << slotBits
)

// A frame is sent when fewer than windowFrames frames and windowBytes bytes are without acknowledgement. The second one keeps SendMsg from
// blocking: gRPC lets a message pass while less than 64 KiB of its stream are unwritten, and what is acknowledged was written.
const (
	windowFrames = 4
	windowBytes  = 48 << 10
	frameBytes   = 32 << 10 // no request is added to a frame that has reached it
	leadRounds   = 2        // frames that a caller sends before a goroutine of the lane takes over
)

// ghostLife is how long the id of a call that nobody waits for stays taken, if the peer never answers it.
const ghostLife = time.Minute

// lane is one stream to a peer: calls go out in frames, answers come back in any order.
//
// There is no sending goroutine. Whoever finds the lane without a sender becomes it, and sends what others queue meanwhile: that, and the
// window, makes batches without a timer. The receiving goroutine never sends and never blocks, so that two members that flood
// each other both keep reading.
type lane struct {
	p           *Peer
	st          grpc.ClientStream
	cancel      context.CancelFunc // ends the stream
	incarnation uint64
	load        atomic.Int32 // quick, readable without mu
	draining    atomic.Bool
	probing     atomic.Bool  // a probe is under way
	goodProbe   atomic.Int64 // when the last probe was sent that was answered in time; 0: there was none

	// Of the sender, whoever that is.
	frame    requestFrame
	requests []Request // what frame points to: copies, since a call may end, and be reused, while its request is being encoded

	// Of the receiving goroutine.
	answered []answeredCall
	detached []*Batch // of calls that wait now

	// mu guards the fields below. It is a leaf: nothing is called, sent or waited for under it.
	mu      sync.Mutex
	closed  bool // no call is accepted, and none is left
	sending bool // there is a sender
	half    bool // the lane's sending side is closed: there will be no sender
	slots   []slot
	free    []uint32 // indexes of empty slots
	queue   []uint32 // indexes of slots whose request was not sent yet, oldest first
	quick   int      // calls queued or sent that have no answer
	waiting int      // calls that the peer has told to wait
	last    int      // requests in the last frame
	unacked []sentFrame
	bytes   int    // sum over unacked
	acked   uint64 // frames that the peer has acknowledged: the number of unacked[0]
	answers uint64 // calls that were answered, or told to wait, in time
}

type sentFrame struct {
	bytes int
	at    int64
	left  int // requests without any answer
}

// slot is the place of one call in its lane. The call's id is the slot's index and generation, so that a late answer to an earlier call
// finds nothing.
type slot struct {
	call       *Call // nil: empty
	phase      phase
	generation uint32
	deadline   int64
	answers    uint64 // what lane.answers was when the request was sent
	frame      uint64 // number of the frame it was sent in
	open       bool   // sent, and without any answer
}

type phase uint8

const (
	phaseQueued  phase = iota // not sent
	phaseSent                 // no answer yet
	phaseWaiting              // told to wait
	phaseGhost                // sent; its caller is gone, call is the transport's
)

type answeredCall struct {
	call  *Call
	index int // in the frame
}

func (s *slot) id(index uint32) uint32 { return s.generation<<slotBits | index }

// start queues c, and sends if nobody does.
func (l *lane) start(c *Call) error {
	l.mu.Lock()
	if err := l.admitLocked(maxQuick); err != nil {
		l.mu.Unlock()
		return err
	}
	l.queueLocked(c)
	lead := !l.sending
	l.sending = true
	gather := l.quick > 1 || l.last > 1
	l.mu.Unlock()
	if lead {
		l.send(leadRounds, gather)
	}
	return nil
}

// startBatch queues all calls of cs that fit, and returns how many, with the reason why not all.
func (l *lane) startBatch(cs []*Call) (n int, err error) {
	l.mu.Lock()
	for n < len(cs) {
		if err = l.admitLocked(maxBatched); err != nil {
			break
		}
		l.queueLocked(cs[n])
		n++
	}
	lead := n > 0 && !l.sending
	if lead {
		l.sending = true
	}
	l.mu.Unlock()
	if lead {
		l.send(leadRounds, false)
	}
	return n, err
}

func (l *lane) admitLocked(limit int) error {
	switch {
	case l.closed || l.half || l.draining.Load():
		return ErrDown
	case l.quick >= limit || l.waiting >= maxWaiting || len(l.free) == 0 && len(l.slots) == maxSlots:
		return ErrBusy
	}
	return nil
}

func (l *lane) queueLocked(c *Call) {
	var index uint32
	if n := len(l.free); n > 0 {
		index = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		index = uint32(len(l.slots))
		l.slots = append(l.slots, slot{generation: 1})
	}
	s := &l.slots[index]
	s.call, s.phase = c, phaseQueued
	l.queue = append(l.queue, index)
	l.quick++
	l.load.Store(int32(l.quick))
}

// releaseLocked empties the slot. Its late answers find nothing from now on.
func (l *lane) releaseLocked(index uint32) *Call {
	s := &l.slots[index]
	c := s.call
	switch s.phase {
	case phaseQueued, phaseSent:
		l.quick--
		l.load.Store(int32(l.quick))
	case phaseWaiting:
		l.waiting--
	case phaseGhost:
	}
	s.call = nil
	s.generation++
	l.free = append(l.free, index)
	return c
}

// send sends until nothing is queued or the window is full. The caller is the sender. With gather it lets others queue first; without it does
// so from the time that there are others.
func (l *lane) send(rounds int, gather bool) {
	for i := 0; ; i++ {
		if i > 0 && !gather {
			if l.idle() {
				return
			}
			gather = true
		}
		if i > 0 && i == rounds && l.handOver() {
			return
		}
		if gather {
			runtime.Gosched()
		}
		n, deadline := l.take()
		if n == 0 {
			return
		}
		l.frame.View = l.p.t.cfg.View()
		l.p.arm(deadline)
		l.p.requests.Add(uint64(n))
		err := l.st.SendMsg(&l.frame)
		l.frame.reset()
		clear(l.requests)
		l.requests = l.requests[:0]
		if err != nil {
			l.cancel() // then the receiving goroutine fails the calls
			return
		}
	}
}

// handOver makes a goroutine of the peer the sender.
func (l *lane) handOver() bool {
	return l.p.spawn(func() { l.send(0, true) })
}

// take moves queued requests into the frame and returns how many, and when they are overdue. The caller is the sender; it is not any more
// if nothing can be sent.
func (l *lane) take() (n int, deadline int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 && l.openLocked() {
		if n, deadline = l.takeLocked(); n > 0 {
			return n, deadline
		}
	}
	l.sending = false
	return 0, 0
}

// idle tells whether nothing can be sent now. Then the caller is not the sender any more.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sending = len(l.queue) > 0 && l.openLocked()
	return !l.sending
}

// openLocked tells whether the window lets a frame pass.
func (l *lane) openLocked() bool {
	return !l.closed && len(l.unacked) < windowFrames && l.bytes < windowBytes
}

func (l *lane) takeLocked() (n int, deadline int64) {
	now := l.p.t.now()
	deadline = now + int64(l.p.t.cfg.PeerTimeout)
	l.requests = slices.Grow(l.requests, min(len(l.queue), MaxBatchOps)) // the frame points into it
	taken, bytes := 0, 0
	for _, index := range l.queue {
		if len(l.requests) == MaxBatchOps || bytes >= frameBytes {
			break
		}
		taken++
		s := &l.slots[index]
		if s.call.state.Load() == callAbandoned {
			l.releaseLocked(index).Free() // never sent
			continue
		}
		s.phase, s.deadline, s.answers = phaseSent, deadline, l.answers
		s.frame, s.open = l.acked+uint64(len(l.unacked)), true
		l.requests = append(l.requests, s.call.Request)
		q := &l.requests[len(l.requests)-1]
		l.frame.add(s.id(index), q)
		bytes += roughBytes(q)
	}
	l.queue = l.queue[:copy(l.queue, l.queue[taken:])]
	n = len(l.requests)
	if n > 0 {
		l.unacked = append(l.unacked, sentFrame{bytes, now, n})
		l.bytes += bytes
		l.last = n
	}
	return n, deadline
}

// roughBytes is about what q takes in a frame.
func roughBytes(q *Request) int {
	if len(q.Keys)+len(q.Tags) > 0 {
		return q.wireBytes()
	}
	n := 64
	if q.Op != OpGet {
		n = 128
	}
	return n + len(q.Keyspace) + len(q.Key) + len(q.Value)
}

// receive completes the calls that a frame answers. It runs on the receiving goroutine.
func (l *lane) receive(f *replyFrame) error {
	if f.Draining {
		l.draining.Store(true)
	}
	l.mu.Lock()
	if int(f.Acked) > len(l.unacked) {
		l.mu.Unlock()
		return errMalformed
	}
	next := l.matchLocked(f)
	kept := true
	oldest := int64(math.MaxInt64)
	for _, sent := range l.unacked[:f.Acked] {
		oldest = min(oldest, sent.at)
		l.bytes -= sent.bytes
		kept = kept && sent.left == 0
	}
	l.acked += uint64(f.Acked)
	l.unacked = l.unacked[:copy(l.unacked, l.unacked[f.Acked:])]
	wake, finish := false, false
	if !l.sending && !l.half {
		wake = len(l.queue) > 0 && l.openLocked()
		finish = l.draining.Load() && l.quick == 0 && l.waiting == 0
		l.sending = wake
		l.half = finish
	}
	l.mu.Unlock()

	if next != math.MaxInt64 {
		l.p.arm(next)
	}
	if !l.p.breaker.allows() && oldest != math.MaxInt64 {
		if now := l.p.t.now(); now-oldest > int64(l.p.t.cfg.PeerTimeout)/2 {
			l.p.arm(now) // it is back: probe it at once
		}
	}
	closed := wake && !l.handOver() // first, so that the next frame is on its way while these calls wake up
	l.settle(f)
	if finish {
		_ = l.st.CloseSend() // always nil; the peer ends the stream
	}
	switch {
	case closed:
		return ErrDown
	case !kept:
		return errUnanswered
	}
	return nil
}

// matchLocked takes the calls that a frame answers out of their slots. It returns when to look after those that wait now.
func (l *lane) matchLocked(f *replyFrame) (next int64) {
	next = math.MaxInt64
	for i, id := range f.IDs {
		index := id & (maxSlots - 1)
		if int(index) >= len(l.slots) {
			continue
		}
		s := &l.slots[index]
		if s.call == nil || s.id(index) != id || s.phase == phaseQueued {
			continue // answered before, or never asked
		}
		l.noteLocked(s)
		if f.Reps[i].Status != StatusWaiting {
			l.answered = append(l.answered, answeredCall{l.releaseLocked(index), i})
			continue
		}
		next = min(next, l.waitLocked(s))
		if b := s.call.batch; b != nil {
			s.call.batch = nil
			l.detached = append(l.detached, b)
		}
	}
	return next
}

// noteLocked notes the first answer to a request.
func (l *lane) noteLocked(s *slot) {
	if !s.open {
		return
	}
	s.open = false
	if s.phase == phaseSent {
		l.answers++
	}
	if n := s.frame - l.acked; n < uint64(len(l.unacked)) {
		l.unacked[n].left--
	}
}

// settle completes the calls that matchLocked found, and lets go of those that wait.
func (l *lane) settle(f *replyFrame) {
	for _, a := range l.answered {
		l.p.answered(a.call, &f.Reps[a.index], l.incarnation)
	}
	clear(l.answered)
	l.answered = l.answered[:0]
	for _, b := range l.detached {
		b.one()
	}
	clear(l.detached)
	l.detached = l.detached[:0]
}

// waitLocked notes that the peer keeps the call until it has an answer. It returns when to look after it.
func (l *lane) waitLocked(s *slot) int64 {
	if s.phase != phaseSent {
		return math.MaxInt64
	}
	s.phase = phaseWaiting
	l.quick--
	l.load.Store(int32(l.quick))
	l.waiting++
	now := l.p.t.now()
	s.deadline = now + int64(max(s.call.Request.Budget, 0)+waitSlack)
	return now + int64(l.p.t.cfg.PeerTimeout)
}

// close ends the lane: every call fails with err.
func (l *lane) close(err error) {
	l.mu.Lock()
	l.closed = true
	var lost []*Call
	for i := range l.slots {
		if c := l.slots[i].call; c != nil {
			lost = append(lost, c)
		}
	}
	l.slots, l.free, l.queue, l.unacked = nil, nil, nil, nil
	l.quick, l.waiting = 0, 0
	l.mu.Unlock()
	for _, c := range lost {
		c.fail(l.p, err)
	}
}
