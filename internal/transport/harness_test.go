package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// memory is an in-memory network: addresses are names.
type memory struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	gates     map[string]*gate // per address dialled
	dials     int
}

func newMemory() *memory {
	return &memory{listeners: map[string]*bufconn.Listener{}, gates: map[string]*gate{}}
}

func (m *memory) listen(addr string) net.Listener {
	l := bufconn.Listen(64 << 10)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[addr] = l
	return gatedListener{l, m, addr}
}

// gatedListener gates what the listening member reads, as dial gates what the dialling one does: a shut gate is a frozen peer.
type gatedListener struct {
	net.Listener
	m    *memory
	addr string
}

func (l gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: c, g: l.m.gate(l.addr), done: make(chan struct{})}, nil
}

func (m *memory) gate(addr string) *gate {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gates[addr] == nil {
		m.gates[addr] = &gate{open: closedChan()}
	}
	return m.gates[addr]
}

func (m *memory) dial(ctx context.Context, addr string) (net.Conn, error) {
	g := m.gate(addr)
	m.mu.Lock()
	l := m.listeners[addr]
	m.dials++
	m.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	c, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: c, g: g, done: make(chan struct{})}, nil
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// gate stops what is read on the connections to an address: the peer looks frozen, while its connections live.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) lift() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
}

type gatedConn struct {
	net.Conn
	g    *gate
	once sync.Once
	done chan struct{}
}

func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.g.mu.Lock()
	open := c.g.open
	c.g.mu.Unlock()
	select {
	case <-open:
	case <-c.done:
	}
	return n, err
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// node is a handler that tests set the parts of.
type node struct {
	serve     func(s *Session, id uint32, req *Request, rep *Reply) bool
	subscribe func(s *Session) Subscription
	received  func(p *Peer, inc uint64, d *Down, sent time.Time)

	mu           sync.Mutex
	orphaned     []Reply
	orphanedKeys []string
	gone         int
	events       []string // Connected, Disconnected
}

func (n *node) Serve(s *Session, id uint32, req *Request, rep *Reply) bool {
	if n.serve == nil {
		rep.Status, rep.Value, rep.HasValue = StatusHit, []byte(req.Key), true
		return true
	}
	return n.serve(s, id, req, rep)
}

func (n *node) Gone(*Session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone++
}

func (n *node) Subscribe(s *Session) Subscription {
	if n.subscribe == nil {
		return &feed{c: make(chan *Down, 16)}
	}
	return n.subscribe(s)
}

func (n *node) Connected(p *Peer, inc uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, fmt.Sprint("connected ", p.ID(), " ", inc))
}

func (n *node) Received(p *Peer, inc uint64, d *Down, sent time.Time) {
	if n.received != nil {
		n.received(p, inc, d, sent)
	}
}

func (n *node) Disconnected(p *Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, fmt.Sprint("disconnected ", p.ID()))
}

func (n *node) Opened(*Peer) {}

func (n *node) Orphan(_ *Peer, req *Request, rep *Reply) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.orphaned = append(n.orphaned, *rep)
	n.orphanedKeys = append(n.orphanedKeys, req.Key)
}

func (n *node) orphans() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.orphaned)
}

// feed is a subscription that a test fills.
type feed struct {
	c      chan *Down
	mu     sync.Mutex
	closed bool
}

func (f *feed) Next(ctx context.Context) (*Down, error) {
	select {
	case d, ok := <-f.c:
		if !ok {
			return nil, errors.New("ended")
		}
		return d, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *feed) Renew(nonce uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	select {
	case f.c <- &Down{Renewed: true, Nonce: nonce, NearLease: time.Second}:
	default:
	}
}

func (f *feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		panic("subscription closed twice")
	}
	f.closed = true
}

const testTimeout = 100 * time.Millisecond

func testConfig(m *memory, id string, h Handler) Config {
	return Config{
		Self:        Self{ID: id, Addr: id, Cluster: "test", Incarnation: 1},
		View:        func() uint64 { return 42 },
		InView:      func(string, string) bool { return true },
		Handler:     h,
		Dial:        m.dial,
		PeerTimeout: testTimeout,
	}
}

// start makes a transport that listens in m.
func start(m *memory, id string, h Handler) *Transport {
	t := New(testConfig(m, id, h))
	t.Serve(m.listen(id))
	return t
}

// connect makes b a peer of t and waits until it can be used.
func connect(tb testing.TB, t *Transport) *Peer {
	tb.Helper()
	const id = "b"
	t.SetPeers([]PeerAddr{{ID: id, Addr: id}})
	p := t.Peer(id)
	await(tb, id+" is ready", p.Ready)
	return p
}

func await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 4000 {
		if ok() {
			return
		}
		<-tick.C
	}
	tb.Fatalf("gave up waiting: %s", what)
}

func shut(tb testing.TB, ts ...*Transport) {
	tb.Helper()
	for _, t := range ts {
		if err := t.Close(context.Background()); err != nil {
			tb.Errorf("Close: %v", err)
		}
	}
}

func get(key string) *Request {
	return &Request{Op: OpGet, Keyspace: "ks", Key: key, Budget: 5 * time.Second}
}

// split gives connections that are made from now on to addr a gate of their own, which is open.
func (m *memory) split(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gates[addr] = &gate{open: closedChan()}
}
