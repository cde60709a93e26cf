package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nearcache/nearcache"
)

// The stage: a fifteenth of a shop with 50,000 reads a second and a database for 6,000.
const (
	members  = 5
	reads    = 3400 // a second, on all members together
	limit    = 400  // queries a second that the database can do
	querying = 25 * time.Millisecond
	products = 20_000
	patience = time.Second // of a visitor, and of a load
)

// scenario is one break. Times count from its begin, when the cluster is up; what readers see counts from from on.
type scenario struct {
	number   int
	title    string
	from, to time.Duration // when it is broken
	lasts    time.Duration
	ttl      time.Duration
	reads    int
	database func() *database
	key      func(r *rand.Rand, z *rand.Zipf) string
	begin    func(c *cluster) // at from
	end      func(c *cluster) // at to
	plain    bool             // off is a plain map
	warm     bool             // each member has read what ten minutes of its visitors read
}

func breaks() []scenario {
	popular := func(_ *rand.Rand, z *rand.Zipf) string { return fmt.Sprint("product-", z.Uint64()) }
	shop := func() *database { return newDatabase(limit, querying) }
	return []scenario{
		{
			number: 1, title: "the members lose each other at peak", reads: reads, ttl: 30 * time.Second, warm: true,
			from: 2 * time.Second, to: 7 * time.Second, lasts: 23 * time.Second, database: shop, key: popular,
			begin: func(c *cluster) { c.part(true) }, end: func(c *cluster) { c.part(false) },
		},
		{
			number: 2, title: "a hot key expires every second and takes 250 ms to load", reads: 2000, ttl: time.Second,
			from: 2 * time.Second, to: 12 * time.Second, lasts: 12 * time.Second, plain: true,
			database: func() *database { return newDatabase(40, 250*time.Millisecond) },
			key:      func(*rand.Rand, *rand.Zipf) string { return "hot" },
		},
		{
			number: 3, title: "a cold start at peak", reads: reads, ttl: time.Minute,
			from: 0, to: 20 * time.Second, lasts: 20 * time.Second, database: shop, key: popular,
		},
	}
}

// faster makes the phases shorter.
func (s scenario) faster(by float64) scenario {
	for _, d := range []*time.Duration{&s.from, &s.to, &s.lasts} {
		*d = time.Duration(float64(*d) / by)
	}
	return s
}

// config is the cache's: the same keyspace, with and without what protects the origin.
func (s scenario) config(db *database, protected bool) nearcache.Config[string] {
	cfg := nearcache.Config[string]{
		TTL: s.ttl, LoadTimeout: patience, MaxLoads: -1,
		Load: func(ctx context.Context, key string) (string, error) { return key, db.query(ctx) },
	}
	if protected {
		cfg.MaxLoads = max(1, len(db.servers)/members) // the database's share of each process
		cfg.StaleOnError = 10 * time.Minute
	}
	return cfg
}

// perform runs a scenario.
func perform(ctx context.Context, s scenario, protected bool, progress io.Writer) (*meter, error) {
	db := s.database()
	cfg := s.config(db, protected)
	c, err := startCluster(ctx, cfg)
	if err != nil {
		return nil, err
	}
	readers := c.readers
	if s.plain && !protected {
		readers = nil
		for range members {
			readers = append(readers, newPlain(cfg))
		}
	}
	if s.warm {
		if err := s.warmUp(ctx, c, db); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	m := newMeter(s, db)
	name := fmt.Sprintf("break %d, protection %s", s.number, onOff(protected))
	stop := showProgress(progress, name, s.lasts)
	ctx, cancel := context.WithTimeout(ctx, s.lasts)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { m.watch(ctx) })
	wg.Go(func() { s.stage(ctx, c) })
	for i, r := range readers {
		wg.Go(func() { s.visit(ctx, r, m, uint64(i)) })
	}
	wg.Wait()
	stop()
	return m, c.close()
}

// warmUp lets each member read what ten minutes of its visitors would have read, while the database has no limit.
func (s scenario) warmUp(ctx context.Context, c *cluster, db *database) error {
	const minutes = 10
	db.free.Store(true)
	defer db.free.Store(false)
	for i, r := range c.readers {
		rnd := rand.New(rand.NewPCG(uint64(i), 2))
		popularity := rand.NewZipf(rnd, 1.1, 8, products-1)
		seen := make(map[string]bool)
		for range s.reads / members * minutes * 60 {
			seen[s.key(rnd, popularity)] = true
		}
		if err := r.(member).warm(ctx, slices.Collect(maps.Keys(seen))); err != nil {
			return err
		}
	}
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// stage breaks and mends.
func (s scenario) stage(ctx context.Context, c *cluster) {
	if s.begin == nil || !pause(ctx, s.from) {
		return
	}
	s.begin(c)
	pause(ctx, s.to-s.from)
	s.end(c)
}

// visit reads on one member at its share of the rate, whatever the answers take.
func (s scenario) visit(ctx context.Context, r reader, m *meter, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	popularity := rand.NewZipf(rnd, 1.1, 8, products-1)
	every := time.Second * members / time.Duration(s.reads)
	var wg sync.WaitGroup
	defer wg.Wait()
	for next := time.Now(); pause(ctx, time.Until(next)); next = next.Add(every) {
		key := s.key(rnd, popularity)
		wg.Go(func() {
			began := time.Now()
			reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			stale, err := r.read(reading, key)
			m.note(stale, err, began)
		})
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
