package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// ward is a cluster of three whose member n0 is in trouble, as n1 sees it: n2 is well.
type ward struct {
	t      *testing.T
	c      *testcluster.Cluster
	o      *origin
	cfg    nearcache.Config[string]
	caches []*nearcache.Cache[string]
	keys   []string // of n0
	others []string // of n1 and n2
}

// spelled is a codec: what another spelling wrote is not for it.
type spelled string

func (s spelled) Append(dst []byte, v string) ([]byte, error) {
	return append(append(dst, s...), v...), nil
}

func (s spelled) Decode(b []byte) (string, error) {
	v, ok := strings.CutPrefix(string(b), string(s))
	if !ok {
		return "", fmt.Errorf("%.10q is not spelled %q", b, string(s))
	}
	return v, nil
}

func newWard(t *testing.T) *ward {
	w := &ward{t: t, c: testcluster.Bubble(t, 3), o: newOrigin(func() time.Duration { return 0 })}
	w.cfg = nearcache.Config[string]{NearTTL: -1, TTL: time.Hour, Codec: spelled("one:")}
	w.caches = w.o.openOn(t, w.c, w.cfg)
	for i := range 20 {
		w.keys = append(w.keys, testcluster.Key(w.c.Nodes[0], "ks", "n0", i))
		w.others = append(w.others, testcluster.Key(w.c.Nodes[0], "ks", fmt.Sprint("n", 1+i%2), i))
	}
	for _, key := range slices.Concat(w.keys, w.others) {
		if _, err := w.caches[1].Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// reopen opens the keyspace on n0 with a codec.
func (w *ward) reopen(codec nearcache.Codec[string]) {
	w.t.Helper()
	cfg := w.cfg
	cfg.Codec = codec
	w.caches[0] = w.o.openAt(w.t, w.c, 0, cfg)
}

// respell makes n0 write its values in another spelling, and lets it hold them all.
func (w *ward) respell(as spelled) {
	w.t.Helper()
	w.shut()
	w.reopen(as)
	for _, key := range w.keys {
		if _, err := w.caches[0].Get(w.t.Context(), key); err != nil {
			w.t.Error(err)
		}
	}
	if _, err := w.caches[1].Get(w.t.Context(), w.keys[len(w.keys)-1]); err != nil || w.caches[1].Stats().Undecodable == 0 {
		w.t.Errorf("got %v and %d undecodable values, want the value and some", err, w.caches[1].Stats().Undecodable)
	}
}

func (w *ward) shut() {
	w.t.Helper()
	if err := w.caches[0].Close(w.t.Context()); err != nil {
		w.t.Error(err)
	}
}

// restart brings n0 back on its address, as another process.
func (w *ward) restart() {
	w.c.Restart(0)
	w.reopen(w.cfg.Codec)
}

// replace puts something else in n0's place, and returns what takes it away.
func (w *ward) replace(serve func(net.Listener)) (remove func()) {
	w.t.Helper()
	w.c.Crash(0)
	l, err := w.c.Network.Host(testcluster.Host(0)).Listen(":7946")
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { serve(l) })
	return func() {
		_ = l.Close()
		wg.Wait()
	}
}

// accept takes connections, writes answer to each, and closes it, or keeps it open if there is none.
func accept(answer string) func(net.Listener) {
	return func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if answer == "" {
				defer func() { _ = c.Close() }()
				continue
			}
			_, _ = c.Write([]byte(answer))
			_ = c.Close()
		}
	}
}

// foreign starts a node of another cluster on n0's address.
func (w *ward) foreign() (remove func()) {
	w.t.Helper()
	w.c.Crash(0)
	host := w.c.Network.Host(testcluster.Host(0))
	l, err := host.Listen(":7946")
	if err != nil {
		w.t.Fatal(err)
	}
	n, err := nearcache.Start(w.t.Context(), nearcache.NodeConfig{ID: "n0", Cluster: "other", Listener: l, Dial: host.Dial, Discovery: w.c.List})
	if err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if err := n.Close(w.t.Context()); err != nil {
			w.t.Error(err)
		}
	}
}

// flap cuts n0 off and joins it again until it is told to stop.
func (w *ward) flap() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			w.c.Network.Isolate(testcluster.Host(0))
			time.Sleep(flapping)
			w.c.Network.Rejoin(testcluster.Host(0))
			time.Sleep(flapping)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

const flapping = 300 * time.Millisecond

