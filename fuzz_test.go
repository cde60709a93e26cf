package nearcache_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/peers"
	nearcachev1 "github.com/nearcache/nearcache/proto/nearcache/v1"
)

// script is what a fuzzed peer does, read byte by byte; what is missing is 0.
type script struct{ rest []byte }

func (s *script) next() int {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return int(b)
}

func (s *script) take(n int) []byte {
	n = min(n, len(s.rest))
	b := s.rest[:n]
	s.rest = s.rest[n:]
	return b
}

// amount is a number of any order of magnitude below 2^22: of microseconds, 4 s.
func (s *script) amount() uint64 {
	b := s.next()
	return uint64(b&7+8) << (b >> 3) >> 3 & (1<<22 - 1)
}

// The steps of a script. The lower two bits choose one of two lanes; larger numbers stand for stepFrame.
const (
	stepFrame      = iota // some requests
	stepRaw               // any bytes on a lane
	stepPause             // fake time
	stepGet               // the application of the node asks
	stepInvalidate        // and invalidates
	stepBulk              // a request that travels alone
	stepCohere            // any bytes on a coherence stream
	stepReopen            // the lane ends, and another one begins
	steps
)

// The head of a script.
const (
	headListed    = 1 << iota // the peer is on the node's list, and owns a part of the keys
	headAnonymous             // no stream begins with a hello
	headClose                 // in the end the keyspace closes; else the peer leaves
)

// invaded is a node, its application and its hostile peer.
type invaded struct {
	*hostile
	t       *testing.T
	node    *nearcache.Node
	caches  []*nearcache.Cache[string]
	head    int
	lanes   [2]*hostileLane
	cohere  func(message []byte) // sends; nil: there is no stream
	callers sync.WaitGroup
	paused  time.Duration
}

