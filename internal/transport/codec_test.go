package transport

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	nearcachev1 "github.com/nearcache/nearcache/proto/nearcache/v1"
)

var update = flag.Bool("update", false, "rewrite the golden vectors")

// golden returns messages as they are on the wire for ever: one of every kind, and the values that are easily mixed up.
func golden() []struct {
	name  string
	frame any
} {
	h := &hello{Protocol: 1, Features: 5, Cluster: "prod", Member: "a", Addr: "[::1]:7946", Incarnation: 1 << 60, View: 7, MaxValueBytes: 1 << 20}
	fill := &Request{
		Op: OpFill, Flags: FlagNear | FlagUncached, Keyspace: "users", Key: "\xff\x00key", Budget: 50 * time.Millisecond, LeaseLife: time.Second, Near: time.Minute,
		Version: 9, Hot: 300, Token: Token{1 << 60, 17}, Age: 3 * time.Microsecond, TTL: 5 * time.Minute, StaleFor: time.Hour,
		Epoch: 2, TagPos: 1 << 40, Tags: []string{"t1", ""}, Failure: Failure{FailureLoad, "gone", "no such row", "b"}, HasValue: true, Value: []byte("v"),
	}
	return []struct {
		name  string
		frame any
	}{
		{"empty-requests", &requestFrame{}},
		{"hello", &requestFrame{Hello: h, View: 7}},
		{"hello-replicas", &requestFrame{Hello: &hello{Protocol: 1, Member: "a", Incarnation: 1, Replicas: 2}, View: 7}},
		{"get", &requestFrame{View: 7, IDs: []uint32{1}, Reqs: []*Request{{Op: OpGet, Keyspace: "users", Key: "42", Budget: 50 * time.Millisecond}}}},
		{"fill-and-invalidate", &requestFrame{IDs: []uint32{2, 1 << 31}, Reqs: []*Request{fill, {
			Op: OpInvalidate, Flags: FlagForwarded, Keyspace: "users", Budget: time.Microsecond, Keys: []string{"a", "", "b"},
		}}}},
		{"empty-value", &requestFrame{IDs: []uint32{3}, Reqs: []*Request{{Op: OpSet, Key: "k", Budget: time.Second, HasValue: true, Value: []byte{}}}}},
		{"replies", &replyFrame{
			Hello: h, View: 7, Acked: 2, InView: true, Draining: true, IDs: []uint32{1, 2, 3, 4},
			Reps: []Reply{
				{Status: StatusHit, Seq: 1000, Age: time.Second, TTL: time.Minute, Near: time.Second, Version: 3, Rate: 12, Epoch: 1, HasValue: true, Value: []byte("hello")},
				{Status: StatusLease, Flags: ReplyUncached, Token: Token{1 << 60, 18}, Life: 13 * time.Second, TagPos: 4},
				{Status: StatusFailed, Failure: Failure{Kind: FailureTimeout, Text: "slow", Member: "c"}, Failed: []uint32{0, 300}},
				{Status: StatusLarge, Size: 1 << 20},
			},
		}},
		{"empty-value-reply", &replyFrame{IDs: []uint32{1}, Reps: []Reply{{Status: StatusHit, HasValue: true, Value: []byte{}}}}},
		{"tagged-reply", &replyFrame{IDs: []uint32{1}, Reps: []Reply{
			{Status: StatusHit, Flags: ReplyTagged, HasValue: true, Value: []byte("v"), Tags: []uint64{0, 1 << 63, 0x49d1c0a090495e3}},
		}}},
		{"waited-reply", &replyFrame{IDs: []uint32{1}, Reps: []Reply{{Status: StatusHit, Flags: ReplyLoaded, Age: 2 * time.Second, Waited: time.Second, HasValue: true, Value: []byte("v")}}}},
		{"renew", &cohereUp{Hello: h, View: 7, Nonce: 99}},
		{"down", &cohereDown{h, Down{
			Reset: true, Seq: 41, Invs: []Inv{{Seq: 40, Keyspace: "users", Key: "42"}, {Seq: 41, Keyspace: "users", All: true, Epoch: 3, Tags: []string{"t1"}}},
			Revokes: []Revoke{{"users", "42", Token{1 << 60, 17}}}, Renewed: true, Nonce: 99, NearLease: time.Second, InView: true, View: 7,
			Silent: []Silence{{"c", 1500 * time.Millisecond}, {"", 0}},
		}}},
		{"bulk-request", &bulkRequest{h, 7, *fill}},
		{"bulk-reply", &bulkReply{h, 7, Reply{Status: StatusStale, HasValue: true, Value: bytes.Repeat([]byte{0xab}, scatterBytes)}}},
	}
}

