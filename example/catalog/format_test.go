package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCount3(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 95607: "95,607", 1234567: "1,234,567", -5: "0"} {
		if got := count3(n); got != want {
			t.Errorf("count3(%d): got %q, want %q", n, got, want)
		}
	}
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ns", 287: "287 ns", 999: "999 ns", 1000: "1.00 µs", 1234: "1.23 µs", 99_960: "100 µs", 25_200_000: "25.2 ms", 9_996_000: "10.0 ms",
		999_600_000: "1.00 s", 30 * time.Second: "30.0 s", time.Second: "1.00 s", 100 * time.Second: "100 s",
	} {
		if got := ms(d).String(); got != want {
			t.Errorf("%d ns: got %q, want %q", d, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for share, want := range map[float64]string{0: "····", 0.01: "▏···", 0.5: "██··", 1: "████", 1.5: "███▶"} {
		if got := bar(share, 4); got != want {
			t.Errorf("bar(%g): got %q, want %q", share, got, want)
		}
	}
}

func TestColumns(t *testing.T) {
	if got := columns(style(true).bad("12 µs") + "│"); got != 6 {
		t.Errorf("got %d columns, want 6", got)
	}
	if got := right(style(true).good("ab"), 4); !strings.HasPrefix(got, "  \x1b") {
		t.Errorf("got %q, want two spaces first", got)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	if got := h.quantile(0.99); got != 0 {
		t.Errorf("empty: got %s, want 0", got)
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	var all []time.Duration
	for range 5000 {
		d := time.Duration(rnd.ExpFloat64() * float64(time.Duration(1)<<rnd.IntN(40)))
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999} {
		want := all[int(q*float64(len(all)))]
		if got := h.quantile(q); got < want || float64(got) > float64(want)*(1+1.0/subBuckets)+1 {
			t.Errorf("quantile %g: got %d, want %d or 3 %% more", q, got, want)
		}
	}
	if got := h.quantile(1); got != all[len(all)-1] || h.max != got {
		t.Errorf("quantile 1: got %s, max %s; want %s", got, h.max, all[len(all)-1])
	}
	old := h
	for range 100 {
		h.add(5)
	}
	if d := h.since(&old); d.count != 100 || d.quantile(0.99) != 5 {
		t.Errorf("since: got %d durations, p99 %s; want 100 of 5 ns", d.count, d.quantile(0.99))
	}
	h = old
	h.add(forever)
	h.add(-1)
	if h.count != 5002 || h.quantile(1) != forever {
		t.Errorf("got %d durations, largest %d; want 5002, %d", h.count, h.quantile(1), forever)
	}
}

func TestDeal(t *testing.T) {
	const n = 30_000
	lost := make([]bool, 3)
	var all, rest [3]int
	for i := range n {
		before := deal(7, i, lost)
		lost[1] = true
		after := deal(7, i, lost)
		lost[1] = false
		all[before]++
		rest[after]++
		if before != 1 && before != after {
			t.Fatalf("request %d moved from %d to %d, but only those of 1 must move", i, before, after)
		}
	}
	for i := range all {
		if share := float64(all[i]) / n; share < 0.32 || share > 0.35 {
			t.Errorf("node %d: got a share of %.3f, want a third", i, share)
		}
	}
	if rest[1] != 0 || rest[0] < n*48/100 || rest[2] < n*48/100 {
		t.Errorf("after the loss of node 1: got %v, want half, none, half", rest)
	}
}

func TestProductCheck(t *testing.T) {
	for _, c := range []struct {
		p    product
		want string
	}{
		{productAt("42", 3), ""},
		{productAt("43", 3), "asked for product 42, got 43"},
		{product{ID: "42", Version: 3, Name: "Product 42"}, "mixed up"},
		{func() product { p := productAt("42", 3); p.Cents = productAt("42", 4).Cents; return p }(), "mixed up"},
		{product{}, "got "},
	} {
		err := c.p.check("42")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.p, err, c.want)
		}
	}
}

// TestTable holds what a reader must find, and that it fits in 80 columns.
func TestTable(t *testing.T) {
	s := &summary{
		Pass: false, Seconds: 15, Nodes: 3, Reads: 1_234_567, Capacity: 2000, LoadTime: ms(20 * msec),
		Failures:  map[string]int{"nearcache: gone": 7},
		Origin:    costSummary{Loads: 15_677, Busiest: 1_950},
		Separate:  costSummary{Loads: 125_595, Busiest: 14_026, LongestWait: ms(1700 * msec), LastWait: ms(msec)},
		NoCache:   costSummary{Loads: 1_234_567, Busiest: 106_005, LongestWait: ms(130 * time.Second), LastWait: ms(130 * time.Second)},
		Writes:    writeSummary{Committed: 300, Confirmed: 299, Unconfirmed: map[string]int{"nearcache: partial": 3}, P50: ms(msec), P99: ms(msec), Max: ms(msec)},
		Staleness: staleSummary{Judged: 9, Stale: 4, Beyond: 1, Worst: ms(2 * time.Second), Promised: ms(time.Second)},
		Killed:    &crashSummary{Node: "node-3", At: ms(7500 * msec), Reads: 18_000, Failed: 2, Slowest: ms(63 * msec), ExtraLoads: 1200, Busiest: 1800},
		Verdicts:  []verdict{{false, "no read failed", "7 errors"}, {true, "every answer was right", "yes"}},
	}
	for i := range tiers {
		s.Tiers = append(s.Tiers, tierSummary{Tier: i.String(), Reads: 123_456, Share: 0.25, P50: ms(1234), P99: ms(123 * msec), Max: ms(time.Second)})
	}
	got := s.table(false)
	for _, want := range []string{
		"1,234,567 reads in 15.0 s", "near copy", "failed", "1,950 = 98 %", "14,026 = 701 %", "130 s, growing", "at most 2.00 s later",
		"node-3 was killed after 7.50 s", "1,200", "FAIL  no read failed", "PASS  every answer was right", "exit code 1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	for line := range strings.SplitSeq(got, "\n") {
		if columns(line) > 80 {
			t.Errorf("%d columns, want at most 80: %s", columns(line), line)
		}
	}
	plain, coloured := got, s.table(true)
	for _, code := range []string{"1", "2", "32", "1;31", "1;36", "0"} {
		coloured = strings.ReplaceAll(coloured, fmt.Sprintf("%s%sm", escape, code), "")
	}
	if coloured != plain {
		t.Error("colours change more than colours")
	}
}
