package benchmarks

import (
	"container/list"
	"testing"
)

// s3fifo is the policy of Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction (SOSP'23), as they describe it: no library
// of its authors is to be had in Go, and others hold more than they should. A tenth of the entries are in small, the others in main; ghost has
// as many keys that small lost as main has entries.
type s3fifo struct {
	entries            int
	small, main, ghost list.List // of *s3entry, the newest in front
	resident           map[string]*s3entry
	ghosts             map[string]*list.Element
}

type s3entry struct {
	key  string
	used int // up to 3 times
}

func policyS3FIFO(_ testing.TB, entries int) func(string) bool {
	c := &s3fifo{entries: entries, resident: make(map[string]*s3entry), ghosts: make(map[string]*list.Element)}
	return readsThrough(c.get, c.set)
}

func (c *s3fifo) get(key string) bool {
	e := c.resident[key]
	if e != nil {
		e.used = min(e.used+1, 3)
	}
	return e != nil
}

func (c *s3fifo) set(key string) {
	for len(c.resident) >= c.entries {
		if c.small.Len() > c.entries/10 || c.main.Len() == 0 {
			c.evictSmall()
		} else {
			c.evictMain()
		}
	}
	e := &s3entry{key: key}
	c.resident[key] = e
	if g := c.ghosts[key]; g != nil {
		c.ghost.Remove(g)
		delete(c.ghosts, key)
		c.main.PushFront(e)
		return
	}
	c.small.PushFront(e)
}

// evictSmall moves what was used more than once to main, until it has found something to evict or nothing is left.
func (c *s3fifo) evictSmall() {
	for c.small.Len() > 0 {
		e := c.small.Remove(c.small.Back()).(*s3entry)
		if e.used > 1 {
			e.used = 0
			c.main.PushFront(e)
			continue
		}
		delete(c.resident, e.key)
		c.ghosts[e.key] = c.ghost.PushFront(e)
		if c.ghost.Len() > c.entries-c.entries/10 {
			delete(c.ghosts, c.ghost.Remove(c.ghost.Back()).(*s3entry).key)
		}
		return
	}
}

// evictMain gives what was used another round.
func (c *s3fifo) evictMain() {
	for {
		e := c.main.Remove(c.main.Back()).(*s3entry)
		if e.used == 0 {
			delete(c.resident, e.key)
			return
		}
		e.used--
		c.main.PushFront(e)
	}
}
