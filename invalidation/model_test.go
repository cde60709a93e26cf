package invalidation

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The model runs one owner and two readers in discrete time: the package's own Log, Subscriber, Interest, Follower and Fetch, a stream
// that loses, delays, repeats and reorders batches, breaks and restarts, and a checker that knows every version. A near copy
// lives 30 s, so that only the protocol bounds what is served.
const (
	modelLease = time.Second      // H
	modelNear  = 30 * time.Second // near lifetime
	modelKeys  = 20
)

// faults are chances in a thousand.
type faults struct {
	lose, repeat, reorder int // a message
	breaks                int // the stream, at each renewal
	restart               int // the owner, at each renewal
	small                 bool
}

type model struct {
	t     *testing.T
	r     *rand.Rand
	f     faults
	now   int64
	queue eventQueue
	order int

	version [modelKeys]int     // at the origin
	changed [modelKeys][]int64 // when each version was replaced and the invalidation acknowledged

	owner   *owner
	readers []*reader

	reads, hits, invalidations, received, badKills int
	worst                                          time.Duration
}

type owner struct {
	incarnation uint64
	log         *Log
	interest    *Interest
}

type reader struct {
	follower Follower
	copies   map[int]nearCopy
	fetches  map[int][]*Fetch
	stream   *stream
}

// stream is one connection of a reader to the owner.
type stream struct {
	owner  *owner
	sub    *Subscriber
	sent   map[uint64]int64 // renewals
	nonce  uint64
	lastAt int64 // arrival of the last message in order
}

type nearCopy struct {
	version  int
	gen, seq uint64
	sent     int64
}

func TestModel(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    faults
	}{
		{"no faults", faults{}},
		{"loss", faults{lose: 100}},
		// Case invalidation-6.
		{"reordering and repetition", faults{repeat: 50, reorder: 100}},
		{"broken streams", faults{breaks: 200}},
		{"restarts", faults{restart: 100}},
		{"small log", faults{small: true, reorder: 20}},
		{"everything", faults{lose: 50, repeat: 50, reorder: 50, breaks: 50, restart: 50, small: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			worst := time.Duration(0)
			for seed := range uint64(10) {
				m := newModel(t, tt.f, seed)
				m.run(30 * time.Second)
				if m.worst > modelLease {
					t.Errorf("seed %d: a copy was served %v after its invalidation, want at most %v", seed, m.worst, modelLease)
				}
				worst = max(worst, m.worst)
				if tt.f == (faults{}) {
					m.checkQuiet(seed)
				}
				if m.hits*10 < m.reads {
					t.Errorf("seed %d: %d hits of %d reads: the model tests nothing", seed, m.hits, m.reads)
				}
			}
			t.Logf("worst staleness %v", worst)
		})
	}
}

// checkQuiet holds without faults: nothing is killed but what came before the first number, and no message is sent twice.
//
// Case invalidation-4.
// Case invalidation-5.
func (m *model) checkQuiet(seed uint64) {
	if m.badKills > 0 {
		m.t.Errorf("seed %d: %d kills without a fault", seed, m.badKills)
	}
	if limit := m.invalidations * len(m.readers); m.received > limit {
		m.t.Errorf("seed %d: %d messages for %d invalidations", seed, m.received, m.invalidations)
	}
	if m.worst > 50*time.Millisecond {
		m.t.Errorf("seed %d: a copy was served %v after its invalidation without a fault", seed, m.worst)
	}
}

func newModel(t *testing.T, f faults, seed uint64) *model {
	t.Helper()
	m := &model{t: t, r: rand.New(rand.NewPCG(seed, 1)), f: f, now: 1}
	m.startOwner(1)
	for range 10_000 {
		m.owner.log.Append(Event{Key: "before"})
	}
	for range 2 {
		r := &reader{copies: map[int]nearCopy{}, fetches: map[int][]*Fetch{}}
		m.readers = append(m.readers, r)
		m.renew(r)
	}
	return m
}

func (m *model) startOwner(incarnation uint64) {
	cfg := LogConfig{}
	if m.f.small {
		cfg.MaxEvents = 3
	}
	m.owner = &owner{incarnation: incarnation, log: NewLog(cfg), interest: NewInterest()}
}

// run drives readers, a writer and the streams for d.
func (m *model) run(d time.Duration) {
	for _, r := range m.readers {
		m.every(10*time.Millisecond, func() { m.get(r, m.r.IntN(modelKeys)) })
		m.every(modelLease/4, func() { m.renew(r) })
		m.every(5*time.Millisecond, func() { m.pump(r) })
	}
	m.every(50*time.Millisecond, func() { m.write(m.r.IntN(modelKeys + 5)) })
	for m.queue.Len() > 0 {
		e := heap.Pop(&m.queue).(timed)
		if e.at > int64(d) {
			return
		}
		m.now = e.at
		e.do()
	}
}

// write changes a key at the origin and invalidates it at the owner. Keys that nobody reads cost no event.
func (m *model) write(key int) {
	if key >= modelKeys {
		before := m.owner.log.Seq()
		m.invalidate(key)
		if m.owner.log.Seq() != before {
			m.t.Errorf("an event for a key that was never granted")
		}
		return
	}
	m.version[key]++
	m.changed[key] = append(m.changed[key], m.now)
	m.invalidate(key)
	m.invalidations++
}

