package main

import (
	"container/heap"
	"time"
)

// capacity is an origin that does a fixed number of loads at a time, each for a fixed time: a database with that many connections.
// Loads beyond that wait in line, first come first served. It is a passive model: it tells when a load begins and ends, and the caller
// sleeps, or does not. Times are since the start of the run. Not safe for concurrent use.
type capacity struct {
	perLoad time.Duration
	free    timeHeap // when each slot is free again, soonest first
}

// newCapacity returns an idle origin of perSecond loads a second that each take about latency: latency is rounded so that a whole number of
// slots gives exactly that rate. There is at least one slot.
func newCapacity(perSecond int, latency time.Duration) *capacity {
	n := slots(perSecond, latency)
	return &capacity{
		perLoad: time.Duration(n) * time.Second / time.Duration(perSecond),
		free:    make(timeHeap, n),
	}
}

// slots returns how many loads at a time make perSecond loads a second of the given latency.
func slots(perSecond int, latency time.Duration) int {
	n := (time.Duration(perSecond)*latency + time.Second/2) / time.Second
	return max(1, int(n))
}

// admit takes a load that arrives at now and returns when it begins and when it is done.
func (c *capacity) admit(now time.Duration) (begin, done time.Duration) {
	begin = max(now, c.free[0])
	done = begin + c.perLoad
	c.free[0] = done
	heap.Fix(&c.free, 0)
	return begin, done
}

// timeHeap is a min-heap for container/heap, which uses no more of it than Fix does.
type timeHeap []time.Duration

func (h timeHeap) Len() int           { return len(h) }
func (h timeHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h timeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h timeHeap) Push(any)           { panic("catalog: a capacity has a fixed number of slots") }
func (h timeHeap) Pop() any           { panic("catalog: a capacity has a fixed number of slots") }

// cost is what a stream of loads does to an origin of limited capacity: the real stream, or one that another way of caching would have
// sent. Not safe for concurrent use.
type cost struct {
	queue     *capacity
	loads     int
	perSecond []int         // loads that arrived in each second
	longest   time.Duration // wait in line
	last      time.Duration // wait of the newest load
}

func newCost(perSecond int, latency time.Duration) *cost {
	return &cost{queue: newCapacity(perSecond, latency)}
}

// load counts a load that arrives at now, and returns when the origin is done with it. Loads may come slightly out of order; each waits
// for those before it.
func (c *cost) load(now time.Duration) (done time.Duration) {
	begin, done := c.queue.admit(now)
	c.loads++
	second := int(now / time.Second)
	for len(c.perSecond) <= second {
		c.perSecond = append(c.perSecond, 0)
	}
	c.perSecond[second]++
	c.last = begin - now
	c.longest = max(c.longest, c.last)
	return done
}

// busiest returns the largest number of loads that arrived in one second.
func (c *cost) busiest() int { return c.busiestFrom(0) }

// busiestFrom is busiest from the given second of the run on.
func (c *cost) busiestFrom(second int) int {
	most := 0
	for _, n := range c.perSecond[min(second, len(c.perSecond)):] {
		most = max(most, n)
	}
	return most
}
