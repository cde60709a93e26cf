package transport

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nearcachev1 "github.com/nearcache/nearcache/proto/nearcache/v1"
)

// The second implementation of the wire: the generated code and these conversions, written field by field.

func cutDuration(us uint64) time.Duration {
	if us > uint64(MaxDuration.Microseconds()) {
		return MaxDuration
	}
	return time.Duration(us) * time.Microsecond
}

func cutKind(v uint32) uint8 {
	if v > 255 {
		return 0
	}
	return uint8(v)
}

func stringsOf(bs [][]byte) []string {
	var s []string
	for _, b := range bs {
		s = append(s, string(b))
	}
	return s
}

func valueOf(has bool, v []byte) ([]byte, bool) {
	switch {
	case len(v) > 0:
		return v, true
	case has:
		return []byte{}, true
	}
	return nil, false
}

func goHello(p *nearcachev1.Hello) *hello {
	if p == nil {
		return nil
	}
	return &hello{
		Protocol: p.Protocol, Features: p.Features, Cluster: string(p.Cluster), Member: string(p.Member), Addr: string(p.Addr),
		Incarnation: p.Incarnation, View: p.View, MaxValueBytes: p.MaxValueBytes, Replicas: p.Replicas,
	}
}

func goFailure(p *nearcachev1.Failure) Failure {
	return Failure{Kind: FailureKind(cutKind(p.GetKind())), Code: string(p.GetCode()), Text: string(p.GetText()), Member: string(p.GetMember())}
}

func goRequest(p *nearcachev1.Request) Request {
	q := Request{
		Op: Op(cutKind(p.GetOp())), Flags: p.GetFlags(), Keyspace: string(p.GetKeyspace()), Key: string(p.GetKey()),
		Budget: cutDuration(p.GetBudgetUs()), LeaseLife: cutDuration(p.GetLeaseLifeUs()), Near: cutDuration(p.GetNearUs()),
		Version: p.GetVersion(), Hot: p.GetHot(), Token: Token{p.GetTokenIncarnation(), p.GetTokenNumber()},
		Age: cutDuration(p.GetAgeUs()), TTL: cutDuration(p.GetTtlUs()), StaleFor: cutDuration(p.GetStaleForUs()),
		Epoch: p.GetEpoch(), TagPos: p.GetTagPos(), Tags: stringsOf(p.GetTags()), Keys: stringsOf(p.GetKeys()),
		Failure: goFailure(p.GetFailure()),
	}
	q.Value, q.HasValue = valueOf(p.GetHasValue(), p.GetValue())
	return q
}

func goReply(p *nearcachev1.Reply) Reply {
	r := Reply{
		Status: Status(cutKind(p.GetStatus())), Flags: p.GetFlags(), Seq: p.GetSeq(), Age: cutDuration(p.GetAgeUs()),
		TTL: cutDuration(p.GetTtlUs()), Near: cutDuration(p.GetNearUs()), Version: p.GetVersion(), Rate: p.GetRate(),
		Token: Token{p.GetTokenIncarnation(), p.GetTokenNumber()}, Life: cutDuration(p.GetLifeUs()), TagPos: p.GetTagPos(), Waited: cutDuration(p.GetWaitedUs()),
		Epoch: p.GetEpoch(), Failure: goFailure(p.GetFailure()), Size: p.GetSize(), Failed: p.GetFailed(), Tags: p.GetTags(),
	}
	r.Value, r.HasValue = valueOf(p.GetHasValue(), p.GetValue())
	return r
}

// kind is one message of the wire in both implementations.
type kind struct {
	name  string
	frame func() any                // an empty frame
	pb    func() proto.Message      // the same in generated code
	toGo  func(m proto.Message) any // what the frame holds when m is decoded
	plain func(f any) any           // f without scratch and ownership
}

