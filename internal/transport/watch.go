package transport

import (
	"math"
	"time"
)

const (
	waitSlack  = time.Second            // on top of a waiting call's budget, for the answer's way back
	lateGrace  = 20 * time.Millisecond  // see watch
	minSweep   = 5 * time.Millisecond   // between two looks at the deadlines
	probeEvery = 100 * time.Millisecond // between probes of a peer that calls are kept away from
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

// sweep fails overdue calls, and opens the breaker when the peer is silent: a call is overdue, and on its lane nothing has been
// answered in time since it was sent.
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
		if r.silent != nil {
			silent = true
			if p.breaker.allows() {
				p.trial = *r.silent
			}
		}
		expecting = expecting || r.waiting
	}
	if silent {
		p.passOver(now)
	}
	if !p.breaker.allows() {
		up, well := p.probe()
		if p.breaker.step(now, well); p.breaker.allows() {
			p.trial = Request{}
			// Last, as in passOver.
			defer p.t.cfg.Logger.Info("nearcache: peer answers again", "peer", p.id, "addr", p.addr)
		} else if up { // else a lane that comes up goes on with it
			p.giveUpSilent(now)
			next = min(next, now+int64(probeEvery))
		}
	}
	switch frames := p.frames.Load(); {
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

// passOver opens the breaker. Whoever waits for the peer stops waiting.
func (p *Peer) passOver(now int64) {
	if !p.breaker.open(now) {
		return
	}
	for i := range p.lanes {
		l := p.lanes[i].Load()
		if l == nil {
			continue
		}
		l.goodProbe.Store(0)
		for _, c := range l.giveUp(now) {
			c.fail(p, ErrTimeout)
		}
	}
	p.resetBulk()
	// Last: a handler is the application's, and may take its time.
	p.t.cfg.Logger.Warn("nearcache: peer does not answer", "peer", p.id, "addr", p.addr)
}

// probe tells whether a lane is up, and whether all of them are well, and asks every one for the trial.
func (p *Peer) probe() (up, well bool) {
	well = p.well(p.breaker.openedAt)
	for i := range p.lanes {
		if l := p.lanes[i].Load(); l != nil {
			up = true
			l.ask(&p.trial)
		}
	}
	return up, well
}

// well tells whether every lane that takes calls is well since then, and there is one.
func (p *Peer) well(since int64) (well bool) {
	for i := range p.lanes {
		l := p.lanes[i].Load()
		switch {
		case l == nil || l.draining.Load():
		case !l.wellSince(since):
			return false
		default:
			well = true
		}
	}
	return well
}

// ping asks every lane for a sign of life.
func (p *Peer) ping() {
	for i := range p.lanes {
		if l := p.lanes[i].Load(); l != nil {
			l.ask(&Request{})
		}
	}
}

// ask sends a probe, if none is under way: a peek at what trial asked for, else a ping. Why not what was asked itself: a Get may
// bring a lease.
func (l *lane) ask(trial *Request) {
	if !l.probing.CompareAndSwap(false, true) {
		return
	}
	c := l.p.t.NewCall()
	c.Request.Op = OpPing
	if trial.Op == OpGet || trial.Op == OpPeek {
		c.Request.Op, c.Request.Keyspace, c.Request.Key = OpPeek, trial.Keyspace, trial.Key
		c.Request.Budget = l.p.t.cfg.PeerTimeout
	}
	c.probe, c.began = l, l.p.t.now()
	if err := l.start(c); err != nil {
		c.fail(l.p, err)
	}
}

// probed notes the end of a probe. One that took long tells nothing good of the peer.
func (l *lane) probed(began int64, answered bool) {
	if answered && l.p.t.now()-began <= int64(l.p.t.cfg.PeerTimeout)/2 {
		l.goodProbe.Store(began)
	}
	l.probing.Store(false)
	if l.p.breaker.state.Load() == breakerOpen && l.p.well(0) {
		l.p.arm(l.p.t.now()) // it is back
	}
}

// wellSince tells whether a probe that was sent after the time since was answered in time, and everything before it, too.
func (l *lane) wellSince(since int64) bool {
	good := l.goodProbe.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	return good != 0 && good >= since && (len(l.unacked) == 0 || l.unacked[0].at >= good)
}

type swept struct {
	lost    []*Call  // overdue
	silent  *Request // one of them, and nothing was answered in time since
	waiting bool     // calls wait at the peer
	next    int64    // the next deadline
}

// sweep takes the overdue calls out.
func (l *lane) sweep(now int64) swept {
	r := swept{next: math.MaxInt64}
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
			l.releaseLocked(uint32(i)).drop()
			continue
		}
		if r.silent == nil && s.answers == l.answers {
			r.silent = &Request{Op: s.call.Request.Op, Keyspace: s.call.Request.Keyspace, Key: s.call.Request.Key}
		}
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
	if c.probe != nil || c.state.Load() == callAbandoned {
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
