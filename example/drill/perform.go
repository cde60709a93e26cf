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
)

// perform runs a scenario.
func perform(ctx context.Context, s scenario, dsn string, protected bool, progress io.Writer) (m *meter, err error) {
	db, err := s.open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	c, err := startCluster(ctx, s, db, protected)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	readers := c.readers
	if s.plain && !protected {
		readers = nil
		for range s.members {
			readers = append(readers, newPlain(s.ttl, db))
		}
	}
	if s.warm {
		if err := s.warmUp(ctx, c, db); err != nil {
			return nil, err
		}
	}
	m = newMeter(s, db)
	name := fmt.Sprintf("break %d, protection %s", s.number, onOff(protected))
	stop := showProgress(progress, name, s.lasts)
	ctx, cancel := context.WithTimeout(ctx, s.lasts)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { m.watch(ctx) })
	wg.Go(func() { s.stage(ctx, c) })
	wg.Go(func() { s.edit(ctx, db) })
	for i, r := range readers {
		wg.Go(func() { s.visit(ctx, r, m, uint64(i)) })
	}
	wg.Wait()
	stop()
	if s.remark != nil {
		m.remark = s.remark(s, c)
	}
	return m, nil
}

// warmUp lets each member read what ten minutes of its visitors would have read, while the database has no limit.
func (s scenario) warmUp(ctx context.Context, c *cluster, db *database) error {
	const minutes = 10
	db.free.Store(true)
	defer db.free.Store(false)
	for i, r := range c.readers {
		rnd, popularity := visitors(uint64(i), 2)
		seen := make(map[string]bool)
		for range s.reads / s.members * minutes * 60 {
			seen[s.key(rnd, popularity)] = true
		}
		if err := r.(member).warm(ctx, slices.Collect(maps.Keys(seen))); err != nil {
			return err
		}
	}
	return nil
}

// visitors returns what chooses products.
func visitors(seed, stream uint64) (*rand.Rand, *rand.Zipf) {
	rnd := rand.New(rand.NewPCG(seed, stream))
	return rnd, rand.NewZipf(rnd, 1.1, 8, products-1)
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

// edit changes products, until it is mended: from then on what was missed is not hidden by later changes of the same products.
func (s scenario) edit(ctx context.Context, db *database) {
	if s.writes == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.to)
	defer cancel()
	rnd, popularity := visitors(0, 3)
	every := time.Second / time.Duration(s.writes)
	for next := time.Now(); pause(ctx, time.Until(next)); next = next.Add(every) {
		_ = db.change(ctx, s.key(rnd, popularity)) // one that fails has changed nothing
	}
}

// visit reads on one member at its share of the rate, whatever the answers take.
func (s scenario) visit(ctx context.Context, r reader, m *meter, seed uint64) {
	rnd, popularity := visitors(seed, 1)
	every := time.Second * time.Duration(s.members) / time.Duration(s.reads)
	var wg sync.WaitGroup
	defer wg.Wait()
	for next := time.Now(); pause(ctx, time.Until(next)); next = next.Add(every) {
		key := s.key(rnd, popularity)
		wg.Go(func() {
			began := time.Now()
			reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			a, err := r.read(reading, key)
			m.note(key, a, err, began)
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
