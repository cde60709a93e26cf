package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nearcache/nearcache"
)

// The stage: a fifteenth of a shop with 50,000 reads a second and a database for 6,000.
const (
	keyspace = "product"

	members  = 5
	reads    = 3400 // a second, on all members together
	products = 20_000
	patience = time.Second // of a visitor, and of a load
	bound    = time.Second // NodeConfig.Bound: what was changed longer ago must not be read any more

	hotProduct = "hot"
)

// scenario is one break. Times count from its begin, when the cluster is up; what readers see counts from from on.
type scenario struct {
	number   int
	title    string
	from, to time.Duration // when it is broken
	lasts    time.Duration
	ttl      time.Duration
	members  int
	reads    int // a second
	writes   int // a second, until to
	database capacity
	key      func(r *rand.Rand, z *rand.Zipf) string
	begin    func(c *cluster) // at from
	end      func(c *cluster) // at to
	remark   func(s scenario, c *cluster) string
	plain    bool // off is a plain map
	far      bool // off has no near copies
	warm     bool // each member has read what ten minutes of its visitors read
}

func breaks() []scenario {
	popular := func(_ *rand.Rand, z *rand.Zipf) string { return fmt.Sprint("product-", z.Uint64()) }
	hot := func(*rand.Rand, *rand.Zipf) string { return hotProduct }
	shop := perSecond(400, 25*time.Millisecond)
	return []scenario{
		{
			number: 1, title: "the members lose each other at peak", members: members, reads: reads, ttl: 30 * time.Second, warm: true,
			from: 2 * time.Second, to: 7 * time.Second, lasts: 23 * time.Second, database: shop, key: popular,
			begin: func(c *cluster) { c.part(true) }, end: func(c *cluster) { c.part(false) },
		},
		{
			number: 2, title: "a hot key expires every second and takes 250 ms to load", members: members, reads: 2000, ttl: time.Second,
			from: 2 * time.Second, to: 12 * time.Second, lasts: 12 * time.Second, plain: true, database: perSecond(40, 250*time.Millisecond), key: hot,
		},
		{
			number: 3, title: "a cold start at peak", members: members, reads: reads, ttl: time.Minute,
			from: 0, to: 20 * time.Second, lasts: 20 * time.Second, database: shop, key: popular,
		},
		{
			number: 4, title: "the stream of changes is lost", members: members, reads: reads, ttl: 5 * time.Minute, warm: true, writes: 50,
			from: 3 * time.Second, to: 13 * time.Second, lasts: 23 * time.Second, database: shop, key: popular,
			begin: func(c *cluster) { c.changes.broken.Store(true) }, end: func(c *cluster) { c.changes.broken.Store(false) }, remark: drifted,
		},
		{
			number: 5, title: "one product, 3,750 times a second on each of ten members", members: 10, reads: 37_500, ttl: time.Minute,
			from: 2 * time.Second, to: 12 * time.Second, lasts: 13 * time.Second, far: true, database: shop, key: hot,
			begin: func(c *cluster) { c.served = -served(c) }, end: func(c *cluster) { c.served += served(c) }, remark: asked,
		},
	}
}

// drifted says what the samplers saw.
func drifted(_ scenario, c *cluster) string {
	var sum nearcache.AuditStats
	for _, n := range c.nodes {
		a := n.Stats().Keyspaces[keyspace].Audit
		sum.Values += a.Values
		sum.Drifted += a.Drifted
	}
	return fmt.Sprintf("the samplers compared %d values with the database, %d were old", sum.Values, sum.Drifted)
}

// served is how often the hot product's owner was asked for it by others.
func served(c *cluster) int64 {
	owner := c.nodes[0].Owner(keyspace, hotProduct).ID
	i := slices.IndexFunc(c.nodes, func(n *nearcache.Node) bool { return n.ID() == owner })
	for _, k := range c.nodes[i].Stats().Keyspaces[keyspace].Top {
		if k.Key == hotProduct {
			return int64(k.Served)
		}
	}
	return 0
}

// asked says how often that was while it was broken.
func asked(s scenario, c *cluster) string {
	rate := float64(c.served) / (s.to - s.from).Seconds() / float64(s.members-1)
	return fmt.Sprintf("each of the other members asks the owner %.2f times a second", rate)
}

// faster makes the phases shorter.
func (s scenario) faster(by float64) scenario {
	for _, d := range []*time.Duration{&s.from, &s.to, &s.lasts} {
		*d = time.Duration(float64(*d) / by)
	}
	return s
}

// open opens the database: a simulated one if dsn is empty.
func (s scenario) open(ctx context.Context, dsn string) (*database, error) {
	if dsn == "" {
		return newDatabase(newSimulated(s.database.slots), s.database), nil
	}
	t, err := newPostgres(ctx, dsn, s.database.slots)
	if err != nil {
		return nil, err
	}
	return newDatabase(t, s.database), nil
}

// config is the cache's: the same keyspace, with and without what protects the origin.
func (s scenario) config(db *database, protected bool) nearcache.Config[int] {
	cfg := nearcache.Config[int]{
		TTL: s.ttl, LoadTimeout: patience, MaxLoads: -1, Load: db.query, VersionOf: func(version int) uint64 { return uint64(version) },
	}
	if protected {
		cfg.MaxLoads = max(1, db.slots/s.members) // the database's share of each process
		cfg.StaleOnError = 10 * time.Minute
	}
	if s.far && !protected {
		cfg.NearTTL = -1
	}
	if s.writes > 0 {
		cfg.Audit.Values = 100
	}
	return cfg
}