func (m *model) invalidate(key int) {
	if m.owner.interest.Granted(modelHash(key)) {
		m.owner.log.Append(Event{Key: string(rune('a' + key))})
	}
}

// get serves a near copy, or fetches the key.
func (m *model) get(r *reader, key int) {
	m.reads++
	s := r.follower.State()
	c, ok := r.copies[key]
	if ok && c.gen == s.Gen && m.now < c.sent+int64(modelNear) && (m.now < s.LeaseUntil || m.now < c.sent+int64(modelLease)) {
		m.hits++
		if stale := m.changed[key][c.version:]; len(stale) > 0 {
			m.worst = max(m.worst, time.Duration(m.now-stale[0]))
		}
		return
	}
	f, sent := &Fetch{Gen: s.Gen}, m.now
	r.fetches[key] = append(r.fetches[key], f)
	o := m.owner
	m.after(m.delay(), func() {
		o.interest.Grant(modelHash(key), modelNear, m.now)
		seq := o.log.Seq()
		m.after(m.delay()/4, func() { // the number is read some time before the value
			version := m.version[key]
			m.after(m.delay(), func() { m.answer(r, key, f, sent, o.incarnation, seq, version) })
		})
	})
}

func (m *model) answer(r *reader, key int, f *Fetch, sent int64, incarnation, seq uint64, version int) {
	r.fetches[key] = slices.DeleteFunc(r.fetches[key], func(g *Fetch) bool { return g == f })
	if f.Installable(incarnation, seq, r.follower.State()) {
		r.copies[key] = nearCopy{version: version, gen: f.Gen, seq: seq, sent: sent}
	}
}

// renew sends a renewal, after it opened, broke or restarted what the faults say.
func (m *model) renew(r *reader) {
	if m.r.IntN(1000) < m.f.restart {
		m.startOwner(m.r.Uint64()) // new, but not higher: its clock may have been set back
	}
	s := r.stream
	if s != nil && (s.owner != m.owner || m.r.IntN(1000) < m.f.breaks) {
		s.sub.Close()
		r.stream = nil
		return // back with the next renewal
	}
	if s == nil {
		s = &stream{owner: m.owner, sub: m.owner.log.Subscribe("reader"), sent: map[uint64]int64{}}
		r.stream = s
		m.note(r.follower.Contact(m.owner.incarnation))
	}
	s.nonce++
	s.sent[s.nonce] = m.now
	nonce := s.nonce
	if m.r.IntN(1000) >= m.f.lose {
		m.after(m.delay(), func() { s.sub.Renew(nonce) })
	}
}

// pump is the stream's writer: it takes a batch and sends it through the faulty network.
func (m *model) pump(r *reader) {
	s := r.stream
	if s == nil || m.r.IntN(3) == 0 {
		return
	}
	b := new(Batch)
	if !s.sub.Take(b, 1+m.r.IntN(4)) || m.r.IntN(1000) < m.f.lose {
		return
	}
	at := max(s.lastAt, m.now+m.delay())
	s.lastAt = at
	if m.r.IntN(1000) < m.f.reorder {
		at += m.r.Int64N(int64(2 * time.Second))
	}
	m.at(at, func() { m.receive(r, s, b) })
	if m.r.IntN(1000) < m.f.repeat {
		m.after(m.r.Int64N(int64(2*time.Second)), func() { m.receive(r, s, b) })
	}
}

func (m *model) receive(r *reader, s *stream, b *Batch) {
	inc := s.owner.incarnation
	if b.Reset {
		m.note(r.follower.Reset(inc, b.Seq))
	}
	for _, e := range b.Events {
		a := r.follower.Inv(inc, e.Seq)
		m.note(a)
		if a.Ignore {
			continue
		}
		m.received++
		key := int(e.Key[0] - 'a')
		for _, f := range r.fetches[key] {
			f.Seen(e.Seq)
		}
		if c, ok := r.copies[key]; ok && c.seq < e.Seq {
			delete(r.copies, key)
		}
	}
	if b.Renewed {
		m.note(r.follower.Renewed(inc, b.Seq, s.sent[b.Nonce], modelLease))
	}
}

func (m *model) note(a Action) {
	if a.Kill != CauseNone && a.Kill != CauseFirst {
		m.badKills++
	}
}

// delay is a network delay: mostly about a millisecond, sometimes up to 400.
func (m *model) delay() int64 {
	if m.f != (faults{}) && m.r.IntN(100) == 0 {
		return m.r.Int64N(int64(400 * time.Millisecond))
	}
	return int64(200*time.Microsecond) + m.r.Int64N(int64(2*time.Millisecond))
}

func (m *model) every(d time.Duration, do func()) {
	m.after(m.r.Int64N(int64(2*d)), func() {
		do()
		m.every(d, do)
	})
}

func (m *model) after(d int64, do func()) { m.at(m.now+d, do) }

func (m *model) at(at int64, do func()) {
	m.order++
	heap.Push(&m.queue, timed{at, m.order, do})
}

func modelHash(key int) uint64 { return uint64(key+1) * 0x9e3779b97f4a7c15 }

type timed struct {
	at    int64
	order int
	do    func()
}

// eventQueue is a heap in the order of time.
type eventQueue []timed

func (q eventQueue) Len() int      { return len(q) }
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q eventQueue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].order < q[j].order
}
func (q *eventQueue) Push(x any) { *q = append(*q, x.(timed)) }
func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