func kindOf(f any) kind {
	for _, k := range kinds() {
		if reflect.TypeOf(k.frame()) == reflect.TypeOf(f) {
			return k
		}
	}
	panic(fmt.Sprintf("no kind for %T", f))
}

func TestGoldenVectors(t *testing.T) {
	c := newCodec(&bufferPool{})
	for _, g := range golden() {
		t.Run(g.name, func(t *testing.T) {
			path := filepath.Join("testdata", "wire", g.name+".hex")
			b := encode(t, c, g.frame)
			if *update {
				var lines strings.Builder
				for rest := b; len(rest) > 0; rest = rest[min(40, len(rest)):] {
					lines.WriteString(hex.EncodeToString(rest[:min(40, len(rest))]) + "\n")
				}
				if err := os.WriteFile(path, []byte(lines.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, want) {
				t.Errorf("encoded\n got %x\nwant %x", b, want)
			}
			k := kindOf(g.frame)
			f := k.frame()
			if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(want)}, f); err != nil {
				t.Fatal(err)
			}
			if got, want := k.plain(f), k.plain(g.frame); !reflect.DeepEqual(got, want) {
				t.Errorf("decoded\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestDurationsOnTheWire(t *testing.T) {
	c := newCodec(&bufferPool{})
	const us = time.Microsecond
	for _, tc := range []struct{ in, life, age, budget time.Duration }{
		{0, 0, 0, us},
		{-time.Second, 0, 0, us},
		{1, 0, us, us},
		{us - 1, 0, us, us},
		{us, us, us, us},
		{us + 1, us, 2 * us, us},
		{time.Hour + 999, time.Hour, time.Hour + us, time.Hour},
		{MaxDuration, MaxDuration, MaxDuration, MaxDuration},
		{MaxDuration + us, MaxDuration, MaxDuration, MaxDuration},
		{1<<63 - 1, MaxDuration, MaxDuration, MaxDuration},
		{-1 << 63, 0, 0, us},
	} {
		in := bulkRequest{Req: Request{Budget: tc.in, LeaseLife: tc.in, Near: tc.in, Age: tc.in, TTL: tc.in, StaleFor: tc.in}}
		want := bulkRequest{Req: Request{Budget: tc.budget, LeaseLife: tc.life, Near: tc.life, Age: tc.age, TTL: tc.life, StaleFor: tc.life}}
		var got bulkRequest
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encode(t, c, &in))}, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("request with %d: got %+v, %v, want %+v", tc.in, got, err, want)
		}
		inRep := bulkReply{Rep: Reply{Age: tc.in, TTL: tc.in, Near: tc.in, Life: tc.in}}
		wantRep := bulkReply{Rep: Reply{Age: tc.age, TTL: tc.life, Near: tc.life, Life: tc.life}}
		var gotRep bulkReply
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encode(t, c, &inRep))}, &gotRep); err != nil || !reflect.DeepEqual(gotRep, wantRep) {
			t.Errorf("reply with %d: got %+v, %v, want %+v", tc.in, gotRep, err, wantRep)
		}
		var down cohereDown
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encode(t, c, &cohereDown{Down: Down{NearLease: tc.in}}))}, &down); err != nil || down.NearLease != tc.life {
			t.Errorf("near lease %d: got %d, %v, want %d", tc.in, down.NearLease, err, tc.life)
		}
	}
}

