package peers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsServer is a name server on loopback. What does not fit into a datagram it cuts off, and answers in full over TCP.
type dnsServer struct {
	conn net.PacketConn
	tcp  net.Listener
	wg   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	records map[string][]dnsmessage.ResourceBody
	failing map[dnsmessage.Type]bool // answered with a server failure
	silent  bool                     // does not answer at all
	noTCP   bool                     // hangs up on TCP
}

// startDNS starts a server and returns it with a resolver that asks it alone.
func startDNS(t *testing.T) (*dnsServer, *net.Resolver) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dnsServer{
		conn: conn, tcp: tcp,
		records: make(map[string][]dnsmessage.ResourceBody), failing: make(map[dnsmessage.Type]bool),
	}
	s.wg.Go(s.serve)
	s.wg.Go(s.serveTCP)
	t.Cleanup(func() {
		_ = conn.Close() // ends serve
		_ = tcp.Close()  // ends serveTCP
		s.wg.Wait()
	})
	return s, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		if strings.HasPrefix(network, "tcp") {
			return (&net.Dialer{}).DialContext(ctx, "tcp4", tcp.Addr().String())
		}
		return (&net.Dialer{}).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

func (s *dnsServer) set(name string, records ...dnsmessage.ResourceBody) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = records
}

func (s *dnsServer) fail(kind dnsmessage.Type, failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing[kind] = failing
}

// ignore makes the server ignore questions, or only those over TCP.
func (s *dnsServer) ignore(all, tcp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.noTCP = all, tcp
}

// maxDatagram is what resolvers accept over UDP.
const maxDatagram = 1232

func (s *dnsServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply := s.reply(buf[:n], maxDatagram); reply != nil {
			_, _ = s.conn.WriteTo(reply, from) // the resolver asks again
		}
	}
}

func (s *dnsServer) serveTCP() {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.answerTCP(conn)
	}
}

// answerTCP answers one question.
func (s *dnsServer) answerTCP(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	noTCP := s.noTCP
	s.mu.Unlock()
	var length uint16
	if noTCP || binary.Read(conn, binary.BigEndian, &length) != nil {
		return
	}
	query := make([]byte, length)
	if _, err := io.ReadFull(conn, query); err != nil {
		return
	}
	reply := s.reply(query, math.MaxUint16)
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)) // the resolver asks again
}

// reply returns the answer, without records if it would be longer than limit.
func (s *dnsServer) reply(query []byte, limit int) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true},
		Questions: m.Questions,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	records, ok := s.records[strings.ToLower(q.Name.String())]
	switch {
	case s.silent:
		return nil
	case s.failing[q.Type]:
		reply.RCode = dnsmessage.RCodeServerFailure
	case !ok:
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, body := range records {
		if reply.RCode == dnsmessage.RCodeSuccess && typeOf(body) == q.Type {
			header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: dnsmessage.ClassINET, TTL: 5}
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: header, Body: body})
		}
	}
	packed, err := reply.Pack()
	if err == nil && len(packed) > limit {
		reply.Answers, reply.Truncated = nil, true
		packed, err = reply.Pack()
	}
	if err != nil {
		return nil
	}
	return packed
}

func typeOf(body dnsmessage.ResourceBody) dnsmessage.Type {
	switch body.(type) {
	case *dnsmessage.AResource:
		return dnsmessage.TypeA
	case *dnsmessage.AAAAResource:
		return dnsmessage.TypeAAAA
	case *dnsmessage.SRVResource:
		return dnsmessage.TypeSRV
	}
	return 0
}

func ip(addr string) dnsmessage.ResourceBody {
	a := netip.MustParseAddr(addr)
	if a.Is4() {
		return &dnsmessage.AResource{A: a.As4()}
	}
	return &dnsmessage.AAAAResource{AAAA: a.As16()}
}

func srv(target string, port, weight uint16) dnsmessage.ResourceBody {
	return &dnsmessage.SRVResource{Target: dnsmessage.MustNewName(target), Port: port, Weight: weight}
}

