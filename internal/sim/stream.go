package sim

import (
	"time"

	"github.com/nearcache/nearcache/invalidation"
)

// stream is the coherence stream of a connection: what the owner, its accepting side, tells the dialler arrives in order.
type stream struct {
	c       *conn
	sub     *invalidation.Subscriber
	writing bool
	queue   []delivery // messages under way, in order
	renewed map[uint64]int64
	nonce   uint64
}

type delivery struct {
	at int64
	d  *down
}

// maxBatchKeys is transport.MaxBatchKeys, small enough that bursts take several messages.
const maxBatchKeys = 4

// accept is the owner's side of a handshake (Node.Subscribe).
func (c *conn) accept() {
	n := c.to
	c.life = n.holders.add(c.from, n.exact())
	c.stream = &stream{c: c, sub: n.log.Subscribe(holderOf(c.from)), renewed: make(map[uint64]int64)}
	n.streams = append(n.streams, c.stream)
}

// open begins to renew: four times a Bound.
func (s *stream) open() {
	n := s.c.from
	if s.c.cut {
		return
	}
	s.nonce++
	nonce := s.nonce
	s.renewed[nonce] = n.exact()
	view := n.members.Ring.Fingerprint()
	s.c.send(s.c.to, func() {
		o := s.c.to
		now := o.exact()
		o.keepTenure(now)
		s.c.life.renewed = now
		o.heardOf(s.c.life, view, now)
		s.sub.Renew(nonce)
		s.write()
	})
	n.after(n.w.cfg.Bound/4, s.open)
}

// write lets the writer take what is new (subscription.Next).
func (s *stream) write() {
	if s.writing || s.c.cut {
		return
	}
	s.writing = true
	w := s.c.w
	w.after(w.between(0, int64(200*time.Microsecond)), func() {
		s.c.to.event(func() {
			s.writing = false
			s.take()
		})
	})
}

func (s *stream) take() {
	for !s.c.cut {
		d := &down{incarnation: s.c.to.incarnation}
		if !s.sub.Take(&d.batch, maxBatchKeys) {
			return
		}
		d.frame = s.c.to.frameFor(s.c.from.id)
		if d.batch.Renewed {
			d.silent = s.c.to.silences()
		}
		s.send(d)
	}
}

func (s *stream) send(d *down) {
	w := s.c.w
	f := &w.cfg.Faults
	if w.chance(f.Loss) {
		s.c.breakDown()
		return
	}
	if w.chance(f.Holes) {
		return
	}
	s.push(d)
	if w.chance(f.Doubles) {
		s.push(d)
	}
}

func (s *stream) push(d *down) {
	at := s.c.w.now + s.c.w.delay()
	if k := len(s.queue); k > 0 {
		at = max(at, s.queue[k-1].at)
	}
	s.queue = append(s.queue, delivery{at: at, d: d})
	if len(s.queue) == 1 {
		s.c.w.after(at-s.c.w.now, s.arrive)
	}
}

// arrive delivers the first message, and sees to the next.
func (s *stream) arrive() {
	w := s.c.w
	switch {
	case s.c.cut:
		return
	case s.c.blocked(s.c.from):
		w.after(w.between(int64(20*time.Millisecond), int64(100*time.Millisecond)), s.arrive)
		return
	}
	s.c.from.event(func() {
		d := s.queue[0].d
		s.queue = s.queue[1:]
		if len(s.queue) > 0 {
			w.after(s.queue[0].at-w.now, s.arrive)
		}
		if !s.c.cut {
			s.c.from.received(s, d)
		}
	})
}
