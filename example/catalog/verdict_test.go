package main

import (
	"strings"
	"testing"
	"time"
)

// passing returns the summary of a run that every judge accepts.
func passing() *summary {
	s := &summary{
		Nodes: 3, Reads: 1000, Capacity: 2000, LoadTime: ms(20 * time.Millisecond),
		Origin: costSummary{Loads: 1000, Busiest: 2000, LongestWait: ms(20 * time.Millisecond)},
		Writes: writeSummary{Committed: 10, Confirmed: 10},
		Tiers:  make([]tierSummary, tiers),
	}
	for _, t := range []tier{tierNear, tierOwn, tierPeer, tierOrigin} {
		s.Tiers[t].Reads = 250
	}
	s.LoadsBy.Repeated = 5
	return s
}

func TestJudges(t *testing.T) {
	for _, c := range []struct {
		name  string
		judge func(*summary) verdict
		spoil func(*summary)
		text  string
	}{
		{"no reads", judgeActivity, func(s *summary) { s.Reads = 0 }, ""},
		{"nothing from peers", judgeActivity, func(s *summary) { s.Tiers[tierPeer].Reads = 0 }, "peer"},
		{"an error", judgeFailures, func(s *summary) { s.Failures = map[string]int{"boom": 1} }, "boom"},
		{"a wrong answer", judgeAnswers, func(s *summary) { s.Wrong = map[string]int{"mixed up": 1} }, "mixed up"},
		{"an unknown version", judgeAnswers, func(s *summary) { s.Staleness.Unknown = 1 }, "1"},
		{"too old a price", judgeStaleness, func(s *summary) { s.Staleness.Beyond = 1 }, "1 reads"},
		{"own old price", judgeOwnNode, func(s *summary) { s.Staleness.OwnNode = 1 }, "1"},
		{"an unconfirmed invalidation", judgeInvalidations, func(s *summary) { s.Writes.Unconfirmed = map[string]int{"partial": 2} }, "partial"},
		{"a change never confirmed", judgeInvalidations, func(s *summary) { s.Writes.Confirmed = 9 }, "9 of 10"},
		{"too many loads", judgeRepeats, func(s *summary) { s.LoadsBy.Repeated = 6 }, "6 of them"},
		{"too many loads at a time", judgeCapacity, func(s *summary) { s.Origin.Busiest = 2001 }, "2,001"},
		{"waiting loads", judgeCapacity, func(s *summary) { s.Origin.LongestWait = ms(21 * time.Millisecond) }, "21.0 ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := passing()
			if v := c.judge(s); !v.Pass {
				t.Errorf("got a failed verdict for a good run: %s", v.Detail)
			}
			c.spoil(s)
			v := c.judge(s)
			if v.Pass || !strings.Contains(v.Detail, c.text) {
				t.Errorf("got pass %t, %q; want a failure with %q", v.Pass, v.Detail, c.text)
			}
		})
	}
}

// TestJudgesAfterAKill: invalidations may then need a second call, and lost entries second loads.
func TestJudgesAfterAKill(t *testing.T) {
	s := passing()
	s.Killed = &crashSummary{Node: "node-3"}
	s.LoadsBy.Lost = 500
	s.Seconds = 15
	s.Writes.Unconfirmed = map[string]int{"partial": 2}
	for _, v := range []verdict{judgeInvalidations(s), judgeRepeats(s)} {
		if !v.Pass {
			t.Errorf("got a failed verdict: %s: %s", v.What, v.Detail)
		}
	}
	s.Writes.Confirmed = 9
	if v := judgeInvalidations(s); v.Pass {
		t.Error("got a pass although a change was never confirmed")
	}
	s.Seconds = 1
	if v := judgeInvalidations(s); !v.Pass {
		t.Error("got a failed verdict although the dead node was on the member list until the end")
	}
}

// TestJudgesAfterAStall: as after a kill, but every call that was not confirmed is named.
func TestJudgesAfterAStall(t *testing.T) {
	s := passing()
	s.Stalls, s.LongestStall = 1, ms(300*time.Millisecond)
	s.LoadsBy.Stalled = 500
	s.Writes = writeSummary{Committed: 10, Confirmed: 9, Unconfirmed: map[string]int{"partial": 1}}
	for _, v := range []verdict{judgeInvalidations(s), judgeRepeats(s)} {
		if !v.Pass {
			t.Errorf("got a failed verdict: %s: %s", v.What, v.Detail)
		}
	}
	if v := judgeRepeats(s); !strings.Contains(v.Detail, "300 ms") {
		t.Errorf("got %q, want the length of the stall in it", v.Detail)
	}
	s.Writes.Confirmed = 8
	if v := judgeInvalidations(s); v.Pass {
		t.Error("got a pass although a change was never confirmed and nothing said so")
	}
}

func TestParseFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "",
		"-nodes 1 -rate 100 -json":    "",
		"-duration 10ms":              "-duration",
		"-nodes 0 -rate 0":            "-nodes",
		"-kill -nodes 1":              "-kill",
		"-capacity 50 -latency 20ms":  "fewer loads at a time",
		"-capacity 0 -latency 0s":     "-latency",
		"stray":                       "stray",
		"-no-such-flag":               "no-such-flag",
		"-duration 2s -kill -seed 99": "",
	} {
		var out strings.Builder
		_, err := parseFlags(strings.Fields(args), &out)
		if (err == nil) != (want == "") || !strings.Contains(out.String(), want) {
			t.Errorf("%q: got error %v, output %q; want %q in it", args, err, out.String(), want)
		}
	}
}