func kinds() []kind {
	return []kind{
		{
			"request frame",
			func() any { return &requestFrame{} }, func() proto.Message { return &nearcachev1.RequestFrame{} },
			func(m proto.Message) any {
				p := m.(*nearcachev1.RequestFrame)
				f := &requestFrame{Hello: goHello(p.Hello), View: p.View}
				for _, q := range p.Requests {
					r := goRequest(q)
					f.add(q.Id, &r)
				}
				return f
			},
			func(v any) any {
				f := v.(*requestFrame)
				g := requestFrame{Hello: f.Hello, View: f.View, IDs: orNil(f.IDs)}
				for _, q := range f.Reqs {
					r := *q
					r.Tags, r.Keys = orNil(r.Tags), orNil(r.Keys)
					g.Reqs = append(g.Reqs, &r)
				}
				return g
			},
		},
		{
			"reply frame",
			func() any { return &replyFrame{} }, func() proto.Message { return &nearcachev1.ReplyFrame{} },
			func(m proto.Message) any {
				p := m.(*nearcachev1.ReplyFrame)
				f := &replyFrame{Hello: goHello(p.Hello), View: p.View, Acked: p.Acked, InView: p.YouInView, Draining: p.Draining}
				for _, q := range p.Replies {
					r := goReply(q)
					f.add(q.Id, &r)
				}
				return f
			},
			func(v any) any {
				f := *v.(*replyFrame)
				f.IDs, f.Reps, f.sizes = orNil(f.IDs), orNil(f.Reps), nil
				return f
			},
		},
		{
			"cohere up",
			func() any { return &cohereUp{} }, func() proto.Message { return &nearcachev1.CohereUp{} },
			func(m proto.Message) any {
				p := m.(*nearcachev1.CohereUp)
				return &cohereUp{Hello: goHello(p.Hello), View: p.View, Nonce: p.Nonce}
			},
			func(v any) any { return *v.(*cohereUp) },
		},
		{
			"cohere down",
			func() any { return &cohereDown{} }, func() proto.Message { return &nearcachev1.CohereDown{} },
			func(m proto.Message) any {
				p := m.(*nearcachev1.CohereDown)
				d := &cohereDown{goHello(p.Hello), Down{
					Reset: p.Reset_, Seq: p.Seq, Renewed: p.Renewed, Nonce: p.Nonce, NearLease: cutDuration(p.NearLeaseUs), InView: p.InView, View: p.View,
				}}
				for _, v := range p.Invs {
					d.Invs = append(d.Invs, Inv{Seq: v.Seq, Keyspace: string(v.Keyspace), Key: string(v.Key), All: v.All, Epoch: v.Epoch, Tags: stringsOf(v.Tags)})
				}
				for _, v := range p.Revokes {
					d.Revokes = append(d.Revokes, Revoke{string(v.Keyspace), string(v.Key), Token{v.TokenIncarnation, v.TokenNumber}})
				}
				for _, v := range p.Silent {
					d.Silent = append(d.Silent, Silence{string(v.Member), cutDuration(v.AgeUs)})
				}
				return d
			},
			func(v any) any { return *v.(*cohereDown) },
		},
		{
			"bulk request",
			func() any { return &bulkRequest{} }, func() proto.Message { return &nearcachev1.BulkRequest{} },
			func(m proto.Message) any {
				p := m.(*nearcachev1.BulkRequest)
				return &bulkRequest{goHello(p.Hello), p.View, goRequest(p.Request)}
			},
			func(v any) any { return *v.(*bulkRequest) },
		},
		{
			"bulk reply",
			func() any { return &bulkReply{} }, func() proto.Message { return &nearcachev1.BulkReply{} },
			func(m proto.Message) any {
				p := m.(*nearcachev1.BulkReply)
				return &bulkReply{goHello(p.Hello), p.View, goReply(p.Reply)}
			},
			func(v any) any { return *v.(*bulkReply) },
		},
	}
}

