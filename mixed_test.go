package nearcache_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// otherMember names a build of internal/testcluster/member from another revision; scripts/compat.sh makes it.
const otherMember = "NEARCACHE_OTHER_MEMBER"

// mixed is a cluster of child processes of two revisions, with their origin in this process.
type mixed struct {
	t     *testing.T
	o     *origin
	url   string
	procs []*testcluster.Process
	fresh [][]string // by owner: keys that no check has used
	hot   []string   // keys that are read while processes are replaced

	bound    time.Duration
	replicas int

	mu      sync.Mutex // guards instead
	instead map[string]answer
}

// answer is what the origin says of a key instead of its Value.
type answer struct {
	status int
	body   string
}

const (
	mixedNodes       = 3
	mixedHot         = 10              // keys of each owner
	mixedPeerTimeout = 5 * time.Second // nothing is slow here but the machine
	mixedLoad        = 20 * time.Millisecond
)

// newMixed starts all members from one program.
func newMixed(t *testing.T, program string, bound time.Duration, replicas int) *mixed {
	t.Helper()
	m := &mixed{
		t: t, bound: bound, replicas: replicas, o: newOrigin(func() time.Duration { return mixedLoad }), procs: make([]*testcluster.Process, mixedNodes),
		fresh: make([][]string, mixedNodes), instead: make(map[string]answer),
	}
	server := httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(server.Close)
	m.url = server.URL
	for i := range m.procs {
		m.spawn(i, program, "127.0.0.1:0")
	}
	for _, p := range m.procs {
		p.Do(testcluster.Order{Members: m.members()})
	}
	for i := range m.procs {
		m.fresh[i] = m.procs[0].Do(testcluster.Order{Owned: 1000, By: fmt.Sprint("n", i)}).Keys
		m.hot = append(m.hot, m.take(i, mixedHot)...)
	}
	return m
}

func (m *mixed) spawn(i int, program, listen string) {
	m.t.Helper()
	m.procs[i] = testcluster.Spawn(m.t, testcluster.Settings{
		Program: program, ID: fmt.Sprint("n", i), Listen: listen, Origin: m.url, PeerTimeout: mixedPeerTimeout, Bound: m.bound, Replicas: m.replicas,
	})
}

func (m *mixed) members() (all []peers.Member) {
	for _, p := range m.procs {
		all = append(all, peers.Member{ID: p.Settings.ID, Addr: p.Settings.Listen})
	}
	return all
}

