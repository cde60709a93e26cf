package nearcache

import (
	"context"
	"slices"
	"sync"
)

// A loader may call the cache. When the load of a waits for b and that of b for a, neither can end: the call that would close such a circle
// is refused. A call belongs to the load whose context it was made with.
//
// Why keys and not flights: a key may have several flights (R1, R1b, Refresh), and a later one waits for the lease of an earlier one.

// need is a key that a load is for, or that it waits for.
type need struct {
	ks  *keyspace
	key string
}

// load is one call of a loader on this node.
type load struct {
	node *Node
	keys []need
	// needs are the keys it waits for, with the number of calls that do; nil: it has called nobody. Guarded by waits.mu, as is over.
	needs map[need]int
	over  bool
}

// loadKey is the key of a load in its loader's context, one for each node.
type loadKey struct{ node *Node }

// waits are the loads of a node that have called the cache and are not over. The zero waits is ready for use.
type waits struct {
	mu sync.Mutex       // a leaf; guards by, and needs and over of each load
	by map[need][]*load // by what they load
}

// beginLoad returns the load of keys and the context for its loader. end follows.
func (ks *keyspace) beginLoad(ctx context.Context, keys ...string) (*load, context.Context) {
	l := &load{node: ks.node, keys: make([]need, len(keys))}
	for i, k := range keys {
		l.keys[i] = need{ks, k}
	}
	return l, context.WithValue(ctx, loadKey{ks.node}, l)
}

// end says that nobody waits for the load any more: calls that its loader still makes are like any others.
func (l *load) end() {
	w := &l.node.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	l.over = true
	if l.needs == nil {
		return
	}
	for _, k := range l.keys {
		w.by[k] = slices.DeleteFunc(w.by[k], func(o *load) bool { return o == l })
		if len(w.by[k]) == 0 {
			delete(w.by, k)
		}
	}
}

// await says that a call of the loader is about to wait for n; leave follows. It returns a *CircularLoadError, and nothing follows, if the
// loads of n wait for l. l is nil where no loader calls.
func (l *load) await(n need) error {
	if l == nil {
		return nil
	}
	w := &l.node.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.over {
		return nil
	}
	if l.needs == nil {
		l.needs = make(map[need]int)
		if w.by == nil {
			w.by = make(map[need][]*load)
		}
		for _, k := range l.keys {
			w.by[k] = append(w.by[k], l)
		}
	}
	if circle := w.find(l, []need{n}, make(map[need]bool)); circle != nil {
		return circularLoad(circle)
	}
	l.needs[n]++
	return nil
}

// leave says that a call that await let pass waits no more.
func (l *load) leave(n need) {
	if l == nil {
		return
	}
	w := &l.node.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.needs[n] > 1 {
		l.needs[n]--
	} else {
		delete(l.needs, n)
	}
}

// find follows what the loads of the last key of path wait for, as far as l. It returns the way, or nil.
func (w *waits) find(l *load, path []need, seen map[need]bool) []need {
	n := path[len(path)-1]
	if seen[n] {
		return nil
	}
	seen[n] = true
	for _, o := range w.by[n] {
		if o == l {
			return path
		}
		for next := range o.needs {
			if circle := w.find(l, append(path, next), seen); circle != nil {
				return circle
			}
		}
	}
	return nil
}