func orNil[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

// split cuts b into buffers of random sizes, some of them empty.
func split(rng *rand.Rand, b []byte) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		n := min(rng.IntN(1+rng.IntN(1+2*len(b))), len(b))
		out = append(out, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	return out
}

func encode(t testing.TB, c codec, f any) []byte {
	t.Helper()
	data, err := c.Marshal(f)
	if err != nil {
		t.Fatalf("Marshal(%T): %v", f, err)
	}
	defer data.Free()
	return data.Materialize()
}

// fillMessage sets fields of m to random values: all of them, none of them zero, if p is 1. Otherwise there are also fields of
// later versions.
func fillMessage(rng *rand.Rand, m protoreflect.Message, p float64) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if rng.Float64() > p {
			continue
		}
		switch {
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range 1 + rng.IntN(3) {
				if fd.Message() != nil {
					fillMessage(rng, list.AppendMutable().Message(), p)
				} else {
					list.Append(randomScalar(rng, fd, p))
				}
			}
		case fd.Message() != nil:
			fillMessage(rng, m.Mutable(fd).Message(), p)
		default:
			m.Set(fd, randomScalar(rng, fd, p))
		}
	}
	if p < 1 && rng.IntN(3) == 0 {
		var b []byte
		b = protowire.AppendVarint(protowire.AppendTag(b, 100, protowire.VarintType), rng.Uint64())
		b = protowire.AppendFixed64(protowire.AppendTag(b, 101, protowire.Fixed64Type), rng.Uint64())
		b = protowire.AppendString(protowire.AppendTag(b, 102, protowire.BytesType), strings.Repeat("?", rng.IntN(200)))
		b = protowire.AppendFixed32(protowire.AppendTag(b, 1<<29-1, protowire.Fixed32Type), rng.Uint32())
		m.SetUnknown(b)
	}
}

func randomScalar(rng *rand.Rand, fd protoreflect.FieldDescriptor, p float64) protoreflect.Value {
	low := 0
	if p == 1 {
		low = 1
	}
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(p == 1 || rng.IntN(2) == 0)
	case protoreflect.BytesKind:
		n := low + rng.IntN(40)
		if fd.Name() == "value" && rng.IntN(4) == 0 {
			n = scatterBytes - 2 + rng.IntN(4)
		}
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return protoreflect.ValueOfBytes(b)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		v := max(rng.Uint32()>>rng.IntN(32), uint32(low))
		if n := fd.Name(); p == 1 && (n == "op" || n == "status" || n == "kind") {
			v = v%255 + 1
		}
		return protoreflect.ValueOfUint32(v)
	default:
		v := max(rng.Uint64()>>rng.IntN(64), uint64(low))
		if p == 1 && strings.HasSuffix(string(fd.Name()), "_us") {
			v = v%uint64(MaxDuration.Microseconds()) + 1
		}
		return protoreflect.ValueOfUint64(v)
	}
}

// What generated code writes, the codec reads, however the buffers fall; and with every field set, it writes the same bytes back.
func TestDecodesGenerated(t *testing.T) {
	c := newCodec(&bufferPool{})
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			f := k.frame() // reused, as the streams do
			for i := range 2000 {
				p := []float64{1, 0.7, 0.2}[i%3]
				m := k.pb()
				fillMessage(rng, m.ProtoReflect(), p)
				switch m := m.(type) { // what travels alone has no id
				case *nearcachev1.BulkRequest:
					if m.Request != nil {
						m.Request.Id = 0
					}
				case *nearcachev1.BulkReply:
					if m.Reply != nil {
						m.Reply.Id = 0
					}
				}
				b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Unmarshal(split(rng, b), f); err != nil {
					t.Fatalf("Unmarshal: %v of %v", err, m)
				}
				if got, want := k.plain(f), k.plain(k.toGo(m)); !reflect.DeepEqual(got, want) {
					t.Fatalf("decoded\n got %+v\nwant %+v", got, want)
				}
				if p < 1 {
					continue
				}
				if got := encode(t, c, f); string(got) != string(b) {
					t.Fatalf("encoded again\n got %x\nwant %x", got, b)
				}
			}
		})
	}
}

