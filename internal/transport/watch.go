package transport

import (
	"math"
	"time"
)

const (
	waitSlack  = time.Second            // on top of a waiting call's budget, for the answer's way back
	lateGrace  = 20 * time.Millisecond  // see watch
	minSweep   = 5 * time.Millisecond   // between two looks at the deadlines
	probeEvery = 100 * time.Millisecond // between probes of a suspect peer
)

// watch keeps the deadlines of a peer's calls and probes the peer when it is silent. One coarse timer does for all of its calls, and it
// runs only while there are any.
func (p *Peer) watch() {
	defer p.timer.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.timer.C:
			if late := p.t.now() - p.sweepAt.Load(); late > int64(p.t.cfg.PeerTimeout)/2 {
				// It was this process that paused: let the receiving goroutines catch up before they are judged.
				p.sweepAt.Store(0)
				p.arm(p.t.now() + int64(lateGrace))
				continue
			}
			p.sweep()
		}
	}
}

// arm makes sure that sweep runs at about the time at, or earlier.
func (p *Peer) arm(at int64) {
	if set := p.sweepAt.Load(); set != 0 && set <= at {
		return
	}
	p.timerMu.Lock()
	defer p.timerMu.Unlock()
	if set := p.sweepAt.Load(); set != 0 && set <= at {
		return
	}
	p.sweepAt.Store(at)
	p.timer.Reset(time.Duration(at - p.t.now()))
}

// sweep fails overdue calls, and decides whether the peer is silent: a call is overdue, and no frame came since it was sent.
func (p *Peer) sweep() {
	p.sweepAt.Store(0)
	now := p.t.now()
	next := int64(math.MaxInt64)
	silent, expecting := false, p.bulks.Load() > 0
	for i := range p.lanes {
		l := p.lanes[i].Load()
		if l == nil {
			continue
		}
		r := l.sweep(now)
		for _, c := range r.lost {
			c.fail(p, ErrTimeout)
		}
		next = min(next, r.next)
		silent = silent || r.silent
		expecting = expecting || r.waiting
	}
	if silent {
		p.becomeSuspect()
	}
	switch frames := p.frames.Load(); {
	case p.suspect.Load():
		p.ping()
		next = min(next, now+int64(probeEvery))
	case expecting: // for long perhaps: find out whether the peer still lives
		if frames == p.sweptFrames {
			p.ping()
		}
		p.sweptFrames = frames
		next = min(next, now+int64(p.t.cfg.PeerTimeout))
	}
	if next != math.MaxInt64 {
		p.arm(max(next, now+int64(minSweep)))
	}
}

// becomeSuspect takes the peer out of use until a frame comes from it. Whoever waits for it stops waiting.
func (p *Peer) becomeSuspect() {
	if !p.suspect.CompareAndSwap(false, true) {
		return
	}
	now := p.t.now()
	for i := range p.lanes {
		l := p.lanes[i].Load()
		if l == nil {
			continue
		}
		for _, c := range l.giveUp(now) {
			c.fail(p, ErrTimeout)
		}
	}
	p.resetBulk()
	// Last: a handler is the application's, and may take its time.
	p.t.cfg.Logger.Warn("nearcache: peer does not answer", "peer", p.id, "addr", p.addr)
}

// ping sends a request that only asks for a sign of life, if none is under way.
func (p *Peer) ping() {
	if !p.pinging.CompareAndSwap(false, true) {
		return
	}
	c := p.t.NewCall()
	c.Request.Op = OpPing
	c.ping = true
	if l := p.pick(0); l == nil || l.start(c) != nil {
		c.complete(p)
	}
}

type swept struct {
	lost    []*Call // overdue
	silent  bool    // one of them, and no frame since
	waiting bool    // calls wait at the peer
	next    int64   // the next deadline
}

// sweep takes the overdue calls out.
func (l *lane) sweep(now int64) swept {
	r := swept{next: math.MaxInt64}
	frames := l.p.frames.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.slots {
		s := &l.slots[i]
		if s.call == nil || s.phase == phaseQueued {
			continue
		}
		if s.deadline > now {
			r.next = min(r.next, s.deadline)
			continue
		}
		if s.phase == phaseGhost {
			l.releaseLocked(uint32(i)).drop(l.p)
			continue
		}
		r.silent = r.silent || s.frames == frames
		if c := l.hauntLocked(s, now); c != nil {
			r.lost = append(r.lost, c)
		}
		r.next = min(r.next, s.deadline)
	}
	if len(l.queue) > 0 && len(l.unacked) > 0 { // the window may be shut for good
		if stuck := l.unacked[0].at + int64(l.p.t.cfg.PeerTimeout); stuck <= now {
			r.lost = l.dropQueueLocked(r.lost)
		} else {
			r.next = min(r.next, stuck)
		}
	}
	r.waiting = l.waiting > 0
	return r
}

// giveUp takes all calls out that have no answer.
func (l *lane) giveUp(now int64) (lost []*Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.slots {
		s := &l.slots[i]
		if s.call == nil || s.phase == phaseQueued || s.phase == phaseGhost {
			continue
		}
		if c := l.hauntLocked(s, now); c != nil {
			lost = append(lost, c)
		}
	}
	return l.dropQueueLocked(lost)
}

// hauntLocked gives up a call that was sent: its id stays taken, and a lease that comes for it is recognized. It returns the call, to be
// failed, or nil if nobody waits for it.
func (l *lane) hauntLocked(s *slot, now int64) *Call {
	switch s.phase {
	case phaseSent:
		l.quick--
		l.load.Store(int32(l.quick))
	case phaseWaiting:
		l.waiting--
	case phaseQueued, phaseGhost:
	}
	c := s.call
	s.phase = phaseGhost
	s.deadline = now + int64(ghostLife)
	if c.ping || c.state.Load() == callAbandoned {
		return nil // it is its own ghost
	}
	g := l.p.t.NewCall()
	g.Request = c.Request
	g.Request.Value, g.Request.Keys, g.Request.Tags = nil, nil, nil
	g.state.Store(callAbandoned)
	s.call = g
	return c
}

func (l *lane) dropQueueLocked(lost []*Call) []*Call {
	for _, index := range l.queue {
		lost = append(lost, l.releaseLocked(index))
	}
	l.queue = l.queue[:0]
	return lost
}