func TestDNSLookups(t *testing.T) {
	server, resolver := startDNS(t)
	server.set("v4.test.", ip("10.0.0.2"), ip("10.0.0.10"), ip("10.0.0.2"))
	server.set("v6.test.", ip("2001:db8::2"), ip("2001:db8::1"))
	server.set("both.test.", ip("10.0.0.1"), ip("2001:db8::1"), ip("2001:db8::2"))
	server.set("none.test.")
	server.set("_cache._tcp.srv.test.", srv("Pod-1.srv.test.", 7946, 33), srv("pod-0.srv.test.", 7947, 33))
	server.set("_cache._tcp.weights.test.", srv("a.test.", 1, 60), srv("b.test.", 1, 40), srv("c.test.", 1, 20))
	server.set("_cache._tcp.zero.test.", srv("a.test.", 1, 0), srv("b.test.", 1, 0))
	server.set("_cache._tcp.closed.test.", srv(".", 0, 0))
	server.set("_cache._tcp.empty.test.")

	for name, want := range map[string]string{
		"v4.test.:7946":             "10.0.0.10:7946*0 10.0.0.2:7946*0",
		"V4.test.:07946":            "10.0.0.10:7946*0 10.0.0.2:7946*0",
		"v6.test.:1":                "[2001:db8::1]:1*0 [2001:db8::2]:1*0",
		"both.test.:1":              "10.0.0.1:1*0",
		"10.0.0.9:1":                "10.0.0.9:1*0",
		"[2001:DB8::9]:1":           "[2001:db8::9]:1*0",
		"_cache._tcp.srv.test.":     "pod-0.srv.test:7947*1 pod-1.srv.test:7946*1",
		"_cache._tcp.weights.test.": "a.test:1*3 b.test:1*2 c.test:1*1",
		"_cache._tcp.zero.test.":    "a.test:1*1 b.test:1*1",
		"none.test.:1":              "",
		"unknown.test.:1":           "",
		"_cache._tcp.closed.test.":  "",
		"_cache._tcp.empty.test.":   "",
		"_cache._tcp.unknown.test.": "",
	} {
		if got := ask(t, resolver, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// ask returns the members with their weights, or nothing for an error, which an answer without members has to be.
func ask(t *testing.T, resolver *net.Resolver, name string) string {
	t.Helper()
	lookup, err := newLookup(name, resolver)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	members, err := lookup(ctx)
	if (err == nil) != (len(members) > 0) {
		t.Errorf("%s: got %v, %v, want either", name, members, err)
	}
	var parts []string
	for _, m := range members {
		if m.ID != "" || m.Zone != "" {
			t.Errorf("%s: got %+v, want neither ID nor zone", name, m)
		}
		parts = append(parts, m.Addr+"*"+string(rune('0'+m.Weight)))
	}
	return strings.Join(parts, " ")
}

// TestDNSFailureOfOneFamily: when the question for IPv4 fails, the IPv6 answer alone is no list.
func TestDNSFailureOfOneFamily(t *testing.T) {
	server, resolver := startDNS(t)
	server.set("both.test.", ip("10.0.0.1"), ip("2001:db8::1"))
	server.set("v6.test.", ip("2001:db8::1"))
	server.fail(dnsmessage.TypeA, true)
	for _, name := range []string{"both.test.:1", "v6.test.:1"} {
		if got := ask(t, resolver, name); got != "" {
			t.Errorf("%s while IPv4 fails: got %q, want an error", name, got)
		}
	}
	server.fail(dnsmessage.TypeA, false)
	server.fail(dnsmessage.TypeAAAA, true)
	if got, want := ask(t, resolver, "both.test.:1"), "10.0.0.1:1*0"; got != want {
		t.Errorf("while IPv6 fails: got %q, want %q", got, want)
	}
}

// A list is never half of one: not when the answer does not fit into a datagram, and not when one of the targets makes no sense.
func TestDNSAnswersAreWhole(t *testing.T) {
	server, resolver := startDNS(t)
	var addrs, targets []dnsmessage.ResourceBody
	for i := range 200 {
		addrs = append(addrs, ip(fmt.Sprintf("10.0.1.%d", i)))
		targets = append(targets, srv(fmt.Sprintf("pod-%d.cache.test.", i), 1, 1))
	}
	server.set("many.test.", addrs...)
	server.set("_cache._tcp.many.test.", targets...)
	server.set("_cache._tcp.odd.test.", srv("good.test.", 1, 1), srv("b d.test.", 1, 1))
	server.set("_cache._tcp.port.test.", srv("good.test.", 1, 1), srv("other.test.", 0, 1))
	for _, name := range []string{"many.test.:1", "_cache._tcp.many.test."} {
		if got := len(strings.Fields(ask(t, resolver, name))); got != 200 {
			t.Errorf("%s: got %d members, want 200", name, got)
		}
	}
	for _, name := range []string{"_cache._tcp.odd.test.", "_cache._tcp.port.test."} {
		if got := ask(t, resolver, name); got != "" {
			t.Errorf("%s: got %q, want an error", name, got)
		}
	}
	server.ignore(false, true)
	for _, name := range []string{"many.test.:1", "_cache._tcp.many.test."} {
		if got := ask(t, resolver, name); got != "" {
			t.Errorf("%s without TCP: got %d members, want an error", name, len(strings.Fields(got)))
		}
	}
}

// A server that does not answer costs the time that there is for a question, and no list.
func TestDNSWithoutAnAnswer(t *testing.T) {
	server, resolver := startDNS(t)
	server.set("cache.test.", ip("10.0.0.1"))
	server.ignore(true, true)
	for _, name := range []string{"cache.test.:1", "_cache._tcp.cache.test."} {
		lookup, err := newLookup(name, resolver)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if got, err := lookup(ctx); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
		cancel()
	}
}

// Case discovery-1: the whole path over a socket.
func TestDNSKeepsTheLastList(t *testing.T) {
	server, resolver := startDNS(t)
	lookup, err := newLookup("cache.test.:1", resolver)
	if err != nil {
		t.Fatal(err)
	}
	server.set("cache.test.", ip("10.0.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked, lists := 0, make(chan []Member, 1)
	d := &dns{interval: time.Millisecond, lookup: func(ctx context.Context) ([]Member, error) {
		asked++
		switch asked {
		case 2:
			server.set("cache.test.") // empty
		case 3:
			server.fail(dnsmessage.TypeA, true)
		case 4:
			server.fail(dnsmessage.TypeA, false)
			server.set("cache.test.", ip("10.0.0.1"), ip("10.0.0.2"))
		}
		return lookup(ctx)
	}}
	done := make(chan error, 1)
	go func() { done <- d.Watch(ctx, func(members []Member) { lists <- members }) }()
	for _, want := range []string{"10.0.0.1:1", "10.0.0.1:1 10.0.0.2:1"} {
		if got := addrsOf([][]Member{<-lists}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	cancel()
	for {
		select {
		case <-lists:
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Watch: got %v", err)
			}
			return
		}
	}
}
