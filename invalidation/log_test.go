package invalidation

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seqs returns the numbers of b's events.
func seqs(b *Batch) []uint64 {
	var out []uint64
	for _, e := range b.Events {
		out = append(out, e.Seq)
	}
	return out
}

func appendKeys(l *Log, n int) {
	for range n {
		l.Append(Event{Keyspace: "ks", Key: fmt.Sprint("key", l.Seq()+1)})
	}
}

func TestLogNumbersEvents(t *testing.T) {
	l := NewLog(LogConfig{})
	if got := l.Seq(); got != 0 {
		t.Errorf("an empty log stands at %d, want 0", got)
	}
	for want := uint64(1); want <= 3; want++ {
		if got := l.Append(Event{Key: "k"}); got != want || l.Seq() != want {
			t.Errorf("Append returned %d, Seq %d, want %d", got, l.Seq(), want)
		}
	}
	if got := l.Stats(); got.Held != 0 {
		t.Errorf("%d events kept for nobody", got.Held)
	}
}

func TestTakeInOrder(t *testing.T) {
	l := NewLog(LogConfig{})
	appendKeys(l, 10)
	s := l.Subscribe("m")
	var b Batch
	if s.Take(&b, 4) {
		t.Errorf("a new subscriber got %+v, want nothing: it is told of nothing older", b)
	}
	appendKeys(l, 10)
	var got []uint64
	for s.Take(&b, 4) {
		if len(b.Events) > 4 || b.Reset || b.Renewed || b.Seq != b.Events[len(b.Events)-1].Seq {
			t.Errorf("got %+v, want at most 4 events and the last one's number", b)
		}
		for _, e := range b.Events {
			if want := fmt.Sprint("key", e.Seq); e.Key != want || e.Keyspace != "ks" {
				t.Errorf("event %d is of %q, want %q", e.Seq, e.Key, want)
			}
		}
		got = append(got, seqs(&b)...)
	}
	if want := []uint64{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTakeBoundsABatch(t *testing.T) {
	l := NewLog(LogConfig{})
	s := l.Subscribe("m")
	for range 10 {
		l.Append(Event{Key: strings.Repeat("k", 60_000)})
	}
	var b Batch
	var batches []int
	for s.Take(&b, 1000) {
		batches = append(batches, len(b.Events))
	}
	if want := []int{5, 5}; !slices.Equal(batches, want) {
		t.Errorf("got batches of %v events, want %v: about 256 KiB each", batches, want)
	}
}

func TestSlowSubscriberIsReset(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  LogConfig
	}{
		{"events", LogConfig{MaxEvents: 5}},
		{"bytes", LogConfig{MaxBytes: 5 * (overheadBytes + 6)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewLog(tt.cfg)
			slow, quick := l.Subscribe("slow"), l.Subscribe("quick")
			var b Batch
			appendKeys(l, 5)
			quick.Take(&b, 100)
			appendKeys(l, 1)
			l.Revoke("slow", Revoke{Key: "k"})
			if quick.Take(&b, 100); b.Reset || !slices.Equal(seqs(&b), []uint64{6}) {
				t.Errorf("the quick one got %+v, want event 6", b)
			}
			if got := l.Stats(); got.Held != 5 || got.Resets != 0 {
				t.Errorf("got %+v, want the newest 5 kept and no reset yet", got)
			}
			if slow.Take(&b, 100); !b.Reset || b.Seq != 6 || len(b.Events)+len(b.Revokes) > 0 {
				t.Errorf("the slow one got %+v, want a reset to 6 alone", b)
			}
			appendKeys(l, 1)
			if slow.Take(&b, 100); b.Reset || !slices.Equal(seqs(&b), []uint64{7}) {
				t.Errorf("after the reset it got %+v, want event 7", b)
			}
			if got := l.Stats().Resets; got != 1 {
				t.Errorf("%d resets, want 1", got)
			}
		})
	}
}

func TestEventTooLargeToKeep(t *testing.T) {
	l := NewLog(LogConfig{MaxBytes: 1000})
	s := l.Subscribe("m")
	appendKeys(l, 2)
	l.Append(Event{Key: strings.Repeat("k", 1001)})
	appendKeys(l, 1)
	var b Batch
	if s.Take(&b, 10); !b.Reset || b.Seq != 4 {
		t.Errorf("got %+v, want a reset to 4", b)
	}
	if got := l.Stats(); got.Held != 1 || got.HeldBytes > 1000 {
		t.Errorf("got %+v, want one event within the budget", got)
	}
}

func TestRenewalComesBehindWhatWasThere(t *testing.T) {
	l := NewLog(LogConfig{})
	s := l.Subscribe("m")
	appendKeys(l, 5)
	s.Renew(7)
	appendKeys(l, 5)
	var b Batch
	for _, want := range []struct {
		seq     uint64
		renewed bool
	}{{2, false}, {4, false}, {6, true}, {8, false}, {10, false}} {
		if s.Take(&b, 2); b.Seq != want.seq || b.Renewed != want.renewed || b.Renewed && b.Nonce != 7 {
			t.Errorf("got %+v, want up to event %d, renewed %v", b, want.seq, want.renewed)
		}
	}
}

func TestRenewalComesBehindRevokes(t *testing.T) {
	l := NewLog(LogConfig{})
	s := l.Subscribe("m")
	key := strings.Repeat("k", 60_000)
	for range 6 {
		l.Revoke("m", Revoke{Key: key})
	}
	s.Renew(1)
	var b Batch
	if s.Take(&b, 10); len(b.Revokes) != 5 || b.Renewed {
		t.Errorf("got %d revocations, renewed %v, want 5 and not yet", len(b.Revokes), b.Renewed)
	}
	if s.Take(&b, 10); len(b.Revokes) != 1 || !b.Renewed {
		t.Errorf("got %d revocations, renewed %v, want 1 and the answer", len(b.Revokes), b.Renewed)
	}
}

func TestRenewalsAreConflated(t *testing.T) {
	l := NewLog(LogConfig{})
	s := l.Subscribe("m")
	for n := range uint64(20) {
		s.Renew(n)
	}
	var b Batch
	if s.Take(&b, 1); !b.Renewed || b.Nonce != 19 {
		t.Errorf("got %+v, want the answer to 19", b)
	}
	if s.Take(&b, 1) {
		t.Errorf("got %+v, want nothing more", b)
	}
}

// A backlog that never empties must not keep the member's lease from ever being renewed.
func TestRenewalsDoNotStarve(t *testing.T) {
	l := NewLog(LogConfig{})
	s := l.Subscribe("m")
	appendKeys(l, 30)
	var b Batch
	answered := 0
	for n := range uint64(100) {
		s.Renew(n)
		appendKeys(l, 10)
		s.Take(&b, 10)
		if b.Renewed {
			answered++
			if n-b.Nonce > maxRenewals {
				t.Errorf("renewal %d answers %d", n, b.Nonce)
			}
		}
	}
	if answered < 90 {
		t.Errorf("%d of 100 renewals were answered", answered)
	}
}

func TestRevokesGoToTheirMember(t *testing.T) {
	l := NewLog(LogConfig{})
	a, b := l.Subscribe("a"), l.Subscribe("b")
	r := Revoke{Keyspace: "ks", Key: "k", Token: Token{1, 2}}
	if !l.Revoke("a", r) {
		t.Error("a is unknown")
	}
	if l.Revoke("c", r) {
		t.Error("c is known")
	}
	var got Batch
	if !a.Take(&got, 1) || !slices.Equal(got.Revokes, []Revoke{r}) {
		t.Errorf("a got %+v, want the revocation", got)
	}
	if b.Take(&got, 1) {
		t.Errorf("b got %+v, want nothing", got)
	}
	for range maxRevokes + 1 {
		l.Revoke("a", r)
	}
	if a.Take(&got, 1); !got.Reset || len(got.Revokes) > 0 {
		t.Errorf("a got %d revocations, reset %v, want a reset: one was lost", len(got.Revokes), got.Reset)
	}
}

func TestSubscriberClose(t *testing.T) {
	l := NewLog(LogConfig{})
	old, s := l.Subscribe("m"), l.Subscribe("m")
	appendKeys(l, 3)
	s.Renew(1)
	s.Close()
	s.Close()
	var b Batch
	if s.Take(&b, 10) {
		t.Errorf("got %+v after Close", b)
	}
	if !old.Take(&b, 10) || b.Seq != 3 {
		t.Errorf("the other one got %+v, want 3 events", b)
	}
	old.Close()
	if got, want := l.Stats(), (LogStats{Seq: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	appendKeys(l, 1)
	if again := l.Subscribe("m"); again.Take(&b, 10) {
		t.Errorf("a new subscriber got %+v", b)
	}
}

func TestWakeIsNotLost(t *testing.T) {
	l := NewLog(LogConfig{})
	s := l.Subscribe("m")
	appendKeys(l, 1)
	for range 3 {
		l.Wake()
	}
	select {
	case <-s.Ready():
	default:
		t.Error("no signal")
	}
	select {
	case <-s.Ready():
		t.Error("a second signal")
	default:
	}
	s.Renew(1)
	select {
	case <-s.Ready():
	default:
		t.Error("no signal for a renewal")
	}
}

// Writers, readers that fall behind, renewals and reconnects at once: every reader sees consecutive numbers, or a reset, and no answer
// comes before the events that preceded its renewal.
func TestLogConcurrently(t *testing.T) {
	const writers, perWriter, readers = 4, 5000, 3
	l := NewLog(LogConfig{MaxEvents: 300})
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	for i := range readers {
		reading.Go(func() {
			read(t, l, fmt.Sprint("m", i), 1+i*20, stop)
		})
	}
	for range writers {
		writing.Go(func() {
			for range perWriter {
				l.Append(Event{Keyspace: "ks", Key: "k"})
				l.Wake()
				l.Revoke("m1", Revoke{Key: "k"})
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	if got := l.Seq(); got != writers*perWriter {
		t.Errorf("the log stands at %d, want %d", got, writers*perWriter)
	}
}

// read follows the log until stop is closed and everything is taken.
func read(t *testing.T, l *Log, member string, limit int, stop <-chan struct{}) {
	t.Helper()
	s := l.Subscribe(member)
	defer func() { s.Close() }()
	last, first := uint64(0), true
	var b Batch
	for stopped := false; ; {
		nonce := l.Seq()
		s.Renew(nonce)
		for s.Take(&b, limit) {
			if b.Reset {
				last, first = b.Seq, false
			}
			for _, e := range b.Events {
				if e.Seq != last+1 && !first {
					t.Errorf("%s: event %d after %d", member, e.Seq, last)
				}
				last, first = e.Seq, false
			}
			if b.Renewed && b.Seq < b.Nonce {
				t.Errorf("%s: renewal sent at %d answered behind %d", member, b.Nonce, b.Seq)
			}
			if b.Seq != last && !first {
				t.Errorf("%s: the batch says %d, its last event is %d", member, b.Seq, last)
			}
		}
		if stopped {
			if end := l.Seq(); last != end && !first {
				t.Errorf("%s: stopped at %d, the log stands at %d", member, last, end)
			}
			return
		}
		select {
		case <-s.Ready():
		case <-stop:
			stopped = true
		}
		if nonce%97 == 0 {
			s.Close()
			s, first = l.Subscribe(member), true
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	l := NewLog(LogConfig{MaxEvents: 64})
	s := l.Subscribe("m")
	var b Batch
	appendKeys(l, 64)
	s.Take(&b, 64)
	got := testing.AllocsPerRun(1000, func() {
		l.Append(Event{Keyspace: "ks", Key: "k"})
		l.Wake()
		s.Take(&b, 64)
	})
	if got != 0 {
		t.Errorf("%v allocations for an event, want 0", got)
	}
}