// What exceeds a limit is not sent, and a receiver refuses it whatever the sender thinks; what just fits travels.
func TestLimits(t *testing.T) {
	long := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	list := func(n int) [][]byte { return make([][]byte, n) }
	request := func(q *nearcachev1.Request) proto.Message { return &nearcachev1.BulkRequest{Request: q} }
	reply := func(r *nearcachev1.Reply) proto.Message { return &nearcachev1.BulkReply{Reply: r} }
	greet := func(h *nearcachev1.Hello) proto.Message { return &nearcachev1.CohereUp{Hello: h} }
	inv := func(v *nearcachev1.Inv) proto.Message { return &nearcachev1.CohereDown{Invs: []*nearcachev1.Inv{v}} }
	revoke := func(v *nearcachev1.Revoke) proto.Message {
		return &nearcachev1.CohereDown{Revokes: []*nearcachev1.Revoke{v}}
	}
	for _, tc := range []struct {
		name    string
		limit   int
		message func(n int) proto.Message
	}{
		{"requests", MaxBatchOps, func(n int) proto.Message { return &nearcachev1.RequestFrame{Requests: repeat[nearcachev1.Request](n)} }},
		{"replies", MaxBatchOps, func(n int) proto.Message { return &nearcachev1.ReplyFrame{Replies: repeat[nearcachev1.Reply](n)} }},
		{"keyspace", MaxKeyspaceBytes, func(n int) proto.Message { return request(&nearcachev1.Request{Keyspace: long(n)}) }},
		{"key", MaxKeyBytes, func(n int) proto.Message { return request(&nearcachev1.Request{Key: long(n)}) }},
		{"keys", MaxBatchKeys, func(n int) proto.Message { return request(&nearcachev1.Request{Keys: list(n)}) }},
		{"listed key", MaxKeyBytes, func(n int) proto.Message { return request(&nearcachev1.Request{Keys: [][]byte{long(n)}}) }},
		{"tags", MaxTags, func(n int) proto.Message { return request(&nearcachev1.Request{Tags: list(n)}) }},
		{"tag", MaxTagBytes, func(n int) proto.Message { return request(&nearcachev1.Request{Tags: [][]byte{long(n)}}) }},
		{"value", MaxValueBytes, func(n int) proto.Message { return request(&nearcachev1.Request{Value: long(n)}) }},
		{"replied value", MaxValueBytes, func(n int) proto.Message { return reply(&nearcachev1.Reply{Value: long(n)}) }},
		{"failed keys", MaxBatchKeys, func(n int) proto.Message { return reply(&nearcachev1.Reply{Failed: make([]uint32, n)}) }},
		{"replied tags", MaxTags, func(n int) proto.Message { return reply(&nearcachev1.Reply{Tags: make([]uint64, n)}) }},
		{"cluster", MaxNameBytes, func(n int) proto.Message { return greet(&nearcachev1.Hello{Cluster: long(n)}) }},
		{"member", MaxNameBytes, func(n int) proto.Message { return greet(&nearcachev1.Hello{Member: long(n)}) }},
		{"address", MaxNameBytes, func(n int) proto.Message { return greet(&nearcachev1.Hello{Addr: long(n)}) }},
		{"invalidations", MaxBatchKeys, func(n int) proto.Message { return &nearcachev1.CohereDown{Invs: repeat[nearcachev1.Inv](n)} }},
		{"invalidated keyspace", MaxKeyspaceBytes, func(n int) proto.Message { return inv(&nearcachev1.Inv{Keyspace: long(n)}) }},
		{"invalidated key", MaxKeyBytes, func(n int) proto.Message { return inv(&nearcachev1.Inv{Key: long(n)}) }},
		{"invalidated tags", MaxTags, func(n int) proto.Message { return inv(&nearcachev1.Inv{Tags: list(n)}) }},
		{"invalidated tag", MaxTagBytes, func(n int) proto.Message { return inv(&nearcachev1.Inv{Tags: [][]byte{long(n)}}) }},
		{"revocations", MaxBatchKeys, func(n int) proto.Message { return &nearcachev1.CohereDown{Revokes: repeat[nearcachev1.Revoke](n)} }},
		{"revoked keyspace", MaxKeyspaceBytes, func(n int) proto.Message { return revoke(&nearcachev1.Revoke{Keyspace: long(n)}) }},
		{"silent members", MaxSilent, func(n int) proto.Message { return &nearcachev1.CohereDown{Silent: repeat[nearcachev1.Silence](n)} }},
		{"silent member", MaxNameBytes, func(n int) proto.Message {
			return &nearcachev1.CohereDown{Silent: []*nearcachev1.Silence{{Member: long(n)}}}
		}},
		{"revoked key", MaxKeyBytes, func(n int) proto.Message { return revoke(&nearcachev1.Revoke{Key: long(n)}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCodec(&bufferPool{})
			fits, over := tc.message(tc.limit), tc.message(tc.limit+1)
			k := kindOfMessage(fits)
			if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encode(t, c, k.toGo(fits)))}, k.frame()); err != nil {
				t.Errorf("at the limit: %v", err)
			}
			if _, err := c.Marshal(k.toGo(over)); !errors.Is(err, errLimit) {
				t.Errorf("one more, sent: got %v, want %v", err, errLimit)
			}
			b, err := proto.Marshal(over)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, k.frame()); !errors.Is(err, errLimit) {
				t.Errorf("one more, received: got %v, want %v", err, errLimit)
			}
		})
	}
}

