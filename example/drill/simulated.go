package main

import (
	"context"
	"sync"
	"time"

	"github.com/nearcache/nearcache/feed"
)

// simulated works on a number of queries at once. The others wait in order, so that it answers later and later as it is asked for more than it
// can do; a query whose client has given up is worked off all the same. Writing costs nothing.
type simulated struct {
	stream *feed.Memory

	mu       sync.Mutex  // guards what follows
	servers  []time.Time // when each of them is free
	versions map[string]int
}

func newSimulated(slots int) *simulated {
	return &simulated{stream: feed.NewMemory(0), servers: make([]time.Time, slots), versions: make(map[string]int)}
}

// read implements table. What it returns is what was there when its turn came, and not when it ended.
func (s *simulated) read(ctx context.Context, key string, took time.Duration) (int, error) {
	if took == 0 {
		return s.version(key), ctx.Err()
	}
	done := s.admit(time.Now(), took)
	if !pause(ctx, time.Until(done.Add(-took))) {
		return 0, ctx.Err()
	}
	version := s.version(key)
	if !pause(ctx, time.Until(done)) {
		return 0, ctx.Err()
	}
	return version, nil
}

func (s *simulated) version(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[key] + 1
}

// admit returns when a query that comes now is done.
func (s *simulated) admit(now time.Time, took time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := 0
	for i, free := range s.servers {
		if free.Before(s.servers[first]) {
			first = i
		}
	}
	begins := s.servers[first]
	if begins.Before(now) {
		begins = now
	}
	s.servers[first] = begins.Add(took)
	return s.servers[first]
}

// write implements table.
func (s *simulated) write(_ context.Context, key string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[key]++
	version := s.versions[key] + 1
	s.stream.Append(feed.Change{Keyspace: keyspace, Key: key, Version: uint64(version)})
	return version, nil
}

// changes implements table.
func (s *simulated) changes() feed.Source { return s.stream }

// close implements table.
func (s *simulated) close() error { return nil }
