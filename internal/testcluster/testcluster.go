// Package testcluster starts clusters of real nodes in one process for tests: over loopback sockets, or over an in-memory
// network inside a testing/synctest bubble. Both talk real gRPC.
package testcluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/peers/peerstest"
)

// Cluster is a number of nodes that know each other.
type Cluster struct {
	// Nodes are the members, n0, n1, ... An element becomes nil when its node is removed.
	Nodes []*nearcache.Node
	// List is the discovery that all of them follow. Tests that change it tell it the members themselves.
	List *peers.List
	// Network joins the nodes of Bubble; nil for Loopback.
	Network *peerstest.Network

	tb     testing.TB
	config func(i int) nearcache.NodeConfig
}

// Option changes the configuration of node i.
type Option func(i int, cfg *nearcache.NodeConfig)

// PeerTimeout gives peers more time: tests that count loads must not have a slow machine's time-outs among them.
func PeerTimeout(d time.Duration) Option {
	return func(_ int, cfg *nearcache.NodeConfig) { cfg.PeerTimeout = d }
}

// Loopback starts n nodes on 127.0.0.1 and waits until they are connected. They are closed with the test.
func Loopback(tb testing.TB, n int, opts ...Option) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, List: peers.NewList()}
	c.config = func(i int) nearcache.NodeConfig {
		cfg := nearcache.NodeConfig{ID: fmt.Sprintf("n%d", i), Listen: "127.0.0.1:0", Discovery: c.List, PeerTimeout: 2 * time.Second}
		for _, o := range opts {
			o(i, &cfg)
		}
		return cfg
	}
	c.grow(n)
	return c
}

// Bubble starts n nodes, node i on the host Host(i) of an in-memory network, and waits until they are warm. It must be called inside a
// bubble; the nodes are closed with the test.
func Bubble(tb testing.TB, n int, opts ...Option) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, List: peers.NewList(), Network: peerstest.NewNetwork()}
	c.config = func(i int) nearcache.NodeConfig {
		host := c.Network.Host(Host(i))
		l, err := host.Listen(":7946")
		if err != nil {
			tb.Fatal(err)
		}
		cfg := nearcache.NodeConfig{ID: fmt.Sprintf("n%d", i), Listener: l, Dial: host.Dial, Discovery: c.List}
		for _, o := range opts {
			o(i, &cfg)
		}
		return cfg
	}
	c.grow(n)
	c.Warm()
	return c
}

// Host is the name of node i's host on the in-memory network.
func Host(i int) string { return fmt.Sprintf("127.0.0.%d", i+1) }

// grow starts n nodes and makes them members.
func (c *Cluster) grow(n int) {
	c.tb.Helper()
	for i := range n {
		c.Nodes = append(c.Nodes, c.Start(i))
	}
	c.List.Set(c.Members()...)
	c.Ready()
}

// Start starts node i without making it a member: Nodes and List stay as they are.
func (c *Cluster) Start(i int) *nearcache.Node {
	c.tb.Helper()
	node, err := nearcache.Start(context.Background(), c.config(i))
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() {
		if err := node.Close(context.Background()); err != nil {
			c.tb.Errorf("closing %s: %v", node.ID(), err)
		}
	})
	return node
}

// Members returns the members that are not removed.
func (c *Cluster) Members() []peers.Member {
	var all []peers.Member
	for _, n := range c.Nodes {
		if n != nil {
			all = append(all, peers.Member{ID: n.ID(), Addr: n.Addr()})
		}
	}
	return all
}

// Ready waits until all nodes see the same members and are connected to each other.
func (c *Cluster) Ready() {
	c.tb.Helper()
	want := len(c.Members())
	for _, n := range c.Nodes {
		if n == nil {
			continue
		}
		for len(n.Members()) != want {
			Wait()
		}
		if err := n.Ready(context.Background()); err != nil {
			c.tb.Fatal(err)
		}
	}
}

// Warm waits until no node is in doubt: what they own lives as long as it should.
func (c *Cluster) Warm() {
	c.tb.Helper()
	for _, n := range c.Nodes {
		if n == nil {
			continue
		}
		if err := n.ReadyWarm(context.Background()); err != nil {
			c.tb.Fatal(err)
		}
	}
}

// Wait lets a little time pass: for conditions that have no event to wait for.
func Wait() { Last(time.Millisecond) }

// Last lets d pass: for what has to last so long, as a fault in a cluster of processes.
func Last(d time.Duration) {
	t := time.NewTimer(d)
	<-t.C
}

// Key returns a key of the keyspace that the member owns; different n give different keys.
func Key(node *nearcache.Node, keyspace, owner string, n int) string {
	for i := 0; ; i++ {
		k := fmt.Sprintf("key-%d-%d", n, i)
		if node.Owner(keyspace, k).ID == owner {
			return k
		}
	}
}
