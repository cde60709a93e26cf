package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/peers/peerstest"
)

// reader is what a visitor asks: one member's cache.
type reader interface {
	read(ctx context.Context, key string) (stale bool, err error)
}

// cluster are the members.
type cluster struct {
	network *peerstest.Network
	nodes   []*nearcache.Node
	readers []reader
}

func host(i int) string { return fmt.Sprintf("127.0.0.%d", i+1) }

// startCluster starts the members with a keyspace of cfg and waits until they are warm.
func startCluster(ctx context.Context, cfg nearcache.Config[string]) (*cluster, error) {
	c := &cluster{network: peerstest.NewNetwork()}
	list := peers.NewList()
	var all []peers.Member
	for i := range members {
		h := c.network.Host(host(i))
		l, err := h.Listen(":7946")
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		n, err := nearcache.Start(ctx, nearcache.NodeConfig{ID: fmt.Sprint("n", i), Listener: l, Dial: h.Dial, Discovery: list})
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.nodes = append(c.nodes, n)
		all = append(all, peers.Member{ID: n.ID(), Addr: n.Addr()})
		cache, err := nearcache.New(n, "product", cfg)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.readers = append(c.readers, member{cache})
	}
	list.Set(all...)
	for _, n := range c.nodes {
		if err := n.ReadyWarm(ctx); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// part cuts all members off from each other, or joins them again.
func (c *cluster) part(apart bool) {
	if !apart {
		c.network.HealAll()
		return
	}
	for i := range c.nodes {
		c.network.Isolate(host(i))
	}
}

func (c *cluster) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(c.nodes))
	for i, n := range c.nodes {
		wg.Go(func() { errs[i] = n.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// member reads through nearcache.
type member struct{ cache *nearcache.Cache[string] }

func (m member) read(ctx context.Context, key string) (bool, error) {
	_, info, err := m.cache.GetInfo(ctx, key)
	return info.Stale, err
}

func (m member) warm(ctx context.Context, keys []string) error {
	_, err := m.cache.GetMany(ctx, keys)
	return err
}

// plain is what many a program has instead: a map with lifetimes in each process, and a query for each miss.
type plain struct {
	ttl  time.Duration
	load func(ctx context.Context, key string) (string, error)

	mu    sync.Mutex // guards until
	until map[string]time.Time
}

func newPlain(cfg nearcache.Config[string]) *plain {
	return &plain{ttl: cfg.TTL, load: cfg.Load, until: make(map[string]time.Time)}
}

func (p *plain) read(ctx context.Context, key string) (bool, error) {
	p.mu.Lock()
	fresh := time.Now().Before(p.until[key])
	p.mu.Unlock()
	if fresh {
		return false, nil
	}
	began := time.Now()
	if _, err := p.load(ctx, key); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until[key] = began.Add(p.ttl)
	return false, nil
}