// repeat returns n empty messages.
func repeat[T any](n int) []*T {
	out := make([]*T, n)
	for i := range out {
		out[i] = new(T)
	}
	return out
}

func kindOfMessage(m proto.Message) kind {
	for _, k := range kinds() {
		if k.pb().ProtoReflect().Descriptor() == m.ProtoReflect().Descriptor() {
			return k
		}
	}
	panic(fmt.Sprintf("no kind for %T", m))
}

// A frame is larger than a receiver takes although each of its parts fits.
func TestMessageBytesBounded(t *testing.T) {
	c := newCodec(&bufferPool{})
	f := &requestFrame{}
	for i := range 2 {
		f.add(uint32(i), &Request{Op: OpSet, Value: make([]byte, maxMessageBytes/2)})
	}
	if _, err := c.Marshal(f); !errors.Is(err, errLimit) {
		t.Errorf("two large values: got %v, want %v", err, errLimit)
	}
	keys := make([]string, MaxBatchKeys)
	for i := range keys {
		keys[i] = strings.Repeat("k", maxKeysBytes/MaxBatchKeys)
	}
	q := &Request{Op: OpInvalidate, Keys: keys}
	if err := q.check(); err != nil {
		t.Errorf("keys of %d bytes: %v", maxKeysBytes, err)
	}
	if b := encode(t, c, &bulkRequest{Req: *q}); len(b) > maxMessageBytes {
		t.Errorf("a request that check accepts takes %d bytes, more than %d", len(b), maxMessageBytes)
	}
	keys[0] += "k"
	if err := q.check(); !errors.Is(err, errLimit) {
		t.Errorf("keys of one byte more: got %v, want %v", err, errLimit)
	}
}

func TestFailureIsCut(t *testing.T) {
	c := newCodec(&bufferPool{})
	long := strings.Repeat("x", 5000)
	in := bulkReply{Rep: Reply{Status: StatusFailed, Failure: Failure{Kind: FailureLoad, Code: long, Text: long, Member: long}}}
	want := Failure{FailureLoad, long[:MaxNameBytes], long[:MaxFailureText], long[:MaxNameBytes]}
	var got bulkReply
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encode(t, c, &in))}, &got); err != nil || got.Rep.Failure != want {
		t.Errorf("got %+v, %v, want %+v", got.Rep.Failure, err, want)
	}
}