func invade(t *testing.T, head int) *invaded {
	t.Helper()
	list := peers.NewList()
	c := testcluster.Bubble(t, 1, func(_ int, cfg *nearcache.NodeConfig) { cfg.Discovery = list })
	v := &invaded{t: t, node: c.Nodes[0], head: head}
	if head&headListed != 0 {
		list.Set(peers.Member{ID: "n0", Addr: v.node.Addr()}, peers.Member{ID: "evil", Addr: "127.0.0.66:7946"})
	}
	for _, name := range []string{"a", "b"} {
		cache, err := nearcache.New(v.node, name, nearcache.Config[string]{
			LoadTimeout: 2 * time.Second, LoadQueueTimeout: time.Second, MaxLoads: 2, MaxValueBytes: 100 << 10,
			Load: func(_ context.Context, key string) (string, error) {
				time.Sleep(10 * time.Millisecond)
				return "of " + key, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		v.caches = append(v.caches, cache)
	}
	v.hostile = newHostile(t, c.Network, v.node.Addr())
	v.open(0)
	v.open(1)
	synctest.Wait()
	for i, l := range v.lanes {
		if err := l.end(); err != nil {
			t.Errorf("lane %d ended at once: %v", i, err)
		}
	}
	return v
}

func (v *invaded) open(i int) {
	v.lanes[i] = v.lane(true)
	if v.head&headAnonymous == 0 {
		v.lanes[i].send(encoded(v.t, &nearcachev1.RequestFrame{Hello: hello("evil")}))
	}
}

func scriptKey(i int) string { return fmt.Sprint("key", i%5) }

// request reads a request: mostly of a kind that there is, with a token that the peer was granted, for one of a few keys.
func (v *invaded) request(s *script) *nearcachev1.Request {
	what, which := s.next(), s.next()
	q := &nearcachev1.Request{
		Id: uint32(which >> 4), Op: uint32(what & 7), Flags: uint32(s.next() | what>>7<<8), Keyspace: []byte{"ab"[which&1]}, Key: []byte(scriptKey(which >> 1 & 7)),
		BudgetUs: s.amount(), LeaseLifeUs: s.amount() << 10, NearUs: s.amount(), AgeUs: s.amount(), TtlUs: s.amount(), Version: uint64(s.next()),
	}
	switch transport.Op(q.GetOp()) {
	case transport.OpFill, transport.OpSet, transport.OpRelease:
		q.HasValue, q.Value = true, fmt.Appendf(nil, "%d for %s", which, q.GetKey())
		if what&8 != 0 {
			q.Value = append(q.Value, strings.Repeat("x", s.next()<<9)...)
		}
		q.Failure = &nearcachev1.Failure{Kind: uint32(s.next() % 10), Code: []byte("own"), Text: []byte("text")}
		v.mu.Lock()
		if n := len(v.tokens); n > 0 {
			t := v.tokens[n-1-s.next()%n]
			q.TokenIncarnation, q.TokenNumber = t.incarnation, t.number
		}
		v.mu.Unlock()
	case transport.OpInvalidate:
		q.Key = nil
		for range s.next() % 4 {
			q.Keys = append(q.Keys, []byte(scriptKey(s.next())))
		}
	}
	return q
}

// run does what the script says.
func (v *invaded) run(s *script) {
	for len(s.rest) > 0 {
		b := s.next()
		i := b & 1
		switch b >> 1 % steps {
		default:
			reqs := make([]*nearcachev1.Request, s.next()%8)
			for i := range reqs {
				reqs[i] = v.request(s)
			}
			v.lanes[i].ask(reqs...)
		case stepRaw:
			v.lanes[i].send(s.take(s.next()))
		case stepPause:
			d := time.Duration(s.amount()) * time.Microsecond
			if v.paused += d; v.paused < 20*time.Second {
				time.Sleep(d)
			}
		case stepGet:
			v.get(v.caches[i], scriptKey(s.next()))
		case stepInvalidate:
			v.callers.Go(func() { _ = v.caches[i].Invalidate(v.t.Context(), scriptKey(0)) }) // the hostile owner does not confirm
		case stepBulk:
			v.bulk(v.request(s))
		case stepCohere:
			v.follow(s.take(s.next()))
		case stepReopen:
			_ = v.lanes[i].st.CloseSend()
			v.open(i)
		}
		synctest.Wait()
	}
}

// get is a caller of the application: it gets its own key's value or an error, in time.
func (v *invaded) get(c *nearcache.Cache[string], key string) {
	v.callers.Go(func() {
		began := time.Now()
		got, err := c.Get(v.t.Context(), key)
		if took := time.Since(began); took > 10*time.Second {
			v.t.Errorf("a Get took %v", took)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if err == nil && !v.ownLocked(key, got) {
			v.t.Errorf("a Get of %q: got %.60q", key, got)
		}
	})
}

func (v *invaded) bulk(q *nearcachev1.Request) {
	m := &nearcachev1.BulkRequest{Hello: hello("evil"), Request: q}
	if v.head&headAnonymous != 0 {
		m.Hello = nil
	}
	v.mu.Lock()
	v.noteLocked(q)
	v.mu.Unlock()
	message := encoded(v.t, m)
	v.wg.Go(func() { _, _ = v.alone(message) })
}

func (v *invaded) follow(message []byte) {
	if v.cohere == nil {
		v.cohere = v.hostile.follow()
		message = encoded(v.t, &nearcachev1.CohereUp{Hello: hello("evil"), Nonce: 1})
	}
	v.cohere(message)
}

// settle checks that the lanes are not blocked and that every request has its answer, before and after the end.
func (v *invaded) settle() {
	const last = 1 << 20
	for _, l := range v.lanes {
		l.ask(&nearcachev1.Request{Id: last, Op: uint32(transport.OpPing)})
	}
	synctest.Wait()
	for i, l := range v.lanes {
		if ids := l.owed(false); ids != nil {
			v.t.Errorf("lane %d: no answer to %v", i, ids)
		}
		if l.answeredUnnamed() {
			v.t.Errorf("lane %d was answered without a hello", i)
		}
	}
	v.callers.Wait()
	if v.head&headClose != 0 {
		for _, c := range v.caches {
			if err := c.Close(v.t.Context()); err != nil {
				v.t.Errorf("closing a keyspace: %v", err)
			}
		}
		time.Sleep(2 * time.Second) // a forwarded invalidation takes a Bound at most
		for i, l := range v.lanes {
			if ids := l.owed(true); ids != nil {
				v.t.Errorf("lane %d: the keyspace is closed, and %v still wait", i, ids)
			}
		}
	}
	v.leave()
	time.Sleep(8 * time.Second)
	if busy := testcluster.Busy(v.node.Stats()); busy != "" {
		v.t.Errorf("left: %s", busy)
	}
}

// seeds are scripts without their heads.
func seeds() [][]byte {
	const half, two = 19 << 3, 21 << 3 // amounts: seconds
	req := func(op transport.Op, which byte, extra ...byte) []byte {
		return append([]byte{byte(op), which, 0, two, two, half, 0, two, 1}, extra...)
	}
	frame := func(lane byte, reqs ...[]byte) []byte {
		return append([]byte{stepFrame<<1 | lane, byte(len(reqs))}, slices.Concat(reqs...)...)
	}
	var (
		pause    = []byte{stepPause << 1, half}
		local    = []byte{stepGet << 1, 1}
		tell     = []byte{stepInvalidate << 1}
		get      = req(transport.OpGet, 1<<1|1<<4)
		again    = req(transport.OpGet, 1<<1|2<<4)
		other    = req(transport.OpGet, 3<<1|10<<4)
		fill     = req(transport.OpFill, 1<<1|3<<4, 0, 0)
		large    = append([]byte{byte(transport.OpFill) | 8}, req(transport.OpFill, 1<<1, 150, 0, 0)[1:]...)
		release  = req(transport.OpRelease, 1<<1|4<<4, byte(transport.FailureLoad), 0)
		set      = req(transport.OpSet, 2<<1|5<<4, 0)
		peek     = req(transport.OpPeek, 2<<1|6<<4)
		drop     = req(transport.OpInvalidate, 7<<4, 3, 0, 1, 2)
		all      = append([]byte{byte(transport.OpInvalidate), 9 << 4, byte(transport.FlagAll)}, drop[3:]...)
		odd      = req(0, 8<<4)
		bulk     = func(r []byte) []byte { return append([]byte{stepBulk << 1}, r...) }
		reopen   = []byte{stepReopen << 1}
		follow   = []byte{stepCohere << 1, 2, 0x18, 5}
		nonsense = []byte{stepRaw << 1, 6, 0x1a, 0xff, 0xff, 0xff, 0xff, 0x01}
	)
	return [][]byte{
		slices.Concat(frame(0, get, again, again), frame(1, again), local, frame(0, fill), pause, frame(0, get, peek)),
		slices.Concat(local, pause, frame(0, get, other), frame(1, other), pause),
		slices.Concat(frame(0, get, again), local, frame(1, release), frame(0, fill, release), local),
		slices.Concat(frame(1, set, peek, odd, drop), local, tell, frame(1, get, drop, again, all), pause),
		slices.Concat(follow, follow, bulk(get), frame(0, again), bulk(large), pause, frame(0, get), tell),
		slices.Concat(frame(0, get), frame(1, again), reopen, pause, pause, pause, frame(0, again), local),
		slices.Concat(frame(0, get, again, again, again), tell, pause, nonsense, frame(0, again), frame(1, again)),
	}
}

// FuzzPeer lets a peer do what it likes to a node: send frames of any operations and any bytes on lanes, coherence streams and alone, with
// a hello or without, while the application of the node reads and invalidates the same keys. Nothing panics, no lane is
// blocked, every request is answered once, nobody gets another key's value, and nothing is left when the peer has gone: no lease, no
// flight, no load, no goroutine (the bubble would not end).
func FuzzPeer(f *testing.F) {
	for _, head := range []byte{0, headListed, headAnonymous, headClose, headListed | headClose} {
		f.Add([]byte{head})
		for _, seed := range seeds() {
			f.Add(append([]byte{head}, seed...))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			s := &script{rest: data}
			v := invade(t, s.next())
			v.run(s)
			v.settle()
		})
	})
}
