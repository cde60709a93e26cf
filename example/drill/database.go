package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/feed"
)

// capacity is what a database can do: a number of queries at once, each of which takes a time.
type capacity struct {
	slots int
	took  time.Duration
}

func perSecond(queries int, took time.Duration) capacity {
	return capacity{max(1, int(float64(queries)*took.Seconds())), took}
}

// perSecond is how many queries a second it can do.
func (c capacity) perSecond() float64 { return float64(c.slots) / c.took.Seconds() }

// table is where the products are. A product that was never written has version 1.
type table interface {
	// read returns a product's version after a query that takes so long, and waits for its turn.
	read(ctx context.Context, key string, took time.Duration) (version int, err error)
	// write makes the next version of a product, and appends that to changes.
	write(ctx context.Context, key string) (version int, err error)
	// changes is the stream of what was written.
	changes() feed.Source
	// close ends it.
	close() error
}

// database is a table with a capacity, and knows what it was asked and when what was written.
type database struct {
	table
	capacity

	free            atomic.Bool  // nothing costs anything
	queries, useful atomic.Int64 // since the start: asked, and answered while somebody still waited

	mu      sync.Mutex             // guards written
	written map[string][]time.Time // when the versions of a product were, from the second on
}

func newDatabase(t table, c capacity) *database {
	return &database{table: t, capacity: c, written: make(map[string][]time.Time)}
}

// query reads a product.
func (d *database) query(ctx context.Context, key string) (version int, err error) {
	if d.free.Load() {
		return d.read(ctx, key, 0)
	}
	d.queries.Add(1)
	if version, err = d.read(ctx, key, d.took); err == nil {
		d.useful.Add(1)
	}
	return version, err
}

// change writes a product.
func (d *database) change(ctx context.Context, key string) error {
	_, err := d.write(ctx, key)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.written[key] = append(d.written[key], time.Now())
	}
	return err
}

// isOld tells whether a newer version of a product was there already at a time.
func (d *database) isOld(key string, version int, at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	written := d.written[key]
	return version-1 < len(written) && written[version-1].Before(at)
}
