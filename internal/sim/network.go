package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
)

// delay is the time that a message takes.
func (w *world) delay() int64 {
	f := &w.cfg.Faults
	d := int64(200*time.Microsecond) + w.exp(int64(800*time.Microsecond))
	if w.chance(f.TailShare) {
		d += w.between(0, int64(f.Tail))
	}
	return d
}

// conn is what one process has dialled to another: a lane for requests and the coherence stream. What is sent on it arrives, late if need
// be, or it breaks and all that is under way is lost: that is how a message is lost.
type conn struct {
	w        *world
	p        *peer // of the dialler
	from, to *node
	cut      bool // nothing arrives any more
	calls    []*call
	life     *life // at to
	stream   *stream
}

// call is a request under way, as transport.Call.
type call struct {
	c        *conn
	req      request
	sent     int64
	waiting  bool // the peer has acknowledged that it waits there
	over     bool
	detached func() // is told that it waits; nil: nobody is
	orphaned bool   // nobody wants the answer any more: a lease that it brings is given back
	done     func(*reply, error)
}

// send lets f happen at the other side, or breaks the connection.
func (c *conn) send(to *node, f func()) {
	if c.cut {
		return
	}
	if c.w.chance(c.w.cfg.Faults.Loss) {
		c.breakDown()
		return
	}
	c.w.after(c.w.delay(), func() { c.arrive(to, f) })
}

// arrive waits while the link is blocked, as TCP does, and while the process is stopped, as its sockets do.
func (c *conn) arrive(to *node, f func()) {
	if c.cut {
		return
	}
	if c.blocked(to) {
		c.w.after(c.w.between(int64(20*time.Millisecond), int64(100*time.Millisecond)), func() { c.arrive(to, f) })
		return
	}
	to.event(func() {
		if !c.cut {
			f()
		}
	})
}

// blocked tells whether nothing gets through to one of the two.
func (c *conn) blocked(to *node) bool {
	from := c.from
	if to == c.from {
		from = c.to
	}
	return c.w.blocked[from.index][to.index]
}

// breakDown ends a connection. Both sides notice it soon, the one as Node.Gone and the end of its Subscription, the other by the
// failure of its calls.
func (c *conn) breakDown() {
	if c.cut {
		return
	}
	c.cut = true
	notice := int64(100 * time.Millisecond)
	c.w.after(c.w.between(0, notice), func() { c.to.event(func() { c.to.ended(c) }) })
	c.w.after(c.w.between(0, notice), func() { c.from.event(c.lost) })
}

// lost is the dialler's side of the end.
func (c *conn) lost() {
	if c.p.conn == c {
		c.p.conn = nil
	}
	calls := c.calls
	c.calls = nil
	c.from.hold(c.p.id, c.from.exact()+int64(time.Second))
	for _, l := range calls {
		l.complete(nil, errDown)
	}
}

// hold tells a member whose lane has ended, as soon as it can be reached, which of its leases are in use here (Node.Lost).
func (n *node) hold(id string, until int64) {
	p := n.peers[id]
	if n.exact() >= until {
		return
	}
	if p == nil || !p.ready() {
		n.after(5*time.Millisecond, func() { n.hold(id, until) })
		return
	}
	for _, key := range n.w.keys {
		for _, l := range n.w.origin.running[key] {
			if x := l.x; x.n == n && x.token != (shard.Token{}) && x.a.m.Members[x.a.target].ID == id {
				p.start(request{op: opHold, key: key, token: x.token}, func(*reply, error) {})
			}
		}
	}
	n.after(5*time.Millisecond, func() { p.start(request{op: opHold}, func(*reply, error) {}) }) // behind them: that were all
}

// start sends a request. done is called once, unless the process ends (transport.Peer.Start, Call.complete).
func (p *peer) start(req request, done func(*reply, error)) *call {
	if p.ready() {
		return p.startAnyway(req, done)
	}
	p.n.soon(func() { done(nil, errDown) })
	return &call{c: p.conn, req: req, over: true}
}

// startAnyway does so whatever the breaker says.
func (p *peer) startAnyway(req request, done func(*reply, error)) *call {
	n := p.n
	req.view = n.members.Ring.Fingerprint()
	l := &call{c: p.conn, req: req, sent: n.exact(), done: done}
	if !p.connected() {
		l.over = true
		n.soon(func() { done(nil, errDown) })
		return l
	}
	c := p.conn
	c.calls = append(c.calls, l)
	n.after(n.w.cfg.PeerTimeout, func() { l.overdue() })
	c.send(c.to, func() { c.to.receive(l) })
	return l
}

// receive serves a request (transport.Session.serveFrame).
func (n *node) receive(l *call) {
	var rep reply
	if n.serve(l, &rep) {
		l.answer(&rep)
		return
	}
	l.c.send(l.c.from, func() { l.acknowledge() })
}