// Numbers that need more than the byte they have here must not become another operation's number.
func TestUnknownKinds(t *testing.T) {
	c := newCodec(&bufferPool{})
	b, err := proto.Marshal(&nearcachev1.BulkRequest{Request: &nearcachev1.Request{Op: 256 + uint32(OpInvalidate)}})
	if err != nil {
		t.Fatal(err)
	}
	f := bulkRequest{Req: Request{Op: OpGet}}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &f); err != nil || f.Req.Op != 0 {
		t.Errorf("got op %d, %v, want 0", f.Req.Op, err)
	}
}

// proto3 packs lists of numbers; a decoder takes single ones too.
func TestNumbersOneByOne(t *testing.T) {
	c := newCodec(&bufferPool{})
	b := []byte{frameItems, 11, 0x88, 0x01, 5, 0x8a, 0x01, 2, 6, 7, 0x88, 0x01, 8}
	var f bulkReply
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &f); err != nil || !slices.Equal(f.Rep.Failed, []uint32{5, 6, 7, 8}) {
		t.Errorf("got %v, %v, want [5 6 7 8]", f.Rep.Failed, err)
	}
	b = []byte{frameItems, 0, 0xa1, 0x01, 5, 0, 0, 0, 0, 0, 0, 0, 0xa2, 0x01, 8, 6, 0, 0, 0, 0, 0, 0, 0}
	b[1] = byte(len(b) - 2)
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &f); err != nil || !slices.Equal(f.Rep.Tags, []uint64{5, 6}) {
		t.Errorf("got %v, %v, want [5 6]", f.Rep.Tags, err)
	}
}

// countingPool counts the buffers that are out.
type countingPool struct {
	bufferPool
	out int
}

func (p *countingPool) Get(n int) *[]byte { p.out++; return p.bufferPool.Get(n) }
func (p *countingPool) Put(b *[]byte)     { p.out--; p.bufferPool.Put(b) }

// pooled returns b in buffers from p, split at the middle.
func pooled(p mem.BufferPool, b []byte) mem.BufferSlice {
	var out mem.BufferSlice
	for _, part := range [][]byte{b[:len(b)/2], b[len(b)/2:]} {
		buf := p.Get(len(part))
		copy(*buf, part)
		out = append(out, mem.NewBuffer(buf, p))
	}
	return out
}

func batch(n int) *requestFrame {
	f := &requestFrame{View: 7}
	for i := range n {
		f.add(uint32(i), &Request{Op: OpGet, Flags: FlagNear, Keyspace: "users", Key: fmt.Sprintf("user:%016d", i), Budget: time.Second, LeaseLife: 13 * time.Second, Near: time.Second})
	}
	return f
}

// The strings of a received frame stay valid until release, which gives the buffers back and leaves nothing to read.
func TestRequestsHoldTheirBuffers(t *testing.T) {
	p := &countingPool{}
	c := newCodec(&bufferPool{})
	b := encode(t, c, batch(100))
	data := pooled(p, b)
	var f requestFrame
	if err := c.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	data.Free()
	if p.out != 2 {
		t.Fatalf("a decoded frame holds %d buffers, want 2", p.out)
	}
	for i, q := range batch(100).Reqs {
		if !reflect.DeepEqual(f.Reqs[i], q) || f.IDs[i] != uint32(i) {
			t.Fatalf("request %d: got %+v, want %+v", i, f.Reqs[i], q)
		}
	}
	q := f.Reqs[0]
	f.release()
	f.release()
	if p.out != 0 {
		t.Errorf("%d buffers are out after release", p.out)
	}
	if q.Key != "" || len(f.Reqs) != 0 {
		t.Errorf("after release: %+v and %d requests", q, len(f.Reqs))
	}

	data = pooled(p, append(b, 0x80)) // malformed at the end
	if err := c.Unmarshal(data, &f); !errors.Is(err, errMalformed) {
		t.Errorf("got %v, want %v", err, errMalformed)
	}
	data.Free()
	if p.out != 0 {
		t.Errorf("%d buffers are out after an error", p.out)
	}

	for range 2 { // a frame that was not released lets go when it is decoded into
		data = pooled(p, b)
		if err := c.Unmarshal(data, &f); err != nil {
			t.Fatal(err)
		}
		data.Free()
	}
	if p.out != 2 {
		t.Errorf("%d buffers are out, want 2", p.out)
	}
}

