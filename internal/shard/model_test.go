package shard

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/tag"
)

// model runs a Shard and a naive beside each other and compares all they say.
type model struct {
	t     *testing.T
	rnd   *rand.Rand
	s     *Shard
	n     *naive
	keys  []string
	now   int64
	step  int
	names int

	queued map[any]string // who waits, and for which key
	tokens []grantedToken // all ever seen, in the order of their grants
	grants map[Token]int  // number of the naive's lease
	began  map[int]int    // step at which the lease was granted
	hurt   map[string]int // step of the key's last invalidation, Set or removal
}

type grantedToken struct {
	key   string
	token Token
	grant int
}

// Every operation against a second implementation, with what must hold whatever both of them think:
// a fill whose lease began before an invalidation is never stored; whoever waits is woken exactly once; a token is
// never given twice.
func TestModel(t *testing.T) {
	for seed := range uint64(49) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { runModel(t, seed, 2000) })
	}
}

func runModel(t *testing.T, seed uint64, steps int) {
	t.Helper()
	m := &model{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), now: 1,
		queued: map[any]string{}, grants: map[Token]int{}, began: map[int]int{}, hurt: map[string]int{},
	}
	for i := range 1 + seed%7 {
		m.keys = append(m.keys, fmt.Sprint("key", i))
	}
	m.n = newNaive(m.keys)
	m.n.patience, m.n.retry = 30, 50
	m.s = newTest(Config{Patience: m.n.patience, Retry: m.n.retry, Cap: func(string, int64) time.Duration { return time.Duration(m.n.cap) }})
	for m.step = 1; m.step <= steps; m.step++ {
		m.op()
		m.compareState()
		if t.Failed() {
			t.Fatalf("at step %d", m.step)
		}
	}
	m.drain()
}

func (m *model) key() string { return m.keys[m.rnd.IntN(len(m.keys))] }

func (m *model) member() string { return string(rune('a' + m.rnd.IntN(3))) }

// token is mostly the last one given.
func (m *model) token() (key string, token Token, grant int) {
	if len(m.tokens) == 0 {
		return m.key(), Token{}, 0
	}
	back := m.rnd.IntN(min(len(m.tokens), 1+m.rnd.IntN(8)))
	g := m.tokens[len(m.tokens)-1-back]
	return g.key, g.token, g.grant
}

func (m *model) value() Value {
	life := m.rnd.Int64N(400) - 20
	v := Value{Bytes: fmt.Appendf(nil, "v%d", m.step), LoadedAt: m.now, Soft: m.now + life, Hard: m.now + life}
	if m.rnd.IntN(3) == 0 {
		v.Hard += m.rnd.Int64N(200)
	}
	if m.rnd.IntN(3) == 0 {
		v.Version = 1 + m.rnd.Uint64N(uint64(m.step)/100+5)
	}
	v.Absent = m.rnd.IntN(5) == 0
	switch m.rnd.IntN(4) { // else its tags are not known
	case 0:
		v.Mark = tag.Of([]uint64{m.tag(), m.tag()})
	case 1, 2:
		v.Mark = tag.Of(nil)
	}
	return v
}

func (m *model) tag() uint64 { return m.rnd.Uint64N(4) }

func (m *model) version() uint64 {
	if m.rnd.IntN(3) > 0 {
		return 0
	}
	return 1 + m.rnd.Uint64N(uint64(m.step)/100+5)
}

func (m *model) viewNumber() uint64 {
	return m.n.view + m.rnd.Uint64N(20)/19 - min(m.n.view, m.rnd.Uint64N(10)/9)
}

func (m *model) op() {
	switch p := m.rnd.IntN(100); {
	case p < 35:
		m.acquire()
	case p < 55:
		m.fill()
	case p < 65:
		m.release()
	case p < 70:
		m.set()
	case p < 77:
		key, least := m.key(), m.version()
		m.effect("invalidate", m.s.Invalidate(key, least, m.now), m.n.invalidate(key, least, m.now))
		m.hurt[key] = m.step
	case p < 79:
		key, least := m.key(), m.version()
		m.effect("expire", m.s.Expire(key, least, m.now), m.n.expire(key, least, m.now))
		m.hurt[key] = m.step
	case p < 81:
		key, who := m.key(), m.someone()
		want := m.queued[who] == key
		if got := m.s.Leave(key, who); got != want {
			m.t.Errorf("Leave(%s, %v): got %v, want %v", key, who, got, want)
		}
		if want {
			m.n.forget(func(w any) bool { return w == who })
			delete(m.queued, who)
		}
	case p < 82:
		gone := m.tag()
		m.s.InvalidateTags([]uint64{gone}, m.now)
		m.n.tags = append(m.n.tags, gone)
	case p < 97:
		m.time()
	default:
		m.rare()
	}
}

