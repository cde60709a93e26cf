package main

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const forever = time.Duration(1<<63 - 1)

func TestStaleness(t *testing.T) {
	type want struct {
		stale, beyond, own, unknown int
		worst                       time.Duration
	}
	commit := func(s *staleness, version uint64, node int, at time.Duration) {
		s.commit("k", version)
		s.confirm("k", ack{at: at, version: version, node: node})
	}
	read := func(at time.Duration, version uint64, node int) seen {
		return seen{start: at, key: "k", version: version, node: node}
	}
	for _, c := range []struct {
		name string
		do   func(s *staleness)
		want want
	}{
		{"never changed", func(s *staleness) { s.read(read(5, 1, 0)) }, want{}},
		{"new version", func(s *staleness) { commit(s, 2, 0, 10*msec); s.read(read(20*msec, 2, 1)) }, want{}},
		{"old version, began before the confirmation", func(s *staleness) { commit(s, 2, 0, 10*msec); s.read(read(10*msec, 1, 1)) }, want{}},
		{"old version within the bound", func(s *staleness) { commit(s, 2, 0, 10*msec); s.read(read(15*msec, 1, 1)) }, want{stale: 1, worst: 5 * msec}},
		{"exactly the bound", func(s *staleness) { commit(s, 2, 0, 0); s.read(read(time.Second, 1, 1)) }, want{stale: 1, worst: time.Second}},
		{"beyond the bound", func(s *staleness) { commit(s, 2, 0, 0); s.read(read(time.Second+1, 1, 1)) }, want{stale: 1, beyond: 1, worst: time.Second + 1}},
		{"on the node that invalidated", func(s *staleness) { commit(s, 2, 1, 10*msec); s.read(read(11*msec, 1, 1)) }, want{stale: 1, own: 1, worst: msec}},
		{"two versions behind: the older confirmation counts", func(s *staleness) {
			commit(s, 2, 0, 0)
			commit(s, 3, 1, 500*msec)
			s.read(read(800*msec, 1, 2))
			s.read(read(800*msec, 2, 2))
		}, want{stale: 2, worst: 800 * msec}},
		{"confirmed by a later version only", func(s *staleness) {
			s.commit("k", 2)
			commit(s, 3, 0, 10*msec)
			s.read(read(12*msec, 1, 1))
		}, want{stale: 1, worst: 2 * msec}},
		{"committed but not confirmed", func(s *staleness) { s.commit("k", 2); s.read(read(9*time.Second, 1, 1)) }, want{}},
		{"confirmation arrives after the read", func(s *staleness) {
			s.read(read(20*msec, 1, 1))
			commit(s, 2, 0, 10*msec)
		}, want{stale: 1, worst: 10 * msec}},
		{"from the future", func(s *staleness) { s.commit("k", 2); s.read(read(1, 3, 0)) }, want{unknown: 1}},
		{"another version of what never changed", func(s *staleness) { s.read(read(1, 2, 0)); s.read(read(1, 0, 0)) }, want{unknown: 2}},
		{"another product", func(s *staleness) { commit(s, 2, 0, 1); s.read(seen{start: 9, key: "other", version: 1}) }, want{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStaleness(time.Second)
			c.do(s)
			s.judge(forever)
			if got := (want{s.stale, s.beyond, s.ownStale, s.unknown, s.worst}); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestStalenessJudgesInOrder(t *testing.T) {
	s := newStaleness(time.Second)
	for at := range 5 {
		s.read(seen{start: time.Duration(at), key: "k", version: 1})
	}
	s.judge(3)
	if s.judged != 3 {
		t.Errorf("got %d judged, want 3", s.judged)
	}
	s.judge(forever)
	if s.judged != 5 || len(s.waiting) != 0 {
		t.Errorf("got %d judged, %d waiting; want 5, 0", s.judged, len(s.waiting))
	}
}

// TestStalenessOfLongRuns: the history of a product is bounded, and what is beyond the bound stays so.
func TestStalenessOfLongRuns(t *testing.T) {
	s := newStaleness(time.Second)
	for i := range 10_000 {
		s.commit("k", uint64(i+2))
		s.confirm("k", ack{at: time.Duration(i) * time.Second, version: uint64(i + 2)})
	}
	if got, most := len(s.history["k"].acks), int(keepAcks/time.Second)+2; got > most {
		t.Errorf("got %d confirmations kept, want at most %d", got, most)
	}
	s.read(seen{start: 10_000 * time.Second, key: "k", version: 1})
	s.judge(forever)
	if s.beyond != 1 || s.worst < keepAcks {
		t.Errorf("got %d beyond the bound, worst %s; want 1, at least %s", s.beyond, s.worst, keepAcks)
	}
}

// TestStalenessModel compares with the definition, computed over a whole random history.
func TestStalenessModel(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := newStaleness(20)
		var acks []ack
		var reads []seen
		version := uint64(1)
		for now := time.Duration(1); now < 200; now++ {
			switch rnd.IntN(4) {
			case 0:
				version++
				s.commit("k", version)
				if rnd.IntN(3) > 0 {
					a := ack{at: now, version: version, node: rnd.IntN(3)}
					acks = append(acks, a)
					s.confirm("k", a)
				}
			default:
				r := seen{start: now, key: "k", version: 1 + rnd.Uint64N(version), node: rnd.IntN(3)}
				reads = append(reads, r)
				s.read(r)
			}
		}
		s.judge(forever)
		stale, beyond, worst := 0, 0, time.Duration(0)
		for _, r := range reads {
			oldest := forever
			for _, a := range acks {
				if r.version < a.version {
					oldest = min(oldest, a.at)
				}
			}
			if age := r.start - oldest; age > 0 {
				stale++
				worst = max(worst, age)
				if age > 20 {
					beyond++
				}
			}
		}
		got, want := fmt.Sprint(s.stale, s.beyond, s.worst), fmt.Sprint(stale, beyond, worst)
		if got != want {
			t.Fatalf("seed %d: got stale, beyond, worst %s; want %s", seed, got, want)
		}
	}
}
