package transport

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nearcachev1 "github.com/nearcache/nearcache/proto/nearcache/v1"
)

// Kinds of operations, answers and failures that no version has yet: one that fits into the byte of Op, and one that does not.
const (
	newerKind  = 200
	newestKind = 256 + uint32(OpInvalidate)
)

// newer adds fields of a later version to m and to every message in it, and returns m.
func newer[M proto.Message](m M) M {
	extend(m.ProtoReflect())
	return m
}

func extend(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				extend(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			extend(v.Message())
		}
		return true
	})
	var b []byte
	b = protowire.AppendVarint(protowire.AppendTag(b, 100, protowire.VarintType), 1<<63)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 101, protowire.Fixed64Type), 7)
	b = protowire.AppendString(protowire.AppendTag(b, 102, protowire.BytesType), strings.Repeat("later", 100))
	b = protowire.AppendFixed32(protowire.AppendTag(b, 103, protowire.Fixed32Type), 7)
	m.SetUnknown(b)
}

func newerHello(member string) *nearcachev1.Hello {
	return &nearcachev1.Hello{
		Protocol: ProtocolVersion, Features: ^uint64(0), Cluster: []byte("test"), Member: []byte(member), Addr: []byte(member), Incarnation: 1,
	}
}

// A member of a later version, with features, fields, flags and operations that this one does not know, is answered what it asks for,
// and its streams stay.
func TestNewerClient(t *testing.T) {
	var asked []Op
	server := &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
		asked = append(asked, req.Op)
		rep.Status, rep.Value, rep.HasValue = StatusHit, []byte(req.Key), true
		if req.Op != OpGet {
			*rep = Reply{Status: StatusBusy}
		}
		return true
	}}
	pair(t, &node{}, server, func(t *bubble) {
		conn, err := t.a.dial("b")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		lane, err := conn.NewStream(ctx, laneDesc(), laneMethod)
		if err != nil {
			t.Fatal(err)
		}
		say(t, lane, &nearcachev1.RequestFrame{Hello: newerHello("n")}, &nearcachev1.ReplyFrame{})
		for range 3 {
			rep := &nearcachev1.ReplyFrame{}
			say(t, lane, &nearcachev1.RequestFrame{Requests: []*nearcachev1.Request{
				{Id: 1, Op: newerKind, Key: []byte("k")},
				{Id: 2, Op: uint32(OpGet), Flags: 1 << 31, Key: []byte("key"), BudgetUs: 1e6},
				{Id: 3, Op: newestKind, Key: []byte("k")},
				{Id: 4, Op: uint32(OpPing)},
			}}, rep)
			var got []uint32
			for _, r := range rep.GetReplies() {
				got = append(got, r.GetId(), r.GetStatus())
			}
			if want := []uint32{1, uint32(StatusBusy), 2, uint32(StatusHit), 3, uint32(StatusBusy), 4, uint32(StatusOK)}; !slices.Equal(got, want) || rep.GetAcked() != 1 {
				t.Errorf("got ids and states %v, acknowledged %d; want %v and 1", got, rep.GetAcked(), want)
			}
		}
		if want := []Op{newerKind, OpGet, 0}; len(asked) < 3 || !slices.Equal(asked[:3], want) {
			t.Errorf("the handler was asked %v, want %v again and again", asked, want)
		}
		cohere, err := conn.NewStream(ctx, cohereDesc(), cohereMethod)
		if err != nil {
			t.Fatal(err)
		}
		say(t, cohere, &nearcachev1.CohereUp{Hello: newerHello("n")}, &nearcachev1.CohereDown{})
		down := &nearcachev1.CohereDown{}
		if say(t, cohere, &nearcachev1.CohereUp{Nonce: 9}, down); !down.GetRenewed() || down.GetNonce() != 9 {
			t.Errorf("the renewal was answered %v", down)
		}
		alone := &nearcachev1.BulkReply{}
		req := &nearcachev1.BulkRequest{Hello: newerHello("n"), Request: &nearcachev1.Request{Op: uint32(OpGet), Key: []byte("key"), BudgetUs: 1e6}}
		if err := conn.Invoke(ctx, bulkMethod, newer(req), alone); err != nil || string(alone.GetReply().GetValue()) != "key" {
			t.Errorf("a request that travels alone: got %v, %v", alone, err)
		}
	})
}

// say sends a message of a later version and receives the answer.
func say(t *bubble, st grpc.ClientStream, m, answer proto.Message) {
	t.Helper()
	if err := st.SendMsg(newer(m)); err != nil {
		t.Fatal(err)
	}
	if err := st.RecvMsg(answer); err != nil {
		t.Fatal(err)
	}
}