// Nothing that was decoded, but for the strings of a requestFrame, shares memory with the message.
func TestDecodedIsOwned(t *testing.T) {
	c := newCodec(&bufferPool{})
	for _, g := range golden() {
		b := encode(t, c, g.frame)
		k := kindOf(g.frame)
		f := k.frame()
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, f); err != nil {
			t.Fatal(err)
		}
		want := k.plain(g.frame)
		for i := range b {
			b[i] = '#'
		}
		if q, ok := f.(*requestFrame); ok {
			for i, r := range q.Reqs {
				if w := want.(requestFrame).Reqs[i]; !bytes.Equal(r.Value, w.Value) {
					t.Errorf("%s: value %q changed with the buffer, want %q", g.name, r.Value, w.Value)
				}
			}
			if w := want.(requestFrame).Hello; !reflect.DeepEqual(q.Hello, w) {
				t.Errorf("%s: hello %+v changed with the buffer, want %+v", g.name, q.Hello, w)
			}
			continue
		}
		if got := k.plain(f); !reflect.DeepEqual(got, want) {
			t.Errorf("%s changed with the buffer:\n got %+v\nwant %+v", g.name, got, want)
		}
	}
}

// Values are sent by reference from scatterBytes on, in replies and in requests; the rest of the message is one pooled buffer.
func TestLargeValuesAreAttached(t *testing.T) {
	p := &countingPool{}
	c := newCodec(p)
	small, large := make([]byte, scatterBytes-1), make([]byte, scatterBytes)
	f := &replyFrame{}
	for i, v := range [][]byte{large, small, large, large} {
		f.add(uint32(i), &Reply{Status: StatusHit, HasValue: true, Value: v})
	}
	data, err := c.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	attached := 0
	for _, b := range data {
		if d := b.ReadOnlyData(); len(d) > 0 && &d[0] == &large[0] {
			attached++
		}
	}
	if attached != 3 || p.out != 1 {
		t.Errorf("%d values attached, %d buffers used, want 3 and 1", attached, p.out)
	}
	data.Free()
	if p.out != 0 {
		t.Errorf("%d buffers are out after Free", p.out)
	}
	data, err = c.Marshal(&bulkRequest{Req: Request{Op: OpSet, Value: large}})
	if err != nil {
		t.Fatal(err)
	}
	if d := data[len(data)-1].ReadOnlyData(); &d[0] != &large[0] {
		t.Error("the value of a request was copied")
	}
	data.Free()
}

// A request that changes while it is encoded, because its call was given up and used again, fails the frame: a peer never sees a
// message whose inner lengths do not fit.
func TestChangedWhileEncoding(t *testing.T) {
	p := &countingPool{}
	c := newCodec(p)
	q := &Request{Op: OpGet, Key: "short"}
	var l layout
	l.item(frameItems, q.wireBytes(), nil)
	w, err := c.newWriter(l)
	if err != nil {
		t.Fatal(err)
	}
	w.open(frameItems, q.wireBytes())
	q.Key = strings.Repeat("longer", 1000)
	w.request(0, q)
	if _, err := w.finish(); !errors.Is(err, errChanged) {
		t.Errorf("got %v, want %v", err, errChanged)
	}
	if p.out != 0 {
		t.Errorf("%d buffers are out", p.out)
	}
}

func hits(n, size int) *replyFrame {
	f := &replyFrame{View: 7, Acked: 1, InView: true}
	for i := range n {
		f.add(uint32(i), &Reply{Status: StatusHit, Seq: 1 << 30, Age: time.Second, TTL: time.Minute, Near: time.Second, HasValue: true, Value: make([]byte, size)})
	}
	return f
}

