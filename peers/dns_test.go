package peers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// scriptedDNS answers from a script, in virtual time.
type scriptedDNS struct {
	mu     sync.Mutex // guards the fields below
	answer []Member   // nil: fail
	hang   bool
	asked  []time.Time
}

func (s *scriptedDNS) set(members ...Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = members
}

func (s *scriptedDNS) lookup(ctx context.Context) ([]Member, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	answer, hang := s.answer, s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if answer == nil {
		return nil, errors.New("no such host")
	}
	return answer, nil
}

// pauses returns the times between the questions since the last call.
func (s *scriptedDNS) pauses() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pauses []time.Duration
	for i := 1; i < len(s.asked); i++ {
		pauses = append(pauses, s.asked[i].Sub(s.asked[i-1]))
	}
	s.asked = s.asked[len(s.asked)-1:]
	return pauses
}

func checkPauses(t *testing.T, when string, pauses []time.Duration, want time.Duration) {
	t.Helper()
	if len(pauses) < 4 {
		t.Errorf("%s: asked %d times, want more", when, len(pauses))
		return
	}
	for _, p := range pauses {
		if p < want*8/10 || p > want*12/10 {
			t.Errorf("%s: paused %v, want %v give or take 20 %%", when, p, want)
		}
	}
	if slices.Min(pauses) == slices.Max(pauses) {
		t.Errorf("%s: all pauses are %v, want them spread", when, pauses[0])
	}
}

// Cases discovery-1 and discovery-2.
func TestDNSPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		script := &scriptedDNS{}
		lists, stop := watch(t, &dns{lookup: script.lookup, interval: 5 * time.Second})
		time.Sleep(10 * time.Second)
		if got := len(lists()); got != 0 {
			t.Errorf("while every answer fails: got %d lists, want none", got)
		}
		checkPauses(t, "at the start", script.pauses(), time.Second)

		script.set(Member{Addr: "a:1"})
		time.Sleep(1200 * time.Millisecond)
		if got := len(lists()); got == 0 {
			t.Error("1.2 s after the first answer: got no list")
		}
		time.Sleep(29 * time.Second)
		lists()
		checkPauses(t, "after a change", script.pauses(), time.Second)
		time.Sleep(3 * time.Second)
		lists()
		script.pauses()
		time.Sleep(10 * time.Minute)
		before := len(lists())
		checkPauses(t, "in peace", script.pauses(), 5*time.Second)
		if before < 100 {
			t.Errorf("got %d lists in ten minutes, want one for each answer", before)
		}

		for _, list := range lists() {
			if got := addrsOf([][]Member{list}); got != "a:1" { // whatever the callee did to the lists before
				t.Fatalf("got %q, want a:1 each time", got)
			}
		}

		script.set() // fail
		time.Sleep(10 * time.Minute)
		if got := len(lists()); got != before {
			t.Errorf("after ten minutes of failures: got %d lists more, want none", got-before)
		}
		script.pauses()
		script.mu.Lock()
		script.hang = true
		script.mu.Unlock()
		time.Sleep(10 * time.Minute)
		lists()
		for _, p := range script.pauses()[1:] {
			if p < 9*time.Second || p > 11*time.Second {
				t.Errorf("when answers do not come: asked again after %v, want 5 s for the answer and 5 s of pause", p)
			}
		}
		if err := stop(); !errors.Is(err, context.Canceled) { // in the middle of a question
			t.Errorf("Watch after the end of its context: got %v", err)
		}
	})
}

func TestDNSIntervals(t *testing.T) {
	for interval, want := range map[time.Duration]time.Duration{
		0: 5 * time.Second, time.Millisecond: time.Second, time.Second: time.Second, time.Hour: time.Hour,
	} {
		d, ok := DNS("name:1", interval).(*dns)
		if !ok || d.interval != want {
			t.Errorf("DNS with interval %v: got %v, want %v", interval, d, want)
		}
	}
}

func TestDNSRefusesNonsense(t *testing.T) {
	for name, interval := range map[string]time.Duration{
		"": 0, "name": 0, "name:0": 0, "::1:1": 0, "_cache": 0, "_cache._tcp": 0, "_cache._tcp.": 0, "_cache.tcp.name": 0, "_cache._tcp.a b": 0, "name:1": -1,
	} {
		if err := DNS(name, interval).Watch(t.Context(), func([]Member) { t.Errorf("%q: update called", name) }); err == nil {
			t.Errorf("DNS(%q, %v): want an error from Watch", name, interval)
		}
	}
}
