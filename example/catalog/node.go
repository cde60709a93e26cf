package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

// shopNode is one process of the shop: a member of the cluster with the product cache, and its statistics page. This file is all that an
// application needs to do.
type shopNode struct {
	node     *nearcache.Node
	products *nearcache.Cache[product]
	origin   *originClient
}

const peerTimeout = 250 * time.Millisecond

// keyspace is the name of the product cache in the cluster.
const keyspace = "product"

// startNode starts the cache on listener as a member of the cluster that list names, and waits until it has joined.
func startNode(ctx context.Context, s settings, listener net.Listener, list *peers.List) (*shopNode, error) {
	node, err := nearcache.Start(ctx, nearcache.NodeConfig{
		ID:        nodeName(s.Node),
		Listener:  listener,
		Discovery: list,
		// All nodes and the database share one machine, perhaps a busy one: do not take a busy node for a dead one too soon.
		PeerTimeout: peerTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("start the node: %w", err)
	}
	n := &shopNode{node: node, origin: newOriginClient(s.Origin, s.Node, s.MaxLoads)}
	n.products, err = nearcache.New(node, keyspace, nearcache.Config[product]{
		Load:     n.load,
		TTL:      s.TTL,
		MaxLoads: s.MaxLoads, // this process' share of what the origin can do
		// When everything is cold at once the demonstration prefers slow answers to shed ones.
		LoadQueueTimeout: 4 * time.Second,
	})
	if err == nil {
		err = node.ReadyWarm(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the cache: %w", err), n.close(ctx))
	}
	return n, nil
}

// load asks the origin. The cache calls it once for all who wait for the product, on any node.
func (n *shopNode) load(ctx context.Context, id string) (product, error) {
	p, err := n.origin.product(ctx, id)
	if errors.Is(err, errNoProduct) {
		return p, nearcache.ErrNotFound
	}
	return p, err
}

// get returns a product and where it came from.
func (n *shopNode) get(ctx context.Context, id string) (product, tier, error) {
	p, info, err := n.products.GetInfo(ctx, id)
	switch {
	case err != nil:
		return p, tierFailed, err
	case info.Tier == nearcache.TierNear:
		return p, tierNear, nil
	case info.Tier == nearcache.TierOrigin:
		return p, tierOrigin, nil
	case info.Member == n.node.ID():
		return p, tierOwn, nil
	default:
		return p, tierPeer, nil
	}
}

// invalidate tells the cluster that a product has changed at the origin.
func (n *shopNode) invalidate(ctx context.Context, id string) error {
	return n.products.Invalidate(ctx, id)
}

// pages returns the handler of the statistics page, mounted as an application would next to its own.
func (n *shopNode) pages() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(pagePath, http.StripPrefix(pagePath[:len(pagePath)-1], n.node.Handler()))
	return mux
}

const pagePath = "/debug/nearcache/"

// close leaves the cluster and waits until everything has stopped.
func (n *shopNode) close(ctx context.Context) error {
	err := n.node.Close(ctx)
	n.origin.close()
	return err
}

func nodeName(number int) string { return fmt.Sprintf("node-%d", number+1) }