// The figures are per frame of 256 operations; the slack of a few is for pools that the race detector and the garbage collector empty.
func TestAllocations(t *testing.T) {
	c := newCodec(&bufferPool{})
	const n, slack = MaxBatchOps, 8
	measure := func(name string, limit float64, f func()) {
		t.Helper()
		f() // grow what is reused
		if got := testing.AllocsPerRun(50, f); got > limit {
			t.Errorf("%s: %v allocations, want at most %v", name, got, limit)
		}
	}
	marshal := func(f any) func() {
		return func() {
			data, err := c.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			data.Free()
		}
	}
	gets, reps := batch(n), hits(n, 1000)
	measure("encode gets", slack, marshal(gets))
	measure("encode hits", slack, marshal(reps))
	measure("encode attached hits", 2*n, marshal(hits(n, scatterBytes)))

	var requests requestFrame
	data := mem.BufferSlice{mem.SliceBuffer(encode(t, c, gets))}
	measure("decode gets", slack, func() {
		if err := c.Unmarshal(data, &requests); err != nil {
			t.Fatal(err)
		}
		requests.release()
	})
	var replies replyFrame
	data = split(rand.New(rand.NewPCG(7, 8)), encode(t, c, reps))
	measure("decode hits", n+slack, func() {
		if err := c.Unmarshal(data, &replies); err != nil {
			t.Fatal(err)
		}
	})
	for i, r := range replies.Reps {
		if cap(r.Value) != 1000 {
			t.Fatalf("value %d has %d bytes of room, want exactly 1000", i, cap(r.Value))
		}
	}
	down := &cohereDown{Down: Down{Invs: make([]Inv, n)}}
	for i := range down.Invs {
		down.Invs[i] = Inv{Seq: uint64(i), Keyspace: "users", Key: "42"}
	}
	data = mem.BufferSlice{mem.SliceBuffer(encode(t, c, down))}
	measure("decode invalidations", 2*slack, func() { // one copy, and a growing list
		var f cohereDown
		if err := c.Unmarshal(data, &f); err != nil {
			t.Fatal(err)
		}
	})
}

// A length that promises more than the message has costs nothing.
func TestLyingLength(t *testing.T) {
	c := newCodec(&bufferPool{})
	lie := protowire.AppendVarint([]byte{frameItems, 6, reqKey}, MaxKeyBytes)         // a key that is not there
	lie = append(lie, bytes.Repeat([]byte{frameItems, 2, reqOp, byte(OpGet)}, 10)...) // and what could be taken for it
	for _, k := range kinds() {
		got := testing.AllocsPerRun(10, func() { _ = c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(lie)}, k.frame()) })
		if got > 10 {
			t.Errorf("%s: %v allocations for a lie", k.name, got)
		}
	}
}

type bulkServer interface {
	Bulk(ctx context.Context, f *bulkRequest) (*bulkReply, error)
}

type echo struct{}

func (e echo) Bulk(_ context.Context, f *bulkRequest) (*bulkReply, error) {
	return &bulkReply{View: f.View, Rep: Reply{Status: StatusHit, Value: f.Req.Value, Failure: Failure{Text: f.Req.Key}}}, nil
}

// A client with nothing but the generated code talks to a server with this codec, through gRPC.
func TestForeignClient(t *testing.T) {
	pool := &bufferPool{}
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(grpc.ForceServerCodecV2(newCodec(pool)), grpc.MaxRecvMsgSize(maxMessageBytes))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: nearcachev1.PeerService_ServiceDesc.ServiceName,
		HandlerType: (*bulkServer)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Bulk",
			Handler: func(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var f bulkRequest
				if err := dec(&f); err != nil {
					return nil, err
				}
				return srv.(bulkServer).Bulk(ctx, &f)
			},
		}},
	}, echo{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	cc, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	value := bytes.Repeat([]byte("value"), 200_000)
	for _, v := range [][]byte{value[:10], value[:scatterBytes], value} {
		got, err := nearcachev1.NewPeerServiceClient(cc).Bulk(t.Context(), &nearcachev1.BulkRequest{
			View: 7, Request: &nearcachev1.Request{Key: []byte("k"), Value: v},
		})
		if err != nil {
			t.Fatal(err)
		}
		want := &nearcachev1.BulkReply{View: 7, Reply: &nearcachev1.Reply{
			Status: uint32(StatusHit), HasValue: true, Value: v, Failure: &nearcachev1.Failure{Text: []byte("k")},
		}}
		if !proto.Equal(got, want) {
			t.Errorf("with %d bytes: got status %d and %d bytes", len(v), got.Reply.Status, len(got.Reply.Value))
		}
	}
}

