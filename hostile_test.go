package nearcache_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/peers/peerstest"
	nearcachev1 "github.com/nearcache/nearcache/proto/nearcache/v1"
)

// hostile is a peer that says what it likes: a gRPC client of its own, which keeps none of the limits that a member keeps.
type hostile struct {
	tb   testing.TB
	conn *grpc.ClientConn
	ctx  context.Context //nolint:containedctx // that of its streams
	quit context.CancelFunc
	wg   sync.WaitGroup // its goroutines: leave waits for them

	mu     sync.Mutex // guards the fields below, and those of its lanes
	sent   map[string]map[string]bool
	tokens []token // that it was granted
}

type token struct{ incarnation, number uint64 }

// passing is a codec that passes bytes.
type passing struct{}

func (passing) Name() string { return "proto" }

func (passing) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (passing) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// newHostile makes a peer that dials addr, on a network or, if that is nil, over TCP.
func newHostile(tb testing.TB, network *peerstest.Network, addr string) *hostile {
	tb.Helper()
	h := &hostile{tb: tb, sent: make(map[string]map[string]bool)}
	dial := new(net.Dialer).DialContext
	if network != nil {
		dial = func(ctx context.Context, _, addr string) (net.Conn, error) { return network.Dial(ctx, addr) }
	}
	var err error
	h.conn, err = grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }),
		grpc.WithStaticStreamWindowSize(64<<10), // what it does not read itself is no memory of the other end
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(passing{}), grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		tb.Fatal(err)
	}
	h.ctx, h.quit = context.WithCancel(context.Background())
	return h
}

// leave ends everything of the peer.
func (h *hostile) leave() {
	h.quit()
	_ = h.conn.Close()
	h.wg.Wait()
}

func hello(member string) *nearcachev1.Hello {
	return &nearcachev1.Hello{
		Protocol: transport.ProtocolVersion, Cluster: []byte("nearcache"), Member: []byte(member), Addr: []byte("127.0.0.66:7946"),
		Incarnation: 1, MaxValueBytes: transport.MaxValueBytes,
	}
}

func encoded(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// alone sends a request that travels alone and returns the answer.
func (h *hostile) alone(message []byte) (answer []byte, err error) {
	err = h.conn.Invoke(h.ctx, nearcachev1.PeerService_Bulk_FullMethodName, message, &answer)
	return answer, err
}

// follow opens a coherence stream, reads what comes, and returns what sends on it.
func (h *hostile) follow() (send func(message []byte)) {
	st := h.stream(nearcachev1.PeerService_Cohere_FullMethodName)
	h.wg.Go(func() {
		for {
			var message []byte
			if st.RecvMsg(&message) != nil {
				return
			}
		}
	})
	return func(message []byte) { _ = st.SendMsg(message) }
}

func (h *hostile) stream(method string) grpc.ClientStream {
	h.tb.Helper()
	st, err := h.conn.NewStream(h.ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		h.tb.Fatal(err)
	}
	return st
}

// hostileLane is a lane of a hostile peer: it counts what is asked and what is answered, by id.
type hostileLane struct {
	h              *hostile
	st             grpc.ClientStream
	asked          map[uint32][]string // keys
	waiting, final map[uint32]int
	named          bool // it said who it is
	ended          error
}

// lane opens a lane; with read, its answers are read and judged.
func (h *hostile) lane(read bool) *hostileLane {
	h.tb.Helper()
	l := &hostileLane{h: h, st: h.stream(nearcachev1.PeerService_Lane_FullMethodName), asked: map[uint32][]string{}, waiting: map[uint32]int{}, final: map[uint32]int{}}
	if read {
		h.wg.Go(l.receive)
	}
	return l
}

// send sends a message, whatever it is. The lane may have ended.
func (l *hostileLane) send(message []byte) {
	var f nearcachev1.RequestFrame
	if proto.Unmarshal(message, &f) == nil {
		l.h.mu.Lock()
		l.named = l.named || f.GetHello() != nil
		for _, q := range f.GetRequests() {
			l.asked[q.GetId()] = append(l.asked[q.GetId()], string(q.GetKey()))
			l.h.noteLocked(q)
		}
		l.h.mu.Unlock()
	}
	_ = l.st.SendMsg(message)
}

// ask sends a frame of requests.
func (l *hostileLane) ask(reqs ...*nearcachev1.Request) {
	l.send(encoded(l.h.tb, &nearcachev1.RequestFrame{Requests: reqs}))
}

// noteLocked notes what the peer says that a key's value is.
func (h *hostile) noteLocked(q *nearcachev1.Request) {
	key := string(q.GetKey())
	if h.sent[key] == nil {
		h.sent[key] = make(map[string]bool)
	}
	h.sent[key][string(q.GetValue())] = true
}

// receive judges the answers until the lane ends.
func (l *hostileLane) receive() {
	for {
		var message []byte
		if err := l.st.RecvMsg(&message); err != nil {
			l.h.mu.Lock()
			l.ended = err
			l.h.mu.Unlock()
			return
		}
		var f nearcachev1.ReplyFrame
		if err := proto.Unmarshal(message, &f); err != nil {
			l.h.tb.Errorf("an answer cannot be decoded: %v", err)
		}
		l.h.mu.Lock()
		for _, r := range f.GetReplies() {
			l.judgeLocked(r)
		}
		l.h.mu.Unlock()
	}
}

func (l *hostileLane) judgeLocked(r *nearcachev1.Reply) {
	id, kind := r.GetId(), l.final
	if transport.Status(r.GetStatus()) == transport.StatusWaiting {
		kind = l.waiting
	}
	if kind[id]++; kind[id] > len(l.asked[id]) {
		l.h.tb.Errorf("id %d was asked %d times, and answered %d times", id, len(l.asked[id]), kind[id])
	}
	l.h.grantedLocked(r)
	if !r.GetHasValue() {
		return
	}
	for _, key := range l.asked[id] {
		if l.h.ownLocked(key, string(r.GetValue())) {
			return
		}
	}
	l.h.tb.Errorf("id %d asked for %.60q: got %.60q", id, l.asked[id], r.GetValue())
}

func (h *hostile) grantedLocked(r *nearcachev1.Reply) {
	if transport.Status(r.GetStatus()) == transport.StatusLease {
		h.tokens = append(h.tokens, token{r.GetTokenIncarnation(), r.GetTokenNumber()})
	}
}

// ownLocked tells whether a value is one of the key: the loader's, or one that the peer gave it.
func (h *hostile) ownLocked(key, value string) bool { return value == "of "+key || h.sent[key][value] }

// owed returns the ids that have no answer; with settled, waiting is none.
func (l *hostileLane) owed(settled bool) (ids []uint32) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if l.ended != nil {
		return nil
	}
	for id, keys := range l.asked {
		n := l.final[id]
		if !settled {
			n += l.waiting[id]
		}
		if n < len(keys) {
			ids = append(ids, id)
		}
	}
	return ids
}

// end returns what ended the lane; nil: it is up.
func (l *hostileLane) end() error {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.ended
}

// answeredUnnamed tells whether somebody who did not say who it is was answered.
func (l *hostileLane) answeredUnnamed() bool {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return !l.named && len(l.final)+len(l.waiting) > 0
}
