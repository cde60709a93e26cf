package testcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

// childEnv holds a child's Settings: a test binary that finds it there is one node of a cluster.
const childEnv = "NEARCACHE_TESTCLUSTER_CHILD"

// Keyspace is the keyspace that every child opens. It keeps no near copies, so that each read asks the key's owner.
const Keyspace = "ks"

// Settings are what a child is started with.
type Settings struct {
	ID          string
	Listen      string // host:port
	Advertise   string // what the others dial; empty: where it listens
	Origin      string // URL that loads a key: see Origin
	PeerTimeout time.Duration
}

// Order is what a child is told. It answers each order with one Report, in their sequence.
type Order struct {
	Members []peers.Member // the cluster's members from now on; waits until the node is ready
	Read    *Reading       // start to read
	Halt    bool           // stop reading
	Get     string         // read a key once
	Owned   int            // name so many keys
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
	Error  string
	Listen string   // the first report, which answers no order
	Keys   []string // to Owned
	Member string   // to Get: who answered
	Tally  Tally    // to Halt
	Stats  nearcache.Stats
	Held   Resources
}

// Tally is what a child's callers met.
type Tally struct {
	Reads   int
	Slow    int // reads that took a PeerTimeout or longer
	Longest time.Duration
	Failed  map[string]int // reads by their error; a wrong value is one
}

// MaybeChild makes this process a child and does not return, if it was started as one. TestMain calls it first.
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
	cache    *nearcache.Cache[string]
	list     *peers.List

	halt    context.CancelFunc
	callers sync.WaitGroup

	mu    sync.Mutex // guards tally
	tally Tally
}

// runChild obeys until it is told to close. The end of its orders is its parent's end, and then its own.
func runChild(settings string, in io.Reader, out io.Writer) error {
	c := &child{list: peers.NewList(), halt: func() {}}
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
		r.Stats, r.Held = c.node.Stats(), Held()
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
		ID: c.settings.ID, Listener: l, Advertise: c.settings.Advertise, Discovery: c.list, PeerTimeout: c.settings.PeerTimeout,
	})
	if err != nil {
		return err
	}
	c.cache, err = nearcache.New(c.node, Keyspace, nearcache.Config[string]{Load: c.load, NearTTL: -1, TTL: time.Hour})
	return err
}

// load asks the parent.
func (c *child) load(ctx context.Context, key string) (string, error) {
	q := url.Values{"key": {key}, "by": {c.settings.ID}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.settings.Origin+"?"+q.Encode(), nil)
	if err != nil {
		return "", err
	}
	req.Close = true // a connection that is kept would be counted as the node's
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
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
	case o.Get != "":
		v, info, err := c.cache.GetInfo(context.Background(), o.Get)
		if err != nil {
			return err
		}
		r.Member = info.Member
		_, err = Version(o.Get, v)
		return err
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
	v, err := c.cache.Get(context.Background(), key)
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