// Case transport-6. Case transport-16.
// Whatever ails a peer, and whatever is asked of it: a read that meets it takes a PeerTimeout at most, a change waits once until the peer can
// hold nothing any more (R9), those that follow take no time, no read fails, a change names the peer or succeeds, and within a second of its
// return the peer serves again.
func TestEveryCallMeetsASickPeerOnce(t *testing.T) {
	const host = "127.0.0.1"
	for _, kind := range []struct {
		name  string
		start func(w *ward) (end func())
		waits int // calls of one caller that may wait
	}{
		{"refuses", func(w *ward) func() { w.c.Crash(0); return w.restart }, 1},
		{"restarted", func(w *ward) func() { w.c.Crash(0); w.restart(); return func() {} }, 1},
		{"never answers", func(w *ward) func() { remove := w.replace(accept("")); return func() { remove(); w.restart() } }, 1},
		{"garbage", func(w *ward) func() {
			remove := w.replace(accept("HTTP/1.1 200 OK\r\n\r\ngarbage"))
			return func() { remove(); w.restart() }
		}, 1},
		{"another cluster", func(w *ward) func() { remove := w.foreign(); return func() { remove(); w.restart() } }, 1},
		{"frozen", func(w *ward) func() { w.c.Network.Isolate(host); return w.c.Network.HealAll }, 1},
		{"slow", func(w *ward) func() {
			w.c.Network.Delay(host, testcluster.Host(1), 4*peerTimeout)
			return func() { w.c.Network.Delay(host, testcluster.Host(1), 0) }
		}, 1},
		{"flapping", func(w *ward) func() { return w.flap() }, int(trouble/flapping)/2 + 1},
		{"no keyspace", func(w *ward) func() { w.shut(); return func() { w.reopen(w.cfg.Codec) } }, 0},
		{"another spelling", func(w *ward) func() {
			w.respell("two:")
			return func() { w.respell("one:") }
		}, 0},
	} {
		for _, op := range calls() {
			if raceEnabled && op.name != "Get" && op.name != "Invalidate" {
				continue
			}
			t.Run(kind.name+"/"+op.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWard(t)
					base := testcluster.Held()
					end := kind.start(w)
					w.ask(op, kind.waits)
					end()
					w.returned(op)
					w.c.Rest(base, 30*time.Second)
				})
			})
		}
	}
}

const trouble = 2 * time.Second // how long a peer is in trouble

// call is one of the ways to call a cache.
type call struct {
	name   string
	change bool // it changes something: where it cannot, it says so
	do     func(w *ward, i int) error
}

func calls() []call {
	right := func(key, v string, err error) error {
		if err == nil {
			_, err = testcluster.Version(key, v)
		}
		return err
	}
	return []call{
		{"Get", false, func(w *ward, i int) error {
			key := w.keys[i%len(w.keys)]
			v, err := w.caches[1].Get(w.t.Context(), key)
			return right(key, v, err)
		}},
		{"GetMany", false, func(w *ward, i int) error {
			keys := slices.Concat(w.keys[i%10:i%10+10], w.others)
			m, err := w.caches[1].GetMany(w.t.Context(), keys)
			for _, key := range keys {
				err = errors.Join(err, right(key, m[key], nil))
			}
			return err
		}},
		{"Set", true, func(w *ward, i int) error {
			key := w.keys[i%len(w.keys)]
			_, err := w.caches[1].Set(w.t.Context(), key, testcluster.Value(key, 0))
			return err
		}},
		{"Invalidate", true, func(w *ward, i int) error {
			return w.caches[1].Invalidate(w.t.Context(), w.keys[i%len(w.keys)], w.others[i%len(w.others)])
		}},
	}
}

// ask calls on n1 while n0 is in trouble, as one caller after the other.
func (w *ward) ask(op call, waits int) {
	w.t.Helper()
	waited, n := 0, 0
	var longest time.Duration
	limit, end := peerTimeout+20*time.Millisecond, trouble
	if op.change {
		limit, end, waits = 3*time.Second+peerTimeout, 2*trouble, 2*waits
	}
	for start := time.Now(); time.Since(start) < end; n++ {
		at := time.Now()
		err := op.do(w, n)
		took := time.Since(at)
		longest = max(longest, took)
		if took > 5*time.Millisecond {
			waited++
		}
		partial, ok := errors.AsType[*nearcache.PartialError](err)
		if err != nil && !(op.change && ok && slices.Equal(partial.Members, []string{"n0"})) {
			w.t.Errorf("call %d: %v", n, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.t.Logf("%d of %d calls waited, the longest %v", waited, n, longest)
	if waited > waits {
		w.t.Errorf("%d calls waited, want %d at most", waited, waits)
	}
	if longest > limit {
		w.t.Errorf("a call took %v, want %v at most", longest, limit)
	}
}

// returned waits until n0 serves n1 again.
func (w *ward) returned(op call) {
	w.t.Helper()
	back := time.Now()
	for i := 0; ; i++ {
		err := op.do(w, i)
		if err != nil && !op.change {
			w.t.Errorf("after its return: %v", err)
		}
		_, info, infoErr := w.caches[1].GetInfo(w.t.Context(), w.keys[0])
		if infoErr != nil {
			w.t.Errorf("after its return: %v", infoErr)
		}
		if err == nil && info.Member == "n0" || time.Since(back) > 10*time.Second {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(back); took > time.Second {
		w.t.Errorf("in use again after %v, want a second", took)
	}
}
