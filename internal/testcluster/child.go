package testcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

// childEnv holds a child's Settings: a test binary that finds it there is one node of a cluster.
const childEnv = "NEARCACHE_TESTCLUSTER_CHILD"

// The keyspaces that every child opens, both with the same origin.
const (
	Keyspace = "ks"   // keeps no near copies, so that each read asks the key's owner
	Near     = "near" // keeps near copies for a minute
)

// Settings are what a child is started with.
type Settings struct {
	Program string `json:"-"` // a build of internal/testcluster/member; empty: this test binary

	ID          string
	Listen      string // host:port
	Advertise   string // what the others dial; empty: where it listens
	Origin      string // URL that loads a key: see Origin
	PeerTimeout time.Duration
	Bound       time.Duration // 0: the default
	Replicas    int           // 0: the default
}

// Order is what a child is told. It answers each order with one Report, in their sequence.
type Order struct {
	Members []peers.Member // the cluster's members from now on; waits until the node is ready
	Read    *Reading       // start to read
	Halt    bool           // stop reading
	Call    *Call          // call the API once
	Owned   int            // name so many keys of Keyspace
	By      string         // that this member owns
	Close   bool           // close the node, and exit
}

// Reading is what a child reads until it is told to halt.
type Reading struct {
	Keys    []string
	Callers int
	Pause   time.Duration // of each caller after each read
}

// Report is a child's answer to an order.
type Report struct {
	Error   string
	Listen  string   // the first report, which answers no order
	Keys    []string // to Owned
	Answers []Answer // to Call: one per key
	Tally   Tally    // to Halt
	Log     string   // what the node has logged since the last report
	Stats   nearcache.Stats
	Held    Resources
}

// Tally is what a child's callers met.
type Tally struct {
	Reads   int
	Slow    int // reads that took a PeerTimeout or longer
	Longest time.Duration
	Failed  map[string]int // reads by their error; a wrong value is one
}

// MaybeChild makes this process a child and does not return, if it was started as one. TestMain, and the main function of the
// program internal/testcluster/member, call it first.
func MaybeChild() {
	settings := os.Getenv(childEnv)
	if settings == "" {
		return
	}
	if err := runChild(settings, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a node in a process of its own.
type child struct {
	settings Settings
	node     *nearcache.Node
	caches   map[string]*nearcache.Cache[string]
	list     *peers.List
	log      *logged

	halt    context.CancelFunc
	callers sync.WaitGroup

	mu    sync.Mutex // guards tally
	tally Tally
}

// runChild obeys until it is told to close. The end of its orders is its parent's end, and then its own.
func runChild(settings string, in io.Reader, out io.Writer) error {
	c := &child{caches: make(map[string]*nearcache.Cache[string]), list: peers.NewList(), log: &logged{}, halt: func() {}}
	if err := json.Unmarshal([]byte(settings), &c.settings); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	if err := reports.Encode(Report{Listen: c.settings.Listen}); err != nil {
		return err
	}
	for {
		var o Order
		if err := orders.Decode(&o); err != nil {
			return err
		}
		var r Report
		if err := c.obey(o, &r); err != nil {
			r.Error = err.Error()
		}
		r.Stats, r.Held, r.Log = c.node.Stats(), Held(), c.log.take()
		if err := reports.Encode(r); err != nil || o.Close {
			return err
		}
	}
}

func (c *child) start() error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", c.settings.Listen)
	if err != nil {
		return err
	}
	c.settings.Listen = l.Addr().String()
	c.node, err = nearcache.Start(context.Background(), nearcache.NodeConfig{
		ID: c.settings.ID, Listener: l, Advertise: c.settings.Advertise, Discovery: c.list,
		PeerTimeout: c.settings.PeerTimeout, Bound: c.settings.Bound, Replicas: c.settings.Replicas,
		Logger: slog.New(slog.NewTextHandler(c.log, nil)),
	})
	if err != nil {
		return err
	}
	for keyspace, nearTTL := range map[string]time.Duration{Keyspace: -1, Near: time.Minute} {
		c.caches[keyspace], err = nearcache.New(c.node, keyspace, nearcache.Config[string]{
			Load: c.load, NearTTL: nearTTL, TTL: time.Hour, Errors: map[string]error{"known": errKnown},
			LoadQueueTimeout: 5 * time.Second, // a machine that is busy with other things is no overload
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *child) obey(o Order, r *Report) error {
	switch {
	case o.Members != nil:
		c.list.Set(o.Members...)
		for len(c.node.Members()) != len(o.Members) {
			Wait()
		}
		return c.node.Ready(context.Background())
	case o.Read != nil:
		c.read(*o.Read)
	case o.Halt:
		c.halt()
		c.callers.Wait()
		r.Tally, c.tally = c.tally, Tally{}
	case o.Call != nil:
		r.Answers = c.call(context.Background(), o.Call)
	case o.Owned > 0:
		for i := range o.Owned {
			r.Keys = append(r.Keys, Key(c.node, Keyspace, o.By, i))
		}
	case o.Close:
		return c.node.Close(context.Background())
	}
	return nil
}

// read starts the callers.
func (c *child) read(r Reading) {
	ctx, cancel := context.WithCancel(context.Background())
	c.halt = cancel
	for i := range r.Callers {
		c.callers.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				c.once(r.Keys[n%len(r.Keys)])
				Last(r.Pause)
			}
		})
	}
}

// once reads a key without a deadline and notes what came.
func (c *child) once(key string) {
	began := time.Now()
	v, err := c.caches[Keyspace].Get(context.Background(), key)
	took := time.Since(began)
	if err == nil {
		_, err = Version(key, v)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.tally
	t.Reads++
	t.Longest = max(t.Longest, took)
	if took >= c.settings.PeerTimeout {
		t.Slow++
	}
	if err != nil {
		if t.Failed == nil {
			t.Failed = make(map[string]int)
		}
		t.Failed[err.Error()]++
	}
}

// logged is what the node has logged. It is safe for concurrent use.
type logged struct {
	mu    sync.Mutex // guards lines
	lines []byte
}

// Write implements io.Writer.
func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, b...)
	return len(b), nil
}

func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := string(l.lines)
	l.lines = nil
	return s
}
