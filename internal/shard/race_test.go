package shard

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// cluster is what surrounds a Shard in the concurrent test: an origin with one version per key, the members who ask
// and load, one writer per key, and the log.
type cluster struct {
	t     *testing.T
	s     *Shard
	start time.Time
	keys  []string
	index map[string]int

	origin []atomic.Uint64 // version at the origin
	floor  []atomic.Uint64 // version as of the last Invalidate or Set that returned
	stop   atomic.Bool

	seq    atomic.Uint64
	logMu  sync.Mutex
	events []event // guarded by logMu: the last one of each key

	hits, loads, waits, stored, refused atomic.Int64
}

// event says that version is at the origin and that older values were unlinked before seq was given.
type event struct{ seq, version uint64 }

// reader is a waiter.
type reader struct{ got chan Result }

// Under many readers, loaders, writers and the passing of time, in a store too small for all keys:
// no value older than the last invalidation that had returned when the ask began; the number that Get returns never
// covers a change that the value misses; everybody is answered; nothing is left over.
func TestConcurrent(t *testing.T) {
	c := newCluster(t, 1<<15)
	var readers, rest sync.WaitGroup
	for i := range 6 {
		readers.Go(func() { c.read(rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	for i := range 2 {
		rest.Go(func() { c.write(i, 2, rand.New(rand.NewPCG(uint64(i), 2))) })
	}
	rest.Go(c.disturb)
	run := 2 * time.Second
	if testing.Short() {
		run /= 4
	}
	timer := time.NewTimer(run)
	<-timer.C
	c.stop.Store(true)
	rest.Wait()
	done := make(chan struct{})
	go func() { readers.Wait(); close(done) }()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		default:
			c.deliver(c.s.Tick(c.now()))
			runtime.Gosched()
		}
	}
	c.deliver(c.s.Tick(c.now() + int64(time.Hour)))
	wantIdle(t, c.s)
	st := c.s.Stats()
	t.Logf("%d hits, %d loads, %d waits, %d stored, %d refused, %d evictions",
		c.hits.Load(), c.loads.Load(), c.waits.Load(), c.stored.Load(), c.refused.Load(), st.Evictions)
	if c.hits.Load() == 0 || c.waits.Load() == 0 || c.refused.Load() == 0 || st.Evictions == 0 && runtime.GOMAXPROCS(0) > 1 {
		t.Error("the test did not get to everything")
	}
}

// A fill that meets a Clear, or a Move away, is removed by it or refused, whatever their interleaving in the many parts
// of a large store.
func TestFillMeetsRemovalOfAll(t *testing.T) {
	for name, remove := range map[string]func(s *Shard, n uint64){
		"clear": func(s *Shard, _ uint64) { s.Clear(1) },
		"move":  func(s *Shard, n uint64) { s.Move(Change{View: n, Fate: func(string) Fate { return Elsewhere }}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newTest(Config{})
			rnd := rand.New(rand.NewPCG(1, 1))
			for n := range uint64(40) {
				for i := range 1000 {
					s.Set(fmt.Sprint("other", i), text("v", 1), Cond{View: n}, 1)
				}
				key := fmt.Sprint("key", n)
				a := ask("m", nil)
				a.View = n
				tok := mustLease(t, s.Acquire(key, a, 1))
				var both sync.WaitGroup
				both.Go(func() { remove(s, n+1) })
				both.Go(func() {
					for range rnd.IntN(100) {
						runtime.Gosched()
					}
					s.Fill(key, tok, text("old", 1), 1)
				})
				both.Wait()
				wantValue(t, s, key, 1, "nothing")
			}
			wantIdle(t, s)
		})
	}
}

func newCluster(t *testing.T, budget int64) *cluster {
	t.Helper()
	c := &cluster{t: t, start: time.Now(), index: map[string]int{}}
	for i := range 400 {
		key := fmt.Sprint("key", i)
		c.keys = append(c.keys, key)
		c.index[key] = i
	}
	n := len(c.keys)
	c.origin, c.floor, c.events = make([]atomic.Uint64, n), make([]atomic.Uint64, n), make([]event, n)
	c.s = newTest(Config{MaxBytes: budget, Seq: c.seq.Load, Dropped: func(key string) {
		c.logMu.Lock()
		defer c.logMu.Unlock()
		i := c.index[key]
		// One writer per key: what is at the origin now is what this change is about.
		c.events[i] = event{version: c.origin[i].Load(), seq: c.seq.Add(1)}
	}})
	return c
}

func (c *cluster) now() int64 { return int64(time.Since(c.start)) + 1 }

// pick prefers low numbers, so that some keys are hot.
func (c *cluster) pick(rnd *rand.Rand) int {
	if rnd.IntN(2) == 0 {
		return rnd.IntN(4)
	}
	return rnd.IntN(len(c.keys))
}

func (c *cluster) read(rnd *rand.Rand) {
	for !c.stop.Load() {
		i := c.pick(rnd)
		least := c.floor[i].Load()
		if v, seq := c.s.Get(c.keys[i], c.now()); v != nil {
			c.hits.Add(1)
			c.check("Get", i, v, seq, least)
			continue
		}
		me := &reader{got: make(chan Result, 1)}
		now := c.now()
		c.settle(i, me, c.s.Acquire(c.keys[i], Ask{
			Holder: string(rune('a' + rnd.IntN(3))), Waiter: me, Life: int64(5 * time.Millisecond),
			Until: now + rnd.Int64N(int64(20*time.Millisecond)), Fresh: rnd.IntN(20) == 0,
		}, now), least, rnd)
	}
}

// settle does what the result of an ask demands.
func (c *cluster) settle(i int, me *reader, r Result, least uint64, rnd *rand.Rand) {
	if r.Kind == Waiting {
		c.waits.Add(1)
		if rnd.IntN(10) == 0 {
			runtime.Gosched()
			if c.s.Leave(c.keys[i], me) {
				return
			}
		}
		r = <-me.got
	}
	switch r.Kind {
	case Hit:
		c.check("ask", i, r.Value, r.Seq, least)
	case Lease:
		c.load(i, r.Token, rnd)
	case Failed, TimedOut:
	case Waiting, Stale, Moved, Busy, Held:
		c.t.Errorf("got %s", describe(r))
	}
}

func (c *cluster) load(i int, token Token, rnd *rand.Rand) {
	c.loads.Add(1)
	began := c.now()
	v := Value{Bytes: make([]byte, 8+rnd.IntN(2000)), LoadedAt: began, Soft: began + rnd.Int64N(int64(50*time.Millisecond))}
	v.Hard = v.Soft
	binary.LittleEndian.PutUint64(v.Bytes, c.origin[i].Load())
	for range rnd.IntN(50) {
		runtime.Gosched() // the old row is in hand while others write
	}
	switch rnd.IntN(20) {
	case 0:
		c.deliver(c.s.Release(c.keys[i], token, Cause(1+rnd.IntN(3)), "no", c.now()))
		return
	case 1:
		return // a holder that dies
	}
	eff := c.s.Fill(c.keys[i], token, v, c.now())
	if eff.Outcome == Stored {
		c.stored.Add(1)
		c.covers("fill", i, &v, eff.Seq)
	}
	if eff.Outcome == Rejected {
		c.refused.Add(1)
	}
	c.deliver(eff)
}

func (c *cluster) write(first, stride int, rnd *rand.Rand) {
	for !c.stop.Load() {
		i := c.pick(rnd)
		if i%stride != first {
			i ^= 1
		}
		version := c.origin[i].Add(1)
		if rnd.IntN(4) == 0 {
			v := Value{Bytes: binary.LittleEndian.AppendUint64(nil, version), Soft: c.now() + int64(time.Second)}
			v.Hard = v.Soft
			eff := c.s.Set(c.keys[i], v, Cond{}, c.now())
			c.floor[i].Store(version)
			c.covers("set", i, &v, eff.Seq)
			c.deliver(eff)
		} else {
			eff := c.s.Invalidate(c.keys[i], 0, c.now())
			c.floor[i].Store(version)
			c.deliver(eff)
		}
		for range rnd.IntN(20) {
			runtime.Gosched()
		}
	}
}

// disturb is time, members that come and go, and an impatient administrator.
func (c *cluster) disturb() {
	for n := 0; !c.stop.Load(); n++ {
		c.deliver(c.s.Tick(c.now()))
		switch n % 50 {
		case 10:
			c.s.HolderGone("a", c.now()+int64(time.Millisecond))
		case 20:
			c.s.HolderBack("a")
		case 30:
			c.deliver(c.s.Clear(c.now()))
		}
		runtime.Gosched()
	}
}

func (c *cluster) deliver(eff Effect) {
	for _, w := range eff.Wakes {
		select {
		case w.Waiter.(*reader).got <- w.Result:
		default:
			c.t.Error("somebody was woken twice")
		}
	}
}

// check tells whether an ask that began when least had been invalidated may get v.
func (c *cluster) check(what string, i int, v *Value, seq, least uint64) {
	if got := binary.LittleEndian.Uint64(v.Bytes); got < least {
		c.t.Errorf("%s of %s: got version %d, want at least %d", what, c.keys[i], got, least)
	}
	c.covers(what, i, v, seq)
}

// covers checks that a value older than the key's last event carries a number below the event's, so that a near copy of
// it is dropped.
func (c *cluster) covers(what string, i int, v *Value, seq uint64) {
	c.logMu.Lock()
	e := c.events[i]
	c.logMu.Unlock()
	if got := binary.LittleEndian.Uint64(v.Bytes); got < e.version && seq >= e.seq {
		c.t.Errorf("%s of %s: version %d with number %d, after event %d for version %d", what, c.keys[i], got, seq, e.seq, e.version)
	}
}
