package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// raw is a codec that passes bytes.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// stranger dials a member with gRPC, and says what it likes.
func stranger(tb testing.TB, addr string) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// encoded returns what a frame is on the wire.
func encoded(tb testing.TB, t *Transport, frame any) []byte {
	tb.Helper()
	b, err := t.codec.Marshal(frame)
	if err != nil {
		tb.Fatal(err)
	}
	defer b.Free()
	return bytes.Clone(b.Materialize())
}

// exchange sends messages on a stream of a stranger and returns the status that ends it.
func exchange(ctx context.Context, conn *grpc.ClientConn, method string, messages ...[]byte) error {
	st, err := conn.NewStream(ctx, laneDesc(), method)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := st.SendMsg(m); err != nil {
			break
		}
	}
	for {
		var got []byte
		if err := st.RecvMsg(&got); err != nil {
			return err
		}
	}
}

// shout opens a TCP connection, writes, and returns what came until the member closed it.
func shout(tb testing.TB, addr, what string) string {
	tb.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Error(err)
		return ""
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, what)
	_ = c.SetDeadline(time.Now().Add(acceptTimeout + 5*time.Second))
	got, err := io.ReadAll(io.LimitReader(c, 1<<20))
	if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
		tb.Errorf("the connection that said %.20q is still open", what)
	}
	return string(got)
}

// settled returns how many goroutines there are once the number stays the same: lanes are made after their peer counts as ready.
func settled(t *testing.T) int {
	t.Helper()
	last, same := 0, 0
	await(t, "goroutines settle", func() bool {
		if n := runtime.NumGoroutine(); n != last {
			last, same = n, 0
		}
		same++
		return same > 50
	})
	return last
}

// Strangers on the port of a member read nothing, write nothing, and leave nothing behind, whatever they say; the member's peers do
// not notice.
func TestStrangers(t *testing.T) {
	var served atomic.Int64
	a, b, p := loopback(t, &node{}, &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
		if !strings.HasPrefix(req.Key, "mine") {
			served.Add(1)
		}
		rep.Status, rep.Value, rep.HasValue = StatusHit, []byte("secret"), true
		return true
	}})
	addr := b.cfg.Self.Addr
	before := settled(t)
	conn := stranger(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	self := &hello{Protocol: ProtocolVersion, Cluster: "test", Member: "s", Addr: "s", Incarnation: 1}
	wrong := *self
	wrong.Cluster = "other"
	twin := *self
	twin.Member = "b"
	good := encoded(t, b, &requestFrame{Hello: self})
	ask := func(h *hello) []byte {
		f := &requestFrame{Hello: h}
		f.add(1, get("theirs"))
		return encoded(t, b, f)
	}
	for name, c := range map[string]struct {
		method   string
		messages [][]byte
		want     codes.Code
	}{
		"another service":            {"/grpc.health.v1.Health/Check", [][]byte{nil}, codes.Unimplemented},
		"another method":             {"/" + serviceName + "/Dump", [][]byte{nil}, codes.Unimplemented},
		"no hello":                   {laneMethod, [][]byte{ask(nil)}, codes.FailedPrecondition},
		"an empty message":           {laneMethod, [][]byte{nil}, codes.FailedPrecondition},
		"silence":                    {laneMethod, nil, codes.DeadlineExceeded},
		"silence on coherence":       {cohereMethod, nil, codes.DeadlineExceeded},
		"another cluster":            {laneMethod, [][]byte{ask(&wrong)}, codes.FailedPrecondition},
		"another cluster, coherence": {cohereMethod, [][]byte{encoded(t, b, &cohereUp{Hello: &wrong})}, codes.FailedPrecondition},
		"the member's own ID":        {laneMethod, [][]byte{ask(&twin)}, codes.AlreadyExists},
		"garbage":                    {laneMethod, [][]byte{[]byte("\xff\xff\xff\xff\xff")}, codes.Internal},
		"garbage after a hello":      {laneMethod, [][]byte{good, []byte("\x1a\xff\xff\xff\xff\x0f")}, codes.Internal},
		"a large message":            {laneMethod, [][]byte{make([]byte, maxMessage+1)}, codes.ResourceExhausted},
	} {
		if err := exchange(ctx, conn, c.method, c.messages...); status.Code(err) != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	bulk := encoded(t, b, &bulkRequest{Hello: &wrong, Req: *get("theirs")})
	var got []byte
	if err := conn.Invoke(ctx, bulkMethod, bulk, &got); status.Code(err) != codes.FailedPrecondition || len(got) > 0 {
		t.Errorf("a bulk request of another cluster: got %q, %v", got, err)
	}
	huge := metadata.AppendToOutgoingContext(ctx, "x", strings.Repeat("y", 4*maxHeaderBytes))
	if err := exchange(huge, conn, laneMethod, good); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("huge headers: got %v, want an error", err)
	}
	for _, what := range []string{"GET /key HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", strings.Repeat("\x00\xff", 4096)} {
		if got := shout(t, addr, what); strings.Contains(got, "secret") {
			t.Errorf("%.20q was answered: %q", what, got)
		}
	}
	if n := served.Load(); n > 0 {
		t.Errorf("%d requests of strangers were served", n)
	}
	if rep, err := p.Do(t.Context(), get("mine")); err != nil || string(rep.Value) != "secret" {
		t.Errorf("the peer: got %+v, %v", rep, err)
	}
	if n := b.claims.streams("s") + b.claims.streams("b"); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	_ = conn.Close()
	await(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 })
	shut(t, a, b)
}