func (m *model) acquire() {
	key := m.key()
	m.names++
	a := Ask{
		Holder: m.member(), Waiter: &person{fmt.Sprintf("w%06d", m.names)}, Life: 1 + m.rnd.Int64N(200),
		Until: m.now + m.rnd.Int64N(150), Fresh: m.rnd.IntN(6) == 0, Ahead: m.rnd.IntN(6) == 0, View: m.viewNumber(),
	}
	m.n.cap = 0
	if m.rnd.IntN(4) == 0 {
		m.n.cap = 1 + m.rnd.Int64N(100)
	}
	got, want := m.s.Acquire(key, a, m.now), m.n.acquire(key, a, m.now)
	if got.Kind == Waiting {
		m.queued[a.Waiter] = key
	}
	want.who = a.Waiter
	m.result("acquire", Wake{a.Waiter, got}, want, key)
}

func (m *model) fill() {
	key, token, grant := m.token()
	v := m.value()
	keep := m.rnd.IntN(6) > 0
	op := m.s.Pass
	if keep {
		op = m.s.Fill
	}
	got := op(key, token, v, m.now)
	if got.Outcome == Stored && m.began[grant] < m.hurt[key] {
		m.t.Errorf("fill of %s: stored, by a lease of step %d, after an invalidation in step %d", key, m.began[grant], m.hurt[key])
	}
	m.effect("fill", got, m.n.fill(key, grant, v, m.now, keep))
}

func (m *model) release() {
	key, token, grant := m.token()
	cause := Cause(1 + m.rnd.IntN(3))
	m.effect("release", m.s.Release(key, token, cause, m.step, m.now), m.n.release(key, grant, cause, m.step, m.now))
}

func (m *model) set() {
	key, v := m.key(), m.value()
	c := Cond{IfAbsent: m.rnd.IntN(4) == 0, IfPresent: m.rnd.IntN(4) == 0, View: m.viewNumber()}
	got := m.s.Set(key, v, c, m.now)
	if got.Outcome == Stored || got.Outcome == Passed {
		m.hurt[key] = m.step
	}
	m.effect("set", got, m.n.set(key, v, c, m.now))
}

func (m *model) time() {
	m.now += m.rnd.Int64N(15)
	if m.rnd.IntN(2) == 0 {
		m.effect("tick", m.s.Tick(m.now), m.n.tick(m.now))
	}
}

func (m *model) rare() {
	switch m.rnd.IntN(10) {
	case 0:
		m.effect("clear", m.s.Clear(m.now), m.n.clear(m.now))
		for _, key := range m.keys {
			m.hurt[key] = m.step
		}
	case 1:
		view := m.n.view + 1
		gone := m.rnd.Uint64()
		fate := func(key string) Fate {
			return [...]Fate{Stays, Stays, Lost, Elsewhere}[gone>>(2*(key[len(key)-1]-'0'))&3]
		}
		c := Change{View: view, Fate: fate, Now: m.now, Until: m.now + m.rnd.Int64N(300)}
		m.effect("move", m.s.Move(c), m.n.move(c))
	case 2:
		gone := func(w any) bool { return w.(*person).name[6]%3 == 0 }
		got, want := m.s.Forget(gone), m.n.forget(gone)
		if got != want {
			m.t.Errorf("Forget: got %d, want %d", got, want)
		}
		for w := range m.queued {
			if gone(w) {
				delete(m.queued, w)
			}
		}
	case 3:
		key, token, grant := m.token()
		asker := &person{fmt.Sprintf("h%06d", m.names)}
		m.effect("hold", m.s.Hold(key, token, asker, m.now), m.n.hold(key, grant, asker, m.now))
	case 6:
		gone := func(a any) bool { return a.(*person).name[6]%3 == 0 }
		until := m.now + m.rnd.Int64N(150)
		m.s.AskerGone(gone, until)
		m.n.askerGone(gone, until)
	case 7:
		holder := m.member()
		m.effect("held all", m.s.HeldAll(holder, m.now), m.n.heldAll(holder, m.now))
	case 8:
		m.effect("expire all", m.s.ExpireAll(m.now), m.n.expireAll(m.now))
		for _, key := range m.keys {
			m.hurt[key] = m.step
		}
	case 4, 5:
		holder, until := m.member(), m.now+m.rnd.Int64N(150)
		m.s.HolderGone(holder, until)
		m.n.holderGone(holder, until)
	default:
		holder := m.member()
		m.s.HolderBack(holder)
		m.n.holderBack(holder)
	}
}

// someone is one of those who wait, or nobody.
func (m *model) someone() any {
	who := make([]any, 0, len(m.queued)+1)
	for w := range m.queued {
		who = append(who, w)
	}
	slices.SortFunc(who, func(a, b any) int { return cmp.Compare(a.(*person).name, b.(*person).name) })
	who = append(who, &person{"nobody"})
	return who[m.rnd.IntN(len(who))]
}

