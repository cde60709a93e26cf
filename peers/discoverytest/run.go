package discoverytest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nearcache/nearcache/peers"
)

// Source is a discovery and the means to control what it reports.
type Source struct {
	// Discovery is what is tested.
	Discovery peers.Discovery
	// Set makes these, a part of Members, the members in whatever Discovery looks at. It does not wait until they are reported. Nil:
	// Discovery reports Members and nothing else, and changes are not checked.
	Set func(members ...peers.Member)
	// Break makes what Discovery looks at unreachable, or reachable again. Nil: outages are not checked.
	Break func(broken bool)
	// Members are what Discovery can report, at least two. Empty: three addresses with one port.
	Members []peers.Member
	// Within is how long a list may take to be reported, and Watch to end. 0 means 5 s.
	Within time.Duration
}

// Run runs every check as a subtest of t, on a source of its own.
func Run(t *testing.T, source func(t *testing.T) Source) {
	t.Helper()
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			s := source(t).effective()
			if len(s.Members) < 2 {
				t.Fatalf("the source has %d members, want at least two", len(s.Members))
			}
			if c.changes && s.Set == nil || c.breaks && s.Break == nil {
				t.Skip("the source cannot do what this needs")
			}
			if err := c.run(s); err != nil {
				t.Error(err)
			}
		})
	}
}

func (s Source) effective() Source {
	if len(s.Members) == 0 {
		s.Members = []peers.Member{{Addr: "10.0.0.1:7946"}, {Addr: "10.0.0.2:7946"}, {Addr: "10.0.0.3:7946"}}
	}
	if s.Within == 0 {
		s.Within = 5 * time.Second
	}
	return s
}

// set is Set, where there is one.
func (s Source) set(members ...peers.Member) {
	if s.Set != nil {
		s.Set(members...)
	}
}

// quiet waits for what must not happen.
func (s Source) quiet() {
	const part = 20
	t := time.NewTimer(s.Within / part)
	<-t.C
}

// check is one promise of the interface.
type check struct {
	name            string
	changes, breaks bool // what it needs of the source
	run             func(Source) error
}

func checks() []check {
	return []check{
		{"FirstList", false, false, firstList},
		{"Changes", true, false, changes},
		{"Repeats", true, false, repeats},
		{"End", false, false, end},
		{"EndedBefore", false, false, endedBefore},
		{"SlowUpdate", true, false, slowUpdate},
		{"ManyWatchers", false, false, manyWatchers},
		{"Outage", true, true, outage},
	}
}

// firstList: the first list comes soon, and is complete.
func firstList(s Source) error {
	s.set(s.Members...)
	w := watch(s, nil)
	return errors.Join(w.await(s.Members), w.stop())
}

// changes: every change is reported, as a complete list, whatever became of the lists before.
func changes(s Source) error {
	last := len(s.Members) - 1
	s.set(s.Members[:1]...)
	w := watch(s, nil)
	err := w.await(s.Members[:1])
	for _, list := range [][]peers.Member{s.Members, s.Members[:last], s.Members[last:], s.Members} {
		if err != nil {
			break
		}
		s.set(list...)
		err = w.await(list)
	}
	return errors.Join(err, w.stop())
}

// repeats: the same list again is the same list.
func repeats(s Source) error {
	s.set(s.Members...)
	w := watch(s, nil)
	err := w.await(s.Members)
	for range 3 {
		s.set(s.Members...)
		s.quiet()
	}
	return errors.Join(err, w.only(s.Members), w.stop())
}

// end: Watch ends with its context, leaves no goroutine, and reports nothing afterwards.
func end(s Source) error {
	s.set(s.Members...)
	w := watch(s, nil)
	err := errors.Join(w.await(s.Members), w.stop())
	s.set(s.Members[:1]...)
	s.quiet()
	return errors.Join(err, w.trouble())
}

// endedBefore: Watch with a context that has ended returns.
func endedBefore(s Source) error {
	s.set(s.Members...)
	w := newWatcher(s, nil)
	w.cancel()
	w.start()
	return w.stop()
}

// slowUpdate: what changes while update runs is reported when it has returned, and nothing waits for it meanwhile.
func slowUpdate(s Source) error {
	s.set(s.Members[:1]...)
	release := make(chan struct{})
	w := watch(s, release)
	err := w.begun()
	if err == nil {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range s.Members {
				s.set(s.Members[:i+1]...)
			}
		}()
		if !within(s.Within, done) {
			err = errors.New("a Set waits for an update that takes long")
		}
		s.quiet() // a second update would begin now
	}
	close(release)
	if err == nil {
		err = w.await(s.Members)
	}
	return errors.Join(err, w.stop())
}

// manyWatchers: several nodes watch at once, and come and go without disturbing each other.
func manyWatchers(s Source) error {
	s.set(s.Members...)
	var all []*watcher
	var problems []error
	for range 4 {
		all = append(all, watch(s, nil))
	}
	for i, w := range all {
		if err := w.await(s.Members); err != nil {
			problems = append(problems, fmt.Errorf("watcher %d: %w", i, err))
		}
	}
	problems = append(problems, all[0].stop())
	if s.Set != nil {
		s.set(s.Members[:1]...)
		for i, w := range all[1:] {
			if err := w.await(s.Members[:1]); err != nil {
				problems = append(problems, fmt.Errorf("watcher %d, after another has left: %w", i+1, err))
			}
		}
	}
	for _, w := range all[1:] {
		problems = append(problems, w.stop())
	}
	return errors.Join(problems...)
}

// outage: while there is no answer the last list stays; Watch may end with an error then, and is started again as a node does.
func outage(s Source) error {
	s.set(s.Members...)
	w := watch(s, nil)
	if err := w.await(s.Members); err != nil {
		return errors.Join(err, w.stop())
	}
	w.mayEnd.Store(true)
	s.Break(true)
	s.quiet()
	err := w.only(s.Members)
	s.Break(false)
	s.set(s.Members[:1]...)
	return errors.Join(err, w.await(s.Members[:1]), w.stop())
}
