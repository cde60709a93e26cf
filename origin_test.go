package nearcache_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// origin is a database of self-describing values. It counts loads by key and node, and those that ran beside another one of the same key.
type origin struct {
	delay func() time.Duration // of a load; the row is read at its start

	mu      sync.Mutex
	rows    map[string]int
	running map[loadedBy]int // node -1: all nodes
	loads   map[loadedBy]int
	twice   int // loads that began while another one of the same key ran on the same node
	beside  int // the same on any node
}

// loadedBy is a key at the node whose loader ran.
type loadedBy struct {
	key  string
	node int
}

func newOrigin(delay func() time.Duration) *origin {
	return &origin{delay: delay, rows: make(map[string]int), running: make(map[loadedBy]int), loads: make(map[loadedBy]int)}
}

// loader returns the loader of node i.
func (o *origin) loader(i int) func(context.Context, string) (string, error) {
	return func(ctx context.Context, key string) (string, error) {
		by, all := loadedBy{key, i}, loadedBy{key, -1}
		o.mu.Lock()
		version := o.rows[key]
		if o.running[by] > 0 {
			o.twice++
		}
		if o.running[all] > 0 {
			o.beside++
		}
		o.running[by]++
		o.running[all]++
		o.loads[by]++
		o.mu.Unlock()
		defer func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.running[by]--
			o.running[all]--
		}()
		if d := o.delay(); d > 0 {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		return testcluster.Value(key, version), nil
	}
}

// bump writes a new version of key.
func (o *origin) bump(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rows[key]++
	return o.rows[key]
}

// most returns how often the key was loaded that was loaded most.
func (o *origin) most() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	byKey := make(map[string]int)
	most := 0
	for by, n := range o.loads {
		byKey[by.key] += n
		most = max(most, byKey[by.key])
	}
	return most
}

// total returns the number of loads and starts the count again.
func (o *origin) total() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, k := range o.loads {
		n += k
	}
	clear(o.loads)
	return n
}

// openOn opens keyspace ks on all nodes, each with its own loader of o.
func (o *origin) openOn(t *testing.T, c *testcluster.Cluster, cfg nearcache.Config[string]) []*nearcache.Cache[string] {
	t.Helper()
	caches := make([]*nearcache.Cache[string], len(c.Nodes))
	for i := range c.Nodes {
		caches[i] = o.openAt(t, c, i, cfg)
	}
	return caches
}

func (o *origin) openAt(t *testing.T, c *testcluster.Cluster, i int, cfg nearcache.Config[string]) *nearcache.Cache[string] {
	t.Helper()
	cfg.Load = o.loader(i)
	cache, err := nearcache.New(c.Nodes[i], "ks", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// loadsOf returns how often key was loaded on all nodes.
func (o *origin) loadsOf(key string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for by, loads := range o.loads {
		if by.key == key {
			n += loads
		}
	}
	return n
}
