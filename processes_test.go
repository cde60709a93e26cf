package nearcache_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

// fleet is a cluster of child processes on loopback, each behind a proxy, with their origin in this process.
type fleet struct {
	t       *testing.T
	o       *origin
	url     string
	procs   []*testcluster.Process
	proxies []*testcluster.Proxy
	keys    []string      // owned by n0
	bound   time.Duration // 0: the default
}

// On a machine that does much else a process pauses for longer than the default.
const fleetPeerTimeout = 100 * time.Millisecond

func newFleet(t *testing.T, nodes int, bound time.Duration) *fleet {
	t.Helper()
	f := &fleet{t: t, o: newOrigin(func() time.Duration { return time.Millisecond }), bound: bound}
	server := httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(server.Close)
	f.url = server.URL
	f.procs = make([]*testcluster.Process, nodes)
	for i := range nodes {
		f.proxies = append(f.proxies, testcluster.NewProxy(t))
		f.spawn(i, "127.0.0.1:0")
	}
	for _, p := range f.procs {
		p.Do(testcluster.Order{Members: f.members()})
	}
	f.keys = f.procs[1].Do(testcluster.Order{Owned: 30, By: "n0"}).Keys
	return f
}

// spawn starts the process of node i.
func (f *fleet) spawn(i int, listen string) {
	f.t.Helper()
	f.procs[i] = testcluster.Spawn(f.t, testcluster.Settings{
		ID: fmt.Sprint("n", i), Listen: listen, Advertise: f.proxies[i].Addr(), Origin: f.url, PeerTimeout: fleetPeerTimeout, Bound: f.bound,
	})
	f.proxies[i].To(f.procs[i].Settings.Listen)
}

func (f *fleet) members() (all []peers.Member) {
	for i, p := range f.proxies {
		all = append(all, peers.Member{ID: fmt.Sprint("n", i), Addr: p.Addr()})
	}
	return all
}