// serve is the origin of the children.
func (m *mixed) serve(w http.ResponseWriter, r *http.Request) {
	key := r.FormValue("key")
	by, err := strconv.Atoi(strings.TrimPrefix(r.FormValue("by"), "n"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v, err := m.o.loader(by)(r.Context(), key)
	if err != nil {
		return // the child has gone
	}
	m.mu.Lock()
	a, ok := m.instead[key]
	m.mu.Unlock()
	if !ok {
		a = answer{http.StatusOK, v}
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// take returns n keys that member i owns and nobody has asked for.
func (m *mixed) take(i, n int) []string {
	keys := m.fresh[i][:n]
	m.fresh[i] = m.fresh[i][n:]
	return keys
}

// odd returns such a key of which the origin says something else.
func (m *mixed) odd(i, status int, body string) string {
	key := m.take(i, 1)[0]
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instead[key] = answer{status, body}
	return key
}

// all gives an order to all processes at once.
func (m *mixed) all(o testcluster.Order) (all []testcluster.Report) {
	m.t.Helper()
	for _, p := range m.procs {
		p.Tell(o)
	}
	for _, p := range m.procs {
		all = append(all, p.Hear(o))
	}
	return all
}

// expect makes all members call at once, and compares each answer, without the member that gave it, with the one for its key.
func (m *mixed) expect(op testcluster.Op, keys []string, want ...testcluster.Answer) []testcluster.Report {
	m.t.Helper()
	all := m.all(testcluster.Order{Call: &testcluster.Call{Op: op, Keyspace: testcluster.Keyspace, Keys: keys}})
	for i, r := range all {
		for j, got := range r.Answers {
			got.Member = ""
			if got != want[j] {
				m.t.Errorf("%s of %.80q on n%d: got %.200q, want %.200q", op, keys[j], i, got, want[j])
			}
		}
	}
	return all
}

// tell makes one member call, which must not fail.
func (m *mixed) tell(i int, c testcluster.Call) {
	m.t.Helper()
	for _, a := range m.procs[i].Do(testcluster.Order{Call: &c}).Answers {
		if a.Error != "" {
			m.t.Errorf("%s on n%d: %s", c.Op, i, a.Error)
		}
	}
}

func value(key string, version int) testcluster.Answer {
	return testcluster.Answer{Value: testcluster.Value(key, version)}
}

// loaded checks that the origin was asked for n keys since it was asked last, once for each.
func (m *mixed) loaded(n int) {
	m.t.Helper()
	if most, total := m.o.most(), m.o.total(); total != n || n > 0 && most != 1 {
		m.t.Errorf("%d loads, %d of one key; want one for each of %d keys", total, most, n)
	}
}

// check makes every member say to every other one all that members say to each other, and returns when it has been answered.
func (m *mixed) check() {
	m.t.Helper()
	m.settled()
	before := m.all(testcluster.Order{})
	m.o.total()
	for owner := range m.procs {
		m.reads(owner)
		m.failures(owner)
		for by := range m.procs {
			m.writes(owner, by)
		}
	}
	m.batches()
	for by := range m.procs {
		m.nearCopies(by)
	}
	for by := range m.procs {
		m.dropAll(by)
	}
	m.quiet(before, m.all(testcluster.Order{}))
}

// reads: a small and a large value, missed by all members at once, then resident.
func (m *mixed) reads(owner int) {
	m.t.Helper()
	small := m.take(owner, 1)
	m.expect(testcluster.Get, small, value(small[0], 0))
	m.loaded(1)
	m.expect(testcluster.Peek, small, value(small[0], 0))
	body := strings.Repeat("large", 100<<10)
	large := []string{m.odd(owner, http.StatusOK, body)}
	m.expect(testcluster.Get, large, testcluster.Answer{Value: body})
	m.loaded(1)
	for i, r := range m.expect(testcluster.Get, slices.Concat(small, large), value(small[0], 0), testcluster.Answer{Value: body}) {
		for _, a := range r.Answers {
			if want := fmt.Sprint("n", owner); a.Member != want {
				m.t.Errorf("n%d: %s answered, want the owner, %s", i, a.Member, want)
			}
		}
	}
	m.loaded(0)
}

// failures: what a load comes to on one member is what those hear that wait for it on others.
func (m *mixed) failures(owner int) {
	m.t.Helper()
	for status, want := range map[int]string{
		http.StatusNotFound:     testcluster.NotFound,
		testcluster.StatusKnown: testcluster.Known,
		testcluster.StatusPanic: testcluster.Panicked,
		http.StatusBadGateway:   testcluster.Failed,
	} {
		key := m.odd(owner, status, "")
		m.expect(testcluster.Get, []string{key}, testcluster.Answer{Error: want})
	}
	m.expect(testcluster.Peek, m.take(owner, 1), testcluster.Answer{Error: testcluster.NotFound})
	m.o.total()
}

// writes: Set and Invalidate by one member are seen by all.
func (m *mixed) writes(owner, by int) {
	m.t.Helper()
	keys := m.take(owner, 2)
	large := strings.Repeat("written", 100<<10)
	call := testcluster.Call{Op: testcluster.Set, Keyspace: testcluster.Keyspace, Keys: keys[:1], Value: testcluster.Value(keys[0], 7)}
	m.tell(by, call)
	call.Keys, call.Value = keys[1:], large
	m.tell(by, call)
	m.expect(testcluster.Get, keys, value(keys[0], 7), testcluster.Answer{Value: large})
	m.loaded(0)
	m.tell(by, testcluster.Call{Op: testcluster.Invalidate, Keyspace: testcluster.Keyspace, Keys: keys})
	m.expect(testcluster.Get, keys, value(keys[0], 0), value(keys[1], 0))
	m.loaded(2)
}

// dropAll: an InvalidateAll by one member reaches all owners. It comes last, since that member takes nothing for a while that may be
// older, by however little (R16), which costs loads.
func (m *mixed) dropAll(by int) {
	m.t.Helper()
	keys := []string{m.take(0, 1)[0], m.take(1, 1)[0], m.take(2, 1)[0]}
	none := testcluster.Answer{Error: testcluster.NotFound}
	m.expect(testcluster.Get, keys, value(keys[0], 0), value(keys[1], 0), value(keys[2], 0))
	m.tell(by, testcluster.Call{Op: testcluster.InvalidateAll, Keyspace: testcluster.Keyspace})
	m.expect(testcluster.Peek, keys, none, none, none)
}

// batches: more keys than a frame holds, of all owners, asked for by all members at once.
func (m *mixed) batches() {
	m.t.Helper()
	const each = 100
	var keys []string
	var want []testcluster.Answer
	for owner := range m.procs {
		keys = append(keys, m.take(owner, each)...)
	}
	for _, key := range keys {
		want = append(want, value(key, 0))
	}
	keys = append(keys, m.odd(0, http.StatusNotFound, ""))
	want = append(want, testcluster.Answer{Error: testcluster.NotFound})
	m.expect(testcluster.GetMany, keys, want...)
	m.loaded(len(keys))
}

// nearCopies: an invalidation by one member ends the near copies of one key on all of them, and of no other key, as an end of the
// coherence streams would. A machine that stands still for a near lease's life ends them all, so there are several attempts.
func (m *mixed) nearCopies(by int) {
	m.t.Helper()
	const attempts = 5
	for range attempts {
		keys := []string{m.take(0, 1)[0], m.take(1, 1)[0], m.take(2, 1)[0], m.take(0, 1)[0]}
		changed, kept := keys[:3], keys[3:]
		get := testcluster.Order{Call: &testcluster.Call{Op: testcluster.Get, Keyspace: testcluster.Near, Keys: keys}}
		m.all(get)
		m.all(get) // an answer that was waited for may not have been kept
		for _, key := range changed {
			m.o.bump(key)
		}
		m.tell(by, testcluster.Call{Op: testcluster.Invalidate, Keyspace: testcluster.Near, Keys: changed})
		m.renewed(changed)
		hits := m.nearHits()
		get.Call.Keys = kept
		m.all(get)
		if m.nearHits() == hits+mixedNodes {
			m.o.total()
			return
		}
	}
	m.t.Errorf("n%d invalidated three keys, and in none of %d attempts everybody kept a near copy of a fourth", by, attempts)
}

// renewed waits until no member has an old copy of the keys, for as long as it may have one.
func (m *mixed) renewed(keys []string) {
	m.t.Helper()
	get := testcluster.Order{Call: &testcluster.Call{Op: testcluster.Get, Keyspace: testcluster.Near, Keys: keys}}
	for start := time.Now(); ; testcluster.Wait() {
		old := 0
		late := time.Since(start) > 2*time.Second // it takes milliseconds, and a Bound if no invalidation arrives
		for i, r := range m.all(get) {
			for j, a := range r.Answers {
				if a.Value == testcluster.Value(keys[j], 1) {
					continue
				}
				old++
				if late || a.Error != "" {
					m.t.Errorf("n%d: %s: got %+v, %v after its invalidation", i, keys[j], a, time.Since(start))
				}
			}
		}
		if old == 0 || late {
			return
		}
	}
}

func (m *mixed) nearHits() (n int) {
	m.t.Helper()
	for _, r := range m.all(testcluster.Order{}) {
		n += int(r.Stats.Keyspaces[testcluster.Near].NearHits)
	}
	return n
}

// settled waits until all members are connected to each other.
func (m *mixed) settled() {
	m.t.Helper()
	for start := time.Now(); ; testcluster.Wait() {
		apart := ""
		for _, r := range m.all(testcluster.Order{}) {
			m.lines(r)
			for _, s := range r.Stats.Members {
				if !s.Connected || s.Breaker != "closed" {
					apart += fmt.Sprintf("%s to %s: connected %v, breaker %s; ", r.Stats.Node, s.Member.ID, s.Connected, s.Breaker)
				}
			}
		}
		if apart == "" {
			return
		}
		if time.Since(start) > 10*time.Second {
			m.t.Fatal(apart)
		}
	}
}

// lines looks through what a member has logged while others were restarted: streams that end then have no reason but that.
func (m *mixed) lines(r testcluster.Report) {
	m.t.Helper()
	strange := regexp.MustCompile(`stream refused|malformed|limit|version|hello|without an answer`)
	for line := range strings.Lines(r.Log) {
		if strange.MatchString(line) {
			m.t.Errorf("%s logged: %s", r.Stats.Node, line)
		}
	}
}

// quiet compares what members had counted before all went well with what they have now.
func (m *mixed) quiet(before, after []testcluster.Report) {
	m.t.Helper()
	for i, r := range after {
		if r.Log != "" {
			m.t.Errorf("%s logged: %s", r.Stats.Node, r.Log)
		}
		for j, s := range r.Stats.Members {
			if n := s.Errors - before[i].Stats.Members[j].Errors; n > 0 {
				m.t.Errorf("%s: %d requests to %s were not answered", r.Stats.Node, n, s.Member.ID)
			}
		}
		for name, ks := range r.Stats.Keyspaces {
			was := before[i].Stats.Keyspaces[name]
			if ks.PeerErrors > was.PeerErrors || ks.Misrouted > was.Misrouted || ks.Undecodable > 0 {
				m.t.Errorf("%s: keyspace %s: before %+v, after %+v", r.Stats.Node, name, was, ks)
			}
		}
	}
}

// replace ends the process of member i and starts another one on its address, while the others read keys of all owners.
func (m *mixed) replace(i int, program string, end func(p *testcluster.Process)) {
	m.t.Helper()
	others := slices.Delete(slices.Clone(m.procs), i, i+1)
	for _, p := range others {
		p.Do(testcluster.Order{Read: &testcluster.Reading{Keys: m.hot, Callers: 4, Pause: 2 * time.Millisecond}})
	}
	testcluster.Last(50 * time.Millisecond)
	end(m.procs[i])
	m.spawn(i, program, m.procs[i].Settings.Listen)
	m.procs[i].Do(testcluster.Order{Members: m.members()})
	testcluster.Last(50 * time.Millisecond)
	for _, p := range others {
		r := p.Do(testcluster.Order{Halt: true})
		m.lines(r)
		for text, n := range r.Tally.Failed {
			m.t.Errorf("%s: %d reads of %d failed: %s", p.Settings.ID, n, r.Tally.Reads, text)
		}
		if r.Tally.Reads == 0 {
			m.t.Errorf("%s read nothing", p.Settings.ID)
		}
	}
}

// Processes of this revision and of another one are members of one cluster: a rolling upgrade and the way back, and after each step
// all that members say to each other. Nobody fails, nothing is loaded twice, and no stream ends.
//
// Case discovery-5.
func TestMixedRevisions(t *testing.T) {
	other := os.Getenv(otherMember)
	if other == "" {
		t.Skip("needs a build of another revision: scripts/compat.sh makes one")
	}
	m := newMixed(t, other, 10*time.Second, 1) // a pause of the machine ends no lease and no copy
	m.check()
	for _, step := range []struct {
		name, program string
		end           func(p *testcluster.Process)
	}{
		{"upgrade", "", func(p *testcluster.Process) { p.Do(testcluster.Order{Close: true}); <-p.Exited() }},
		{"downgrade, killed", other, (*testcluster.Process).Kill},
	} {
		for i := range m.procs {
			if t.Failed() {
				return
			}
			t.Logf("%s of n%d", step.name, i)
			m.replace(i, step.program, step.end)
			m.check()
		}
	}
}

// With Replicas members of the two revisions keep copies for each other: whoever dies, of whatever revision, costs no loads of what others keep.
func TestMixedRevisionsWithReplicas(t *testing.T) {
	other := os.Getenv(otherMember)
	if other == "" {
		t.Skip("needs a build of another revision: scripts/compat.sh makes one")
	}
	m := newMixed(t, other, time.Second, 2) // a short one, as no copies are taken for five Bounds after a start
	for i := range m.procs {
		m.settled()
		m.copied()
		m.o.total()
		m.replace(i, "", (*testcluster.Process).Kill)
		if got := m.o.total(); got > mixedHot/2 { // a machine that stands still may end a lease
			t.Errorf("the end of n%d cost %d loads, want none: each of its %d keys has a replica", i, got, mixedHot)
		}
	}
}

// copied reads until all keys have a replica.
func (m *mixed) copied() {
	m.t.Helper()
	var want []testcluster.Answer
	for _, key := range m.hot {
		want = append(want, value(key, 0))
	}
	for start := time.Now(); ; testcluster.Last(100 * time.Millisecond) {
		var entries int64
		for _, r := range m.expect(testcluster.Get, m.hot, want...) {
			m.lines(r)
			entries += r.Stats.Keyspaces[testcluster.Keyspace].ShardEntries
		}
		if entries == int64(2*len(m.hot)) {
			return
		}
		if time.Since(start) > 30*time.Second {
			m.t.Fatalf("%d keys have %d entries, want two each", len(m.hot), entries)
		}
	}
}