// result compares one answer.
func (m *model) result(op string, got Wake, want nwake, key string) {
	r := got.Result
	plain := nwake{who: got.Waiter, kind: r.Kind, why: r.Failure, grant: want.grant}
	if r.Kind == Hit {
		plain.text, plain.keep = string(r.Value.Bytes), !r.Uncached
	}
	if (r.Kind == Lease || r.Kind == Stale) && r.Value != nil {
		plain.text = string(r.Value.Bytes)
	}
	plain.lapsed = r.Lapsed
	if r.Kind == Lease {
		if _, twice := m.grants[r.Token]; twice {
			m.t.Errorf("%s: token %v given twice", op, r.Token)
		}
		m.grants[r.Token] = want.grant
		m.began[want.grant] = m.step
		m.tokens = append(m.tokens, grantedToken{key, r.Token, want.grant})
	}
	if plain != want {
		m.t.Errorf("%s: got %+v, want %+v", op, plain, want)
	}
}

// effect compares what an operation did.
func (m *model) effect(op string, got Effect, want neffect) {
	if got.Outcome != want.outcome {
		m.t.Errorf("%s: got outcome %d, want %d", op, got.Outcome, want.outcome)
	}
	var revoked []int
	for _, r := range got.Revoked {
		revoked = append(revoked, m.grants[r.Token])
	}
	slices.Sort(revoked)
	slices.Sort(want.revoked)
	if !slices.Equal(revoked, want.revoked) {
		m.t.Errorf("%s: got revoked %v, want %v", op, revoked, want.revoked)
	}
	slices.SortFunc(got.Wakes, func(a, b Wake) int {
		return cmp.Compare(a.Waiter.(*person).name, b.Waiter.(*person).name)
	})
	slices.SortFunc(want.wakes, func(a, b nwake) int { return cmp.Compare(a.who.(*person).name, b.who.(*person).name) })
	if len(got.Wakes) != len(want.wakes) {
		m.t.Errorf("%s: got wakes %q, want %v", op, wakes(got.Wakes), want.wakes)
		return
	}
	for i, w := range got.Wakes {
		key, ok := m.queued[w.Waiter]
		if !ok {
			m.t.Errorf("%s: %v was woken, and does not wait", op, w.Waiter)
		}
		delete(m.queued, w.Waiter)
		m.result(op, w, want.wakes[i], key)
	}
}

// compareState compares what can be read.
func (m *model) compareState() {
	for _, key := range m.keys {
		k := m.n.keys[key]
		var want *Value
		if m.n.fresh(k, m.now) {
			want = k.value
		}
		if got, _ := m.s.Get(key, m.now); !equal(got, want) {
			m.t.Errorf("Get(%s): got %v, want %v", key, got, want)
		}
		want = nil
		if k.kept(m.now) {
			want = k.value
		}
		if got, _ := m.s.Peek(key, m.now); !equal(got, want) {
			m.t.Errorf("Peek(%s): got %v, want %v", key, got, want)
		}
		want = nil
		if k.aside.value != nil && m.now < k.aside.until && m.now < k.aside.value.Soft && !m.n.dead(k.aside.value, k.aside.since) {
			want = k.aside.value
		}
		if got, _, _ := m.s.Aside(key, m.now); !equal(got, want) {
			m.t.Errorf("Aside(%s): got %v, want %v", key, got, want)
		}
		at, least := m.s.Invalidated(key)
		wantAt := m.n.floor
		if k.known {
			wantAt = k.at
		}
		if at != wantAt || least != k.least {
			m.t.Errorf("Invalidated(%s): got %d, %d, want %d, %d", key, at, least, wantAt, k.least)
		}
	}
	st := m.s.Stats()
	leases, waiters := m.n.counts()
	if st.Leases != leases || st.Waiters != waiters || int(waiters) != len(m.queued) {
		m.t.Errorf("got %d leases, %d waiters, want %d, %d; %d wait", st.Leases, st.Waiters, leases, waiters, len(m.queued))
	}
	var bytes int64
	for key, v := range m.s.Range {
		bytes += int64(len(key)) + int64(len(v.Bytes)) + v.Mark.Bytes() + store.EntryOverhead
		if v.Vouched != 0 || v.Version != 0 || v.Mark != (tag.Mark{}) || v.Absent {
			bytes += restBytes
		}
	}
	if st.Bytes != bytes {
		m.t.Errorf("bytes: got %d, want %d", st.Bytes, bytes)
	}
}

// equal compares values but for the position in their marks, which only the Shard has.
func equal(got, want *Value) bool {
	if got == nil || want == nil {
		return got == want
	}
	g, w := *got, *want
	g.Mark, w.Mark = tag.Mark{}, tag.Mark{}
	return reflect.DeepEqual(g, w)
}

// drain lets everything come to its end.
func (m *model) drain() {
	for range 1000 {
		m.now += 200
		m.effect("tick", m.s.Tick(m.now), m.n.tick(m.now))
	}
	wantIdle(m.t, m.s)
	if len(m.queued) != 0 {
		m.t.Errorf("%d wait for ever", len(m.queued))
	}
	m.s.Clear(m.now)
	if st := m.s.Stats(); st.Entries != 0 || st.Bytes != 0 {
		m.t.Errorf("got %d entries, %d bytes, want none", st.Entries, st.Bytes)
	}
}