// fillGo sets every field that v leads to to a random value that is not zero; durations are whole microseconds.
func fillGo(rng *rand.Rand, v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		v.SetInt((1 + rng.Int64N(1<<(1+rng.IntN(40)))) * 1000)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(max(1, rng.Uint64()>>rng.IntN(64)))
		if v.Uint() == 0 {
			v.SetUint(1)
		}
	case reflect.String:
		b := make([]byte, 1+rng.IntN(30))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		v.SetString(string(b))
	case reflect.Slice:
		n := 1 + rng.IntN(5)
		if v.Type().Elem().Kind() == reflect.Uint8 && rng.IntN(3) == 0 {
			n = scatterBytes - 2 + rng.IntN(4)
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fillGo(rng, v.Index(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillGo(rng, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillGo(rng, v.Field(i))
			}
		}
	default:
		panic("fillGo does not know " + v.Type().String())
	}
}

// No field of a Go message is forgotten: generated code reads what the codec writes, and so does the codec.
func TestGeneratedDecodes(t *testing.T) {
	c := newCodec(&bufferPool{})
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			back := k.frame()
			for range 1000 {
				f := k.frame()
				fillGo(rng, reflect.ValueOf(f).Elem())
				switch f := f.(type) { // as many ids as operations
				case *requestFrame:
					f.IDs, f.Reqs = f.IDs[:min(len(f.IDs), len(f.Reqs))], f.Reqs[:min(len(f.IDs), len(f.Reqs))]
				case *replyFrame:
					f.IDs, f.Reps = f.IDs[:min(len(f.IDs), len(f.Reps))], f.Reps[:min(len(f.IDs), len(f.Reps))]
					for i := range f.Reps {
						f.Reps[i].Incarnation = 0 // of the stream, not of the message
					}
				case *bulkReply:
					f.Rep.Incarnation = 0
				}
				b := encode(t, c, f)
				m := k.pb()
				if err := proto.Unmarshal(b, m); err != nil {
					t.Fatalf("generated code refuses %x: %v", b, err)
				}
				if got, want := k.plain(k.toGo(m)), k.plain(f); !reflect.DeepEqual(got, want) {
					t.Fatalf("generated code decoded\n got %+v\nwant %+v", got, want)
				}
				if err := c.Unmarshal(split(rng, b), back); err != nil {
					t.Fatalf("Unmarshal: %v", err)
				}
				if got, want := k.plain(back), k.plain(f); !reflect.DeepEqual(got, want) {
					t.Fatalf("decoded\n got %+v\nwant %+v", got, want)
				}
			}
		})
	}
}

// hasGroup reports whether an unknown field anywhere in m is a group.
func hasGroup(m protoreflect.Message) bool {
	for b := m.GetUnknown(); len(b) > 0; {
		_, typ, n := protowire.ConsumeTag(b)
		if typ == protowire.StartGroupType {
			return true
		}
		b = b[n:]
		b = b[protowire.ConsumeFieldValue(1, typ, b):]
	}
	found := false
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				found = found || hasGroup(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			found = found || hasGroup(v.Message())
		}
		return !found
	})
	return found
}