// serve is the origin of the children.
func (f *fleet) serve(w http.ResponseWriter, r *http.Request) {
	by, err := strconv.Atoi(strings.TrimPrefix(r.FormValue("by"), "n"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v, err := f.o.loader(by)(r.Context(), r.FormValue("key"))
	if err != nil {
		return // the child has gone
	}
	_, _ = io.WriteString(w, v)
}

const (
	fleetCallers = 8 // of a process
	fleetAway    = 1200 * time.Millisecond
)

// others gives an order to all processes but n0.
func (f *fleet) others(o testcluster.Order) []testcluster.Report {
	f.t.Helper()
	var all []testcluster.Report
	for _, p := range f.procs[1:] {
		all = append(all, p.Do(o))
	}
	return all
}

// read reads n0's keys on all others.
func (f *fleet) read() {
	f.t.Helper()
	f.others(testcluster.Order{Read: &testcluster.Reading{Keys: f.keys, Callers: fleetCallers, Pause: 5 * time.Millisecond}})
}

// halt ends the reading and judges it: no read failed, and no caller waited for more than some time-outs.
func (f *fleet) halt(waits int) {
	f.t.Helper()
	for i, r := range f.others(testcluster.Order{Halt: true}) {
		t := r.Tally
		f.t.Logf("n%d: %d reads, %d waited, the longest %v", i+1, t.Reads, t.Slow, t.Longest)
		for text, n := range t.Failed {
			f.t.Errorf("n%d: %d reads failed: %s", i+1, n, text)
		}
		if t.Slow > waits*fleetCallers {
			f.t.Errorf("n%d: %d reads by %d callers took a PeerTimeout or longer, want at most %d each", i+1, t.Slow, fleetCallers, waits)
		}
		if t.Longest > 5*time.Second {
			f.t.Errorf("n%d: a read took %v", i+1, t.Longest)
		}
		if t.Reads < 10*fleetCallers {
			f.t.Errorf("n%d: %d reads only", i+1, t.Reads)
		}
	}
}

// returned waits until n0 serves all others, and returns how long that took. Here too, a machine that does much else needs more.
func (f *fleet) returned() time.Duration {
	f.t.Helper()
	start := time.Now()
	for i, p := range f.procs[1:] {
		for f.get(p).Member != "n0" {
			if time.Since(start) > 5*time.Second {
				f.t.Errorf("n%d: n0 is not in use again", i+1)
				return time.Since(start)
			}
			testcluster.Wait()
		}
	}
	return time.Since(start)
}

// get reads a key of n0's once.
func (f *fleet) get(p *testcluster.Process) testcluster.Answer {
	f.t.Helper()
	a := p.Do(testcluster.Order{Call: &testcluster.Call{Op: testcluster.Get, Keyspace: testcluster.Keyspace, Keys: f.keys[:1]}}).Answers[0]
	if _, err := testcluster.Version(f.keys[0], a.Value); err != nil || a.Error != "" {
		f.t.Errorf("%s: got %+v", p.Settings.ID, a)
	}
	return a
}

// rest waits until the others hold no more than base and do nothing any more.
func (f *fleet) rest(base []testcluster.Report) {
	f.t.Helper()
	const (
		limit = 10 * time.Second
		slack = 4 // what comes and goes: a connection to the origin, a goroutine of the runtime
	)
	for start := time.Now(); ; testcluster.Wait() {
		var left []string
		for i, r := range f.others(testcluster.Order{}) {
			for _, s := range []string{testcluster.Busy(r.Stats), r.Held.Over(base[i].Held, slack)} {
				if s != "" {
					left = append(left, fmt.Sprintf("n%d: %s", i+1, s))
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Since(start) > limit {
			f.t.Errorf("left after %v: %s", limit, strings.Join(left, "; "))
			return
		}
	}
}

// Real processes that are killed, frozen, cut off and started again on their address under load: no read fails or hangs, few wait,
// and the process is in use again soon.
//
// Case transport-6.
// Case transport-8.
// Case transport-16.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes and takes seconds: runs without -short")
	}
	f := newFleet(t, 4, 0)
	f.read()
	testcluster.Last(300 * time.Millisecond)
	f.halt(fleetCallers)
	f.returned()
	testcluster.Last(100 * time.Millisecond)
	base := f.others(testcluster.Order{})
	proxy := f.proxies[0]
	hold, slow := testcluster.Flow{Hold: true}, testcluster.Flow{Delay: 20 * time.Millisecond, Rate: 1 << 20}
	for _, tt := range []struct {
		name       string
		start, end func()
		waits      int // time-outs that a caller may meet; several, since a busy machine has pauses of its own
	}{
		{"frozen", func() { f.procs[0].Freeze() }, func() { f.procs[0].Thaw() }, 4},
		{"black hole", proxy.BlackHole, proxy.Heal, 4},
		{"black hole inwards", func() { proxy.Flow(hold, testcluster.Flow{}) }, proxy.Heal, 4},
		{"black hole outwards", func() { proxy.Flow(testcluster.Flow{}, hold) }, proxy.Heal, 4},
		{"slow", func() { proxy.Flow(slow, slow) }, proxy.Heal, 4},
		{"half-open", proxy.HalfOpen, proxy.Heal, 4}, // its peers have to find out by themselves
		{"cut", proxy.Cut, proxy.Heal, 4},
		{"reset", proxy.Reset, proxy.Heal, 4},
		{"killed", func() { f.procs[0].Kill() }, func() { f.respawn() }, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "frozen" && !testcluster.CanFreeze {
				t.Skip("no signal for it on this system")
			}
			f.t = t
			f.read()
			testcluster.Last(100 * time.Millisecond)
			f.o.total()
			tt.start()
			testcluster.Last(fleetAway)
			most := f.o.most()
			tt.end()
			took := f.returned()
			f.halt(tt.waits)
			// A stand-in's copy lives a Bound; pauses of the machine may call a second stand-in to help.
			if lives := int(fleetAway/time.Second) + 1; most > 3*lives {
				t.Errorf("a key was loaded %d times in %d lives of a stand-in's copy", most, lives)
			}
			f.rest(base)
			t.Logf("in use again after %v; a key was loaded %d times at most", took, most)
		})
	}
}

// respawn starts n0 again, on its address.
func (f *fleet) respawn() {
	f.spawn(0, f.procs[0].Settings.Listen)
	f.procs[0].Do(testcluster.Order{Members: f.members()})
}

// A process is stopped, with near copies of a minute or as the owner. When it wakes, and is told nothing, it serves nothing of which an Invalidate had
// returned nil a Bound before: its clock went on, so that its leases are over as soon as the clock that near copies are held against has ticked.
func TestAStoppedProcessServesNothingOld(t *testing.T) {
	if testing.Short() || !testcluster.CanFreeze {
		t.Skip("stops processes and takes seconds: runs without -short, where there is a signal for it")
	}
	f := newFleet(t, 5, 500*time.Millisecond)
	for ill, what := range []string{"the owner", "a reader"} {
		t.Run(what, func(t *testing.T) {
			f.t = t
			for range 5 { // a machine that does much else: no success is promised
				if f.outdate(ill, f.nearKey()) {
					return
				}
			}
			t.Error("no invalidation returned nil")
		})
	}
}

// outdate makes the value of a key of n0's old while a process, and n0, are stopped, and reads it there when the process runs on. False: the
// invalidation did not return nil.
func (f *fleet) outdate(ill int, key string) bool {
	f.t.Helper()
	const lag = 200 * time.Millisecond // of the clock, on a machine that does much else
	call := func(op testcluster.Op) testcluster.Order {
		return testcluster.Order{Call: &testcluster.Call{Op: op, Keyspace: testcluster.Near, Keys: []string{key}}}
	}
	for range 2 { // an answer that was waited for may not have been kept
		for _, p := range f.procs {
			p.Do(call(testcluster.Get))
		}
	}
	f.procs[0].Freeze()
	f.procs[ill].Freeze()
	f.proxies[0].BlackHole() // nobody tells n0 what it is owed
	want := f.o.bump(key)
	failed := f.procs[2].Do(call(testcluster.Invalidate)).Answers[0].Error
	testcluster.Last(f.bound + slack)
	f.procs[ill].Thaw()
	for woke := time.Now(); ; testcluster.Wait() {
		a := f.procs[ill].Do(call(testcluster.Get)).Answers[0]
		got, err := testcluster.Version(key, a.Value)
		if a.Error != "" || err != nil {
			f.t.Fatalf("got %+v, %v", a, err)
		}
		if got >= want || failed != "" {
			break
		}
		if took := time.Since(woke); took > lag {
			f.t.Fatalf("got version %d, %v after it woke, of a key whose version %d was invalidated a Bound before", got, took, want)
		}
	}
	f.procs[0].Thaw()
	f.proxies[0].Heal()
	f.returned()
	return failed == ""
}

// nearKey returns a key, of the keyspace with near copies, that n0 owns and that n1 is no stand-in for, which would be told.
func (f *fleet) nearKey() string {
	f.t.Helper()
	var members []ring.Member
	for i := range f.procs {
		members = append(members, ring.Member{ID: fmt.Sprint("n", i)})
	}
	r, err := ring.New(members)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; ; i++ {
		key := fmt.Sprint("near-", i)
		if list := r.Prefer(nil, ring.Hash(testcluster.Near, key), 3); list[0] == 0 && list[1] != 1 && list[2] != 1 {
			return key
		}
	}
}

// A child does not outlive its parent.
func TestAChildEndsWithItsParent(t *testing.T) {
	p := testcluster.Spawn(t, testcluster.Settings{ID: "n0", Listen: "127.0.0.1:0"})
	p.HangUp()
	select {
	case <-p.Exited():
	case <-time.After(10 * time.Second):
		t.Error("it still runs")
	}
}
