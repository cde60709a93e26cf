package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// op is what a client asked for; its output is the value that it wrote or read.
type op struct {
	key   string
	write bool
}

// register is a key whose row is written and read: rows begin as 0.
func register() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := make(map[string][]porcupine.Operation)
			for _, o := range history {
				k := o.Input.(op).key
				byKey[k] = append(byKey[k], o)
			}
			var parts [][]porcupine.Operation
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return 0 },
		Step: func(state, input, output any) (bool, any) {
			if input.(op).write {
				return true, output
			}
			return output == state, state
		},
		DescribeOperation: func(input, output any) string {
			if o := input.(op); o.write {
				return fmt.Sprintf("write %s = %d", o.key, output)
			}
			return fmt.Sprintf("read %s: %d", input.(op).key, output)
		},
	}
}

// world is a cluster whose clients read and write few keys, and what they saw. Time is the order in which clients called and were answered.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	c       *testcluster.Cluster
	caches  []*nearcache.Cache[int]
	keys    []string
	instant atomic.Int64

	mu      sync.Mutex // guards rng and what follows
	rows    map[string]int
	last    int
	history []porcupine.Operation
}

// random returns a time below d.
func (w *world) random(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(d)))
}

// load reads a row; the answer takes its time.
func (w *world) load(_ context.Context, key string) (int, error) {
	time.Sleep(w.random(2 * time.Millisecond))
	w.mu.Lock()
	v := w.rows[key]
	w.mu.Unlock()
	time.Sleep(w.random(4 * time.Millisecond))
	return v, nil
}

// change writes a row with a value of its own, in a transaction that takes its time.
func (w *world) change(key string) int {
	time.Sleep(w.random(3 * time.Millisecond))
	w.mu.Lock()
	w.last++
	v := w.last
	w.rows[key] = v
	w.mu.Unlock()
	time.Sleep(w.random(3 * time.Millisecond))
	return v
}

// note adds an operation to the history. do returns its output; false: it has not happened.
func (w *world) note(client int, in op, do func() (int, bool)) {
	called := w.instant.Add(1)
	out, happened := do()
	answered := w.instant.Add(1)
	if !happened {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, porcupine.Operation{ClientId: client, Input: in, Call: called, Output: out, Return: answered})
}

// write changes a row and tells the cluster so.
type write func(w *world, cache *nearcache.Cache[int], key string) (v int, happened bool)

// run lets clients on all nodes read, and now and then write, while the delays of all links change.
func (w *world) run(seed uint64, write write) {
	const nodes, readers, rounds = 5, 3, 60
	w.rng = rand.New(rand.NewPCG(seed, 1))
	w.c = testcluster.Bubble(w.t, nodes, testcluster.PeerTimeout(time.Second))
	for _, n := range w.c.Nodes {
		cache, err := nearcache.New(n, "ks", nearcache.Config[int]{Load: w.load, NearTTL: time.Minute})
		if err != nil {
			w.t.Fatal(err)
		}
		w.caches = append(w.caches, cache)
	}
	for i := range 3 {
		w.keys = append(w.keys, testcluster.Key(w.c.Nodes[0], "ks", fmt.Sprint("n", i), i))
	}
	time.Sleep(6 * time.Second) // doubt ends
	var wg sync.WaitGroup
	for i, cache := range w.caches {
		for j := range readers {
			wg.Go(func() {
				for n := range rounds {
					w.delay(i)
					key := w.keys[(n+j)%len(w.keys)]
					w.note(i*readers+j, op{key: key}, func() (int, bool) {
						v, err := cache.Get(w.t.Context(), key)
						if err != nil {
							w.t.Errorf("read: %v", err)
						}
						return v, err == nil
					})
					time.Sleep(w.random(10 * time.Millisecond))
				}
			})
		}
		wg.Go(func() {
			for n := range rounds / 6 {
				time.Sleep(w.random(60 * time.Millisecond))
				key := w.keys[(n+i)%len(w.keys)]
				w.note(nodes*readers+i, op{key: key, write: true}, func() (int, bool) { return write(w, cache, key) })
			}
		})
	}
	wg.Wait()
}

// delay gives the links of a node other delays.
func (w *world) delay(node int) {
	for i := range w.caches {
		w.c.Network.Delay(testcluster.Host(node), testcluster.Host(i), w.random(8*time.Millisecond))
	}
}

// check runs a world and judges what its clients saw.
func check(t *testing.T, seed uint64, write write) (porcupine.CheckResult, int) {
	t.Helper()
	w := &world{rows: make(map[string]int)}
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		w.run(seed, write)
	})
	const patience = 5 * time.Second
	return porcupine.CheckOperationsTimeout(register(), w.history, patience), len(w.history)
}

// Reads and Updates are linearizable. A history that cannot be judged in time is skipped, which is no success.
func TestUpdatesAreLinearizable(t *testing.T) {
	update := func(w *world, cache *nearcache.Cache[int], key string) (v int, happened bool) {
		err := cache.Update(w.t.Context(), []string{key}, func(ctx context.Context) error {
			v, happened = w.change(key), true
			return ctx.Err()
		})
		if err != nil {
			w.t.Errorf("write: %v", err)
		}
		return v, happened
	}
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			switch result, n := check(t, seed, update); result {
			case porcupine.Ok:
				t.Logf("%d operations", n)
			case porcupine.Illegal:
				t.Errorf("%d operations are not linearizable", n)
			case porcupine.Unknown:
				t.Skipf("undecided: %d operations", n)
			}
		})
	}
}

// Reads and Invalidates are not, and porcupine says so: who has read the new value at its owner sees the old one in a near copy.
func TestInvalidatesAreNot(t *testing.T) {
	for name, ack := range map[string]nearcache.Ack{"AckOwners": nearcache.AckOwners, "AckAll": nearcache.AckAll} {
		t.Run(name, func(t *testing.T) {
			invalidate := func(w *world, cache *nearcache.Cache[int], key string) (int, bool) {
				v := w.change(key)
				if err := cache.Invalidate(nearcache.WithAck(w.t.Context(), ack), key); err != nil {
					w.t.Errorf("write: %v", err)
				}
				return v, true
			}
			for seed := range uint64(10) {
				if result, n := check(t, seed, invalidate); result == porcupine.Illegal {
					t.Logf("seed %d: %d operations are not linearizable", seed, n)
					return
				}
			}
			t.Error("every history was linearizable, or not judged")
		})
	}
}