// Connections without end: the ones beyond the limit are closed, those of peers stay, and a peer that loses its own gets new ones when the
// strangers are gone, which have a few seconds to say what they want.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	a, b, p := loopback(t, &node{}, &node{})
	addr := b.cfg.Self.Addr
	var conns []net.Conn
	for range 3 * spareConns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	closed := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(acceptTimeout + 5*time.Second))
		began := time.Now()
		_, err := io.Copy(io.Discard, c)
		if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
			t.Fatalf("an idle connection is open after %v", time.Since(began))
		}
		closed++
		if rep, err := p.Do(t.Context(), get(fmt.Sprint(closed))); err != nil || len(rep.Value) == 0 {
			t.Fatalf("the peer: got %+v, %v", rep, err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	c := stranger(t, addr)
	if err := exchange(t.Context(), c, "/x/y"); status.Code(err) != codes.Unimplemented {
		t.Errorf("a connection after the flood: got %v", err)
	}
	shut(t, a, b)
}

// The limiter counts those that are open, wrapped or not.
func TestLimited(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var total atomic.Int64
	total.Store(100)
	l := newLimited(inner, func() (int, int) { return int(total.Load()), 3 })
	accepted := make(chan net.Conn, 10)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, ok := c.(*net.TCPConn); !ok {
				t.Errorf("got a %T, want the connection as it is", c)
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var open []net.Conn
	for range 3 {
		open = append(open, dial(), <-accepted)
	}
	refused := dial()
	if n, err := refused.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes of a connection beyond the limit", n)
	}
	_ = open[1].Close() // the accepted end
	open = append(open, dial(), <-accepted)
	_ = open[3].Close()
	total.Store(2)
	refused = dial()
	if _, err := refused.Read(make([]byte, 1)); err == nil {
		t.Error("a connection beyond the total was accepted")
	}
	for _, c := range open {
		_ = c.Close()
	}
	p1, p2 := net.Pipe()
	c := l.admit(p1)
	if c == nil || len(l.open) != 1 {
		t.Errorf("got %v, %d open", c, len(l.open))
	}
	_ = c.Close()
	_ = p2.Close()
	if len(l.open) != 0 || len(l.hosts) != 0 {
		t.Errorf("%d connections of %d hosts are left", len(l.open), len(l.hosts))
	}
	_ = l.Close()
	<-accepted
}

// With TLS a stranger does not even get to speak: a handshake that stops halfway is closed in time, and so is plain gRPC.
func TestStrangersTLS(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(newMemory(), "b", &node{})
	cfg.Self.Addr, cfg.TLS = l.Addr().String(), mutualTLS(t)
	b := New(cfg)
	b.Serve(l)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := exchange(ctx, stranger(t, cfg.Self.Addr), laneMethod); status.Code(err) != codes.Unavailable {
		t.Errorf("plain gRPC: got %v, want %v", err, codes.Unavailable)
	}
	began := time.Now()
	shout(t, cfg.Self.Addr, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") // the beginning of a ClientHello
	if took := time.Since(began); took > acceptTimeout+2*time.Second {
		t.Errorf("half a handshake was closed after %v", took)
	}
	old := bare(cfg.TLS)
	old.MaxVersion = tls.VersionTLS12
	if c, err := tls.Dial("tcp", cfg.Self.Addr, old); err == nil {
		_ = c.Close()
		t.Error("TLS 1.2 was accepted")
	}
	shut(t, b)
}