func TestBufferPool(t *testing.T) {
	p := &bufferPool{}
	for _, tc := range []struct{ n, capacity int }{
		{0, 2 << 10}, {1, 2 << 10}, {2 << 10, 2 << 10}, {2<<10 + 1, 4 << 10}, {4 << 20, 4 << 20}, {4<<20 + 1, 4<<20 + 1},
	} {
		b := p.Get(tc.n)
		if len(*b) != tc.n || tc.n <= 4<<20 && cap(*b) != tc.capacity {
			t.Errorf("Get(%d): %d bytes of %d, want %d", tc.n, len(*b), cap(*b), tc.capacity)
		}
		*b = (*b)[:0]
		p.Put(b)
		if b := p.Get(tc.n); len(*b) != tc.n {
			t.Errorf("Get(%d) after Put: %d bytes", tc.n, len(*b))
		}
	}
	for _, n := range []int{0, 100, 3000, 8 << 20} { // not from Get: must not be handed out as another class
		b := make([]byte, n)
		p.Put(&b)
	}
	for range 3 {
		if b := p.Get(2 << 10); cap(*b) != 2<<10 {
			t.Errorf("a foreign buffer of %d bytes was handed out", cap(*b))
		}
	}
}

func BenchmarkEncodeGets(b *testing.B) {
	c := newCodec(&bufferPool{})
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkEncode(b, c, batch(n), n) })
	}
}

func BenchmarkEncodeHits(b *testing.B) {
	c := newCodec(&bufferPool{})
	for _, tc := range []struct{ n, size int }{{1, 1000}, {64, 1000}, {16, 4096}} {
		b.Run(fmt.Sprintf("%dx%d", tc.n, tc.size), func(b *testing.B) { benchmarkEncode(b, c, hits(tc.n, tc.size), tc.n) })
	}
}

func benchmarkEncode(b *testing.B, c codec, f any, n int) {
	b.ReportAllocs()
	for b.Loop() {
		data, err := c.Marshal(f)
		if err != nil {
			b.Fatal(err)
		}
		data.Free()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/request")
}

func BenchmarkDecodeGets(b *testing.B) {
	c := newCodec(&bufferPool{})
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := mem.BufferSlice{mem.SliceBuffer(encode(b, c, batch(n)))}
			var f requestFrame
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Unmarshal(data, &f); err != nil {
					b.Fatal(err)
				}
				f.release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/request")
		})
	}
}

func BenchmarkDecodeHits(b *testing.B) {
	c := newCodec(&bufferPool{})
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := mem.BufferSlice{mem.SliceBuffer(encode(b, c, hits(n, 1000)))}
			var f replyFrame
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Unmarshal(data, &f); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/request")
		})
	}
}

// The same through generated code and gRPC's codec, to compare with.
func BenchmarkGenerated(b *testing.B) {
	c := newCodec(&bufferPool{})
	for _, f := range []any{batch(256), hits(64, 1000)} {
		k := kindOf(f)
		data := mem.BufferSlice{mem.SliceBuffer(encode(b, c, f))}
		b.Run("decode "+k.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Unmarshal(data, k.pb()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("encode "+k.name, func(b *testing.B) {
			m := k.pb()
			if err := c.Unmarshal(data, m); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				out, err := c.Marshal(m)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
	}
}