// compareDecoders gives b to both decoders and fails when they disagree.
func compareDecoders(t *testing.T, k kind, b []byte, seed uint64) {
	t.Helper()
	c := newCodec(&bufferPool{})
	f := k.frame()
	err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, f)

	parts := k.frame()
	errParts := c.Unmarshal(split(rand.New(rand.NewPCG(seed, 0)), b), parts)
	if !errors.Is(err, errParts) || !reflect.DeepEqual(k.plain(f), k.plain(parts)) {
		t.Fatalf("%s: in one buffer %v, %+v\nin many %v, %+v", k.name, err, k.plain(f), errParts, k.plain(parts))
	}
	m := k.pb()
	errProto := proto.Unmarshal(b, m)
	switch {
	case errors.Is(err, errLimit):
	case err != nil:
		if errProto == nil && !hasGroup(m.ProtoReflect()) {
			t.Fatalf("%s: %v, but generated code decodes %v", k.name, err, m)
		}
	case errProto != nil:
		t.Fatalf("%s: decoded %+v, but generated code fails: %v", k.name, k.plain(f), errProto)
	default:
		if got, want := k.plain(f), k.plain(k.toGo(m)); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: decoded\n got %+v\nwant %+v", k.name, got, want)
		}
		again := k.frame()
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encode(t, c, f))}, again); err != nil {
			t.Fatalf("%s: cannot decode its own encoding: %v", k.name, err)
		}
	}
	if err != nil && !reflect.DeepEqual(k.plain(f), k.plain(k.frame())) {
		t.Fatalf("%s: not empty after %v: %+v", k.name, err, k.plain(f))
	}
}

func fuzzKinds(f *testing.F, ks ...kind) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, k := range ks {
		for i := range 12 {
			m := k.pb()
			fillMessage(rng, m.ProtoReflect(), []float64{1, 0.5, 0.1}[i%3])
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, uint64(i))
			f.Add(b[:len(b)*i/12], uint64(i))
		}
	}
	for _, b := range malformed() {
		f.Add(b, uint64(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		for _, k := range ks {
			compareDecoders(t, k, b, seed)
		}
	})
}

func FuzzRequests(f *testing.F) { fuzzKinds(f, kinds()[0], kinds()[4]) }
func FuzzReplies(f *testing.F)  { fuzzKinds(f, kinds()[1], kinds()[5]) }
func FuzzCohere(f *testing.F)   { fuzzKinds(f, kinds()[2], kinds()[3]) }

// malformed returns messages that no frame accepts.
func malformed() map[string][]byte {
	return map[string][]byte{
		"truncated tag":           {0x80},
		"field number zero":       {0x00, 0x01},
		"field number too large":  protowire.AppendVarint(nil, 1<<32),
		"truncated fixed64":       {frameView, 1, 2, 3},
		"truncated varint":        {15<<3 | varint, 0xff},
		"endless varint":          append([]byte{15<<3 | varint}, strings.Repeat("\xff", 11)...),
		"varint over 64 bits":     append([]byte{15<<3 | varint}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"...),
		"length beyond the end":   {frameHello, 2, 0},
		"huge length":             append([]byte{frameHello}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"...),
		"inner length too long":   {frameHello, 2, helloCluster, 1, 0},
		"varint over inner end":   {frameHello, 2, helloProtocol, 0x80, 0x01},
		"fixed64 over inner end":  {frameHello, 2, helloView, 1, 2, 3, 4, 5, 6, 7, 8},
		"unknown over inner end":  {frameHello, 2, 15<<3 | fixed32, 1, 2, 3, 4},
		"unknown bytes too long":  {15<<3 | lenPre, 5, 0},
		"unknown fixed32 cut off": {15<<3 | fixed32, 0},
		"group":                   {15<<3 | 3, 15<<3 | 4},
		"end of a group":          {15<<3 | 4},
		"wire type 6":             {15<<3 | 6, 0},
		"wire type 7":             {15<<3 | 7, 0},
	}
}

func TestRefusesMalformed(t *testing.T) {
	c := newCodec(&bufferPool{})
	for name, b := range malformed() {
		for _, k := range kinds() {
			if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, k.frame()); !errors.Is(err, errMalformed) {
				t.Errorf("%s, %s: got %v, want %v", k.name, name, err, errMalformed)
			}
			compareDecoders(t, k, b, 1)
		}
	}
}
