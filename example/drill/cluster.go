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
	read(ctx context.Context, key string) (answer, error)
}

// answer is the version of a product that a visitor gets.
type answer struct {
	version int
	stale   bool // and known to be
}

// cluster are the members.
type cluster struct {
	network *peerstest.Network
	changes *stream // what was written to the database; nil: nothing is
	nodes   []*nearcache.Node
	readers []reader
	served  int64 // see asked
}

func host(i int) string { return fmt.Sprintf("127.0.0.%d", i+1) }

// startCluster starts the members, which read from db, and waits until they are warm.
func startCluster(ctx context.Context, s scenario, db *database, protected bool) (*cluster, error) {
	c := &cluster{network: peerstest.NewNetwork()}
	if s.writes > 0 {
		c.changes = &stream{Source: db.changes(), forgets: !protected}
	}
	list := peers.NewList()
	var all []peers.Member
	for i := range s.members {
		if err := c.start(ctx, i, list, s.config(db, protected)); err != nil {
			return nil, errors.Join(err, c.close())
		}
		all = append(all, peers.Member{ID: c.nodes[i].ID(), Addr: c.nodes[i].Addr()})
	}
	list.Set(all...)
	for _, n := range c.nodes {
		if err := n.ReadyWarm(ctx); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// start starts member i with a keyspace of cfg.
func (c *cluster) start(ctx context.Context, i int, list peers.Discovery, cfg nearcache.Config[int]) error {
	h := c.network.Host(host(i))
	l, err := h.Listen(":7946")
	if err != nil {
		return err
	}
	n, err := nearcache.Start(ctx, nearcache.NodeConfig{ID: fmt.Sprint("n", i), Listener: l, Dial: h.Dial, Discovery: list, Bound: bound})
	if err != nil {
		return err
	}
	c.nodes = append(c.nodes, n)
	if c.changes != nil {
		if _, err := n.Follow(ctx, c.changes, nearcache.FeedConfig{}); err != nil {
			return err
		}
	}
	cache, err := nearcache.New(n, keyspace, cfg)
	if err != nil {
		return err
	}
	c.readers = append(c.readers, member{cache})
	return nil
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
type member struct{ cache *nearcache.Cache[int] }

func (m member) read(ctx context.Context, key string) (answer, error) {
	version, info, err := m.cache.GetInfo(ctx, key)
	return answer{version, info.Stale}, err
}

func (m member) warm(ctx context.Context, keys []string) error {
	_, err := m.cache.GetMany(ctx, keys)
	return err
}

// plain is what many a program has instead: a map with lifetimes in each process, and a query for each miss.
type plain struct {
	ttl time.Duration
	db  *database

	mu   sync.Mutex // guards held
	held map[string]held
}

type held struct {
	version int
	until   time.Time
}

func newPlain(ttl time.Duration, db *database) *plain {
	return &plain{ttl: ttl, db: db, held: make(map[string]held)}
}

func (p *plain) read(ctx context.Context, key string) (answer, error) {
	p.mu.Lock()
	h := p.held[key]
	p.mu.Unlock()
	began := time.Now()
	if began.Before(h.until) {
		return answer{version: h.version}, nil
	}
	version, err := p.db.query(ctx, key)
	if err != nil {
		return answer{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[key] = held{version, began.Add(p.ttl)}
	return answer{version: version}, nil
}