// newerServer is a member of a later version, which says more than this one understands.
type newerServer struct{}

func (newerServer) lane(st grpc.ServerStream) error {
	out := &nearcachev1.ReplyFrame{Hello: newerHello("b")}
	for {
		in := &nearcachev1.RequestFrame{}
		if err := st.RecvMsg(in); err != nil {
			return err
		}
		for _, q := range in.GetRequests() {
			r := &nearcachev1.Reply{Id: q.GetId(), Flags: 1 << 31, Status: uint32(StatusHit), HasValue: true, Value: q.GetKey()}
			switch string(q.GetKey()) {
			case "newer":
				r.Status = newerKind
			case "newest":
				r.Status = newestKind
			case "failed":
				r.Status, r.Failure = uint32(StatusFailed), &nearcachev1.Failure{Kind: newestKind, Text: []byte("why")}
			case "large":
				r.Status, r.Size = uint32(StatusLarge), 1<<20
			}
			out.Replies = append(out.Replies, r)
			out.Acked = 1
		}
		if err := st.SendMsg(newer(out)); err != nil {
			return err
		}
		out = &nearcachev1.ReplyFrame{}
	}
}

func (newerServer) cohere(st grpc.ServerStream) error {
	out := &nearcachev1.CohereDown{Hello: newerHello("b")}
	for {
		in := &nearcachev1.CohereUp{}
		if err := st.RecvMsg(in); err != nil {
			return err
		}
		if in.GetNonce() == 1 {
			out.Invs = []*nearcachev1.Inv{{Seq: 5, Keyspace: []byte("ks"), Key: []byte("k")}}
			out.Revokes = []*nearcachev1.Revoke{{Keyspace: []byte("ks"), Key: []byte("k"), TokenNumber: 3}}
		}
		out.Renewed, out.Nonce = in.GetNonce() > 0, in.GetNonce()
		if err := st.SendMsg(newer(out)); err != nil {
			return err
		}
		out = &nearcachev1.CohereDown{}
	}
}

func (s newerServer) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: serviceName, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Bulk",
			Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				err := dec(&nearcachev1.BulkRequest{})
				large := &nearcachev1.Reply{Status: uint32(StatusHit), HasValue: true, Value: make([]byte, 1<<20)}
				return newer(&nearcachev1.BulkReply{Hello: newerHello("b"), Reply: large}), err
			},
		}},
		Streams: []grpc.StreamDesc{
			{StreamName: "Lane", ServerStreams: true, ClientStreams: true, Handler: func(_ any, st grpc.ServerStream) error { return s.lane(st) }},
			{StreamName: "Cohere", ServerStreams: true, ClientStreams: true, Handler: func(_ any, st grpc.ServerStream) error { return s.cohere(st) }},
		},
	}
}

// What a member of a later version answers and announces arrives without what this one does not know, and its streams stay.
func TestNewerServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var mu sync.Mutex
		var heard []Down
		asker := &node{received: func(_ *Peer, _ uint64, d *Down, _ time.Time) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, *d)
		}}
		a := start(m, "a", asker)
		srv := grpc.NewServer()
		srv.RegisterService(newerServer{}.desc(), nil)
		var wg sync.WaitGroup
		l := m.listen("b")
		wg.Go(func() { _ = srv.Serve(l) })
		p := connect(t, a)
		for range 3 {
			for key, want := range map[string]Status{
				"known": StatusHit, "newer": newerKind, "newest": 0, "failed": StatusFailed, "large": StatusHit,
			} {
				if rep, err := p.Do(t.Context(), get(key)); err != nil || rep.Status != want {
					t.Errorf("%s: got status %d, %v, want %d", key, rep.Status, err, want)
				}
			}
		}
		time.Sleep(time.Second)
		mu.Lock()
		if len(heard) < 4 || len(heard[0].Invs) != 1 || heard[0].Invs[0].Seq != 5 || len(heard[0].Revokes) != 1 || !heard[3].Renewed {
			t.Errorf("heard %+v", heard)
		}
		mu.Unlock()
		asker.mu.Lock()
		if want := []string{"connected b 1"}; !slices.Equal(asker.events, want) {
			t.Errorf("got %v, want %v", asker.events, want)
		}
		asker.mu.Unlock()
		if s := p.Status(); m.dials != 2 || s.Errors != 0 || s.Reason != "" { // a connection for large values
			t.Errorf("%d connections were made, want 2; %+v", m.dials, s)
		}
		shut(t, a)
		srv.Stop()
		wg.Wait()
	})
}