// answer sends the answer (transport.Session.Answer).
func (l *call) answer(rep *reply) {
	out := *rep
	out.incarnation = l.c.to.incarnation
	out.frame = l.c.to.frameFor(l.c.from.id)
	l.c.send(l.c.from, func() {
		l.c.p.heardFrom(l)
		l.c.p.leaving = l.c.p.leaving || out.frame.leaving
		if l.over || l.orphaned {
			if out.status == statusLease {
				l.c.from.orphan(l, &out)
			}
			l.remove()
			return
		}
		l.complete(&out, nil)
	})
}

// acknowledge notes that the request waits at the peer: it has its budget and a second more now.
func (l *call) acknowledge() {
	l.c.p.heardFrom(l)
	l.waiting = true
	if l.detached != nil && !l.over {
		l.detached()
	}
	n := l.c.from
	left := l.sent + l.req.budget + int64(time.Second) - n.exact()
	n.after(time.Duration(left), func() { l.complete(nil, errTimeout) })
}

// overdue fails a call that was not even acknowledged; if the peer has answered nothing that was sent since, its breaker opens.
func (l *call) overdue() {
	if l.over || l.waiting {
		return
	}
	silent := l.c.p.heard < l.sent
	l.complete(nil, errTimeout)
	if silent {
		l.c.p.open()
	}
}

func (l *call) complete(rep *reply, err error) {
	if l.over || l.orphaned {
		l.over = true
		return
	}
	l.over = true
	if rep != nil {
		l.remove()
	}
	l.done(rep, err)
}

// remove forgets a call whose answer has come.
func (l *call) remove() {
	l.c.calls = slices.DeleteFunc(l.c.calls, func(o *call) bool { return o == l })
}

// abandon gives up a call (transport.Call.Abandon).
func (l *call) abandon() { l.orphaned = true }

// peer is another member as this process knows it: the root's peer, transport.Peer and its breaker.
type peer struct {
	n        *node
	id       string
	index    int // of the member in the world
	conn     *conn
	added    int64
	retires  int64 // when it is forgotten; 0: it is a member
	replicas int   // of its last hello; 0: there was none
	heard    int64 // an answer to what was sent then came in time
	*followed

	closed   bool  // not a member any more
	leaving  bool  // it has said that it stops
	leaves   int64 // when it last said so; 0: never
	breaker  bool  // open
	openedAt int64
	dialling bool
}

func (p *peer) ready() bool     { return p.connected() && !p.breaker && !p.leaving }
func (p *peer) connected() bool { return p.conn != nil && !p.conn.cut }

func (p *peer) heardFrom(l *call) {
	if p.n.exact()-l.sent < int64(p.n.w.cfg.PeerTimeout) {
		p.heard = max(p.heard, l.sent)
	}
}

// open opens the breaker: calls under way fail, later ones do not begin until a probe is answered in time.
func (p *peer) open() {
	if p.breaker {
		return
	}
	p.breaker, p.openedAt = true, p.n.exact()
	if p.conn != nil {
		for _, l := range slices.Clone(p.conn.calls) {
			l.complete(nil, errDown)
		}
	}
	p.n.after(100*time.Millisecond, p.probe)
}

func (p *peer) probe() {
	if p.closed || !p.breaker {
		return
	}
	p.n.after(100*time.Millisecond, p.probe)
	c := p.conn
	if c == nil {
		return
	}
	sent := p.n.exact()
	c.send(c.to, func() {
		c.send(c.from, func() {
			if p.conn == c && p.n.exact()-sent < int64(p.n.w.cfg.PeerTimeout)/2 {
				p.breaker = false
			}
		})
	})
}

// dial connects to the peer, and again when that is lost, as long as it is a member.
func (p *peer) dial() {
	if p.closed {
		return
	}
	n, w := p.n, p.n.w
	n.after(time.Duration(w.between(int64(5*time.Millisecond), int64(100*time.Millisecond))), p.dial)
	to := w.members[p.index].node
	if p.conn != nil || p.dialling || to == nil || w.blocked[n.index][to.index] || w.blocked[to.index][n.index] {
		return
	}
	p.dialling = true
	w.after(w.delay(), func() { // the hello: a stopped process does not answer it
		to.event(func() {
			if to.contests(n) {
				return
			}
			c := &conn{w: w, p: p, from: n, to: to}
			c.accept()
			w.after(w.delay(), func() { n.event(func() { p.adopt(c) }) })
		})
	})
	n.after(time.Second, func() { p.dialling = false })
}

// adopt is the dialler's end of a handshake (Node.Connected).
func (p *peer) adopt(c *conn) {
	p.dialling = false
	if p.closed || p.conn != nil || c.to.dead {
		c.breakDown()
		return
	}
	p.conn, p.leaving, p.replicas = c, false, c.to.replicas
	p.n.follow(p, func(f *followed) { f.apply(p.n, f.contact(c.to.incarnation)) })
	c.stream.open()
}
