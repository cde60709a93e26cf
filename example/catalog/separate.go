package main

import "time"

// separateCaches simulates the usual alternative: every process keeps a cache of its own and knows nothing of the others. It is fed with
// the reads that really happened, and is favoured in every way: its caches are unbounded, share the loads of concurrent callers, keep
// entries for the whole lifetime, and hear of every price change at once and for free. Not safe for concurrent use.
type separateCaches struct {
	life    time.Duration
	entries []map[string]separateEntry // by node
}

type separateEntry struct {
	loaded  time.Duration
	version uint64
}

func newSeparateCaches(nodes int, life time.Duration) *separateCaches {
	s := &separateCaches{life: life, entries: make([]map[string]separateEntry, nodes)}
	for i := range s.entries {
		s.entries[i] = make(map[string]separateEntry)
	}
	return s
}

// read tells whether node's own cache would have gone to the origin for a read that began at now and was answered with version. A version
// newer than the one it holds means that the price has changed in between, so that it would have had to load.
func (s *separateCaches) read(node int, key string, version uint64, now time.Duration) (load bool) {
	e, ok := s.entries[node][key]
	if ok && now < e.loaded+s.life && version <= e.version {
		return false
	}
	s.entries[node][key] = separateEntry{loaded: now, version: version}
	return true
}
