package nearcache

import "sync"

// gathering collects the loads of single Gets, which one LoadMany runs together (Config.Gather).
type gathering[V any] struct {
	mu  sync.Mutex // guards all. It is a leaf
	all []*fetch[V]
}

// gather loads x together with those that come after it within Config.Gather. The first of them waits for the others, and runs the load; they
// leave their flights to it. A full batch does not wait.
func (c *Cache[V]) gather(x *fetch[V]) {
	first, all := c.gathering.add(x)
	if first {
		sleep(c.ctx, c.policy.gather) // if that ends the load ends at once
		all = c.gathering.take()
	}
	if len(all) > 0 {
		c.loadMany(all[0].ctx, all)
	}
}

// add puts x to the others, and returns the batch if it is full.
func (g *gathering[V]) add(x *fetch[V]) (first bool, full []*fetch[V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, x)
	if len(g.all) == maxBatch {
		full, g.all = g.all, nil
		return false, full
	}
	return len(g.all) == 1, nil
}

// take returns those that were added since the last batch.
func (g *gathering[V]) take() []*fetch[V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.all
	g.all = nil
	return all
}
