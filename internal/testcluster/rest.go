package testcluster

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/nearcache/nearcache"
)

// Resources is what a process holds.
type Resources struct {
	Goroutines  int
	Descriptors int // open files and sockets; -1 where the system does not tell
}

// Held returns what this process holds.
func Held() Resources {
	r := Resources{Goroutines: runtime.NumGoroutine(), Descriptors: -1}
	if d, err := os.ReadDir("/proc/self/fd"); err == nil {
		r.Descriptors = len(d) - 1 // without the one that reads the directory
	}
	return r
}

// Heap returns the bytes that are in use on this process' heap.
func Heap() uint64 {
	runtime.GC()
	runtime.GC() // what a pool gave up lives for one more
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Over says what is held beyond base; empty: nothing. With slack, so many more do not count.
func (r Resources) Over(base Resources, slack int) string {
	var over []string
	if r.Goroutines > base.Goroutines+slack {
		over = append(over, fmt.Sprintf("%d goroutines, %d at the start", r.Goroutines, base.Goroutines))
	}
	if r.Descriptors > base.Descriptors+slack {
		over = append(over, fmt.Sprintf("%d descriptors, %d at the start", r.Descriptors, base.Descriptors))
	}
	return strings.Join(over, "; ")
}

// Busy says what a node is still doing: flights, leases, loads; empty: nothing.
func Busy(s nearcache.Stats) string {
	var busy []string
	for name, ks := range s.Keyspaces {
		if ks.Flights+ks.Leases+ks.LoadsRunning != 0 {
			busy = append(busy, fmt.Sprintf("%s/%s: %d flights, %d leases, %d loads", s.Node, name, ks.Flights, ks.Leases, ks.LoadsRunning))
		}
	}
	return strings.Join(busy, "; ")
}

// Rest waits until no node has a flight, a lease or a load under way and this process holds no more than base, at most for limit; else
// the test fails with what is left.
func (c *Cluster) Rest(base Resources, limit time.Duration) {
	c.tb.Helper()
	for start := time.Now(); ; Wait() {
		var left []string
		for _, n := range c.Nodes {
			if n == nil {
				continue
			}
			if busy := Busy(n.Stats()); busy != "" {
				left = append(left, busy)
			}
		}
		if over := Held().Over(base, 0); over != "" {
			left = append(left, over)
		}
		if len(left) == 0 {
			return
		}
		if time.Since(start) > limit {
			c.tb.Errorf("left after %v: %s\n%s", limit, strings.Join(left, "; "), stacks())
			return
		}
	}
}

// stacks returns the stacks of all goroutines, equal ones once with their number.
func stacks() string {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // a Builder takes everything
	return b.String()
}

// Crash ends node i of a Bubble as the end of its process does. It stays a member. What the test still does with the old node fails with
// ErrClosed.
func (c *Cluster) Crash(i int) {
	c.tb.Helper()
	c.Network.Host(Host(i)).Crash()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Nodes[i].Close(ctx) // the context's error: it is over at once
}

// Restart starts node i of a Bubble again, on the same address, after Crash or Close.
func (c *Cluster) Restart(i int) *nearcache.Node {
	c.tb.Helper()
	c.Nodes[i] = c.Start(i)
	return c.Nodes[i]
}
