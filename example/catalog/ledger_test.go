package main

import (
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	const life, now = 100, 1050
	for _, c := range []struct {
		name string
		do   func(l *ledger)
		want cause // of the load of "k" at now
	}{
		{"first", func(*ledger) {}, causeFirst},
		{"another product's load", func(l *ledger) { l.load("other", 1001) }, causeFirst},
		{"again", func(l *ledger) { l.load("k", 1010) }, causeRepeated},
		{"at the end of its life", func(l *ledger) { l.load("k", now-life) }, causeExpired},
		{"just before", func(l *ledger) { l.load("k", now-life+1) }, causeRepeated},
		{"invalidated since", func(l *ledger) { l.load("k", 1010); l.invalidating("k"); l.invalidated("k", 1020) }, causeInvalidated},
		{"invalidated before", func(l *ledger) { l.invalidating("k"); l.invalidated("k", 1009); l.load("k", 1010) }, causeRepeated},
		{"invalidated while it was loaded", func(l *ledger) { l.invalidating("k"); l.load("k", 1010); l.invalidated("k", 1011) }, causeInvalidated},
		{"being invalidated", func(l *ledger) { l.invalidating("k"); l.load("k", 1010) }, causeInvalidated},
		{"one invalidation allows one load", func(l *ledger) {
			l.load("k", 1010)
			l.invalidating("k")
			l.invalidated("k", 1020)
			l.load("k", 1030)
		}, causeRepeated},
		{"a node was killed", func(l *ledger) { l.load("k", 1010); l.lost(1040) }, causeLost},
		{"a node will be killed", func(l *ledger) { l.load("k", 1010); l.lost(1060) }, causeRepeated},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(life)
			c.do(l)
			before := l.causes()[c.want]
			got := l.load("k", now)
			if counted := l.causes()[c.want] - before; got != c.want || counted != 1 {
				t.Errorf("got cause %d, counted %d; want %d, 1", got, counted, c.want)
			}
		})
	}
}

// TestLedgerStalls: a repeated load is explained by a stall at its time or at that of the load before it, whenever that is reported.
func TestLedgerStalls(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to time.Duration
		want     cause
	}{
		{"at the repeated load", 5 * time.Second, 6 * time.Second, causeStalled},
		{"just before it", 3 * time.Second, 4500 * msec, causeStalled},
		{"at the first load", 900 * msec, 1100 * msec, causeStalled},
		{"between the two", 2 * time.Second, 3 * time.Second, causeRepeated},
		{"after both", 5*time.Second + 1, 6 * time.Second, causeRepeated},
		{"long before", 0, 1, causeRepeated},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(time.Minute)
			l.load("k", time.Second+1)
			l.load("k", 5*time.Second)
			l.stalled(stall{c.from, c.to})
			if got := l.causes(); got[c.want] != 1 || got[causeStalled]+got[causeRepeated] != 1 || got[causeFirst] != 1 {
				t.Errorf("got loads by cause %v, want one first, one of cause %d", got, c.want)
			}
			if got, want := l.longestStall(), c.to-c.from; got != want {
				t.Errorf("got a longest stall of %s, want %s", got, want)
			}
		})
	}
}

func TestSeparateCaches(t *testing.T) {
	s := newSeparateCaches(2, 100)
	for i, c := range []struct {
		node    int
		key     string
		version uint64
		now     time.Duration
		load    bool
		why     string
	}{
		{0, "a", 1, 0, true, "first"},
		{0, "a", 1, 99, false, "cached"},
		{1, "a", 1, 99, true, "first on the other node"},
		{0, "b", 1, 99, true, "another product"},
		{0, "a", 1, 100, true, "expired"},
		{0, "a", 2, 110, true, "its price has changed"},
		{0, "a", 1, 120, false, "a newer price is no reason to load"},
		{0, "a", 2, 209, false, "lives from its own load on"},
		{0, "a", 2, 210, true, "expired again"},
	} {
		if got := s.read(c.node, c.key, c.version, c.now); got != c.load {
			t.Errorf("step %d, %s: got load %t, want %t", i, c.why, got, c.load)
		}
	}
}
