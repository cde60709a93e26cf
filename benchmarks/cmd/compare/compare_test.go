package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const output = `machine: 2 cores, go1.26.8
goos: linux
BenchmarkNearHit/procs=1/goroutines=1-2   1   1.60 cpu-x-map   0.70 cpu-x-otter   20.0 nearcache-cpu-ns/get   0 nearcache-allocs/get
BenchmarkNearHit/procs=2/goroutines=64-2  1   30.0 nearcache-cpu-ns/get
BenchmarkGetMany/keys=100/callers=1-2     1   300.0 nearcache-p50-µs   150.0 raw-p50-µs
--- BENCH: BenchmarkRemoteGet
    servers_test.go:40: memcached is not installed: its clients are left out
PASS
`

func TestParse(t *testing.T) {
	all := parse(output)
	for f, want := range map[figure]float64{
		{"NearHit/procs=1/goroutines=1", "cpu-x-otter"}:           0.7,
		{"NearHit/procs=2/goroutines=64", "nearcache-cpu-ns/get"}: 30,
		{"GetMany/keys=100/callers=1", "raw-p50-µs"}:              150,
	} {
		if got, ok := all[f]; got != want || !ok {
			t.Errorf("%v: got %v, want %v", f, got, want)
		}
	}
	if len(all) != 7 {
		t.Errorf("got %d figures, want 7: %v", len(all), all)
	}
}

func TestJudge(t *testing.T) {
	want := map[string]string{
		"near hit, one hot key: times a map read, cpu":              "yes",
		"near hit, one hot key: times otter, cpu":                   "NO",
		"near hit: allocations":                                     "yes",
		"near hit: 64 goroutines on 2 cores, times one on one, cpu": "NO",
		"get of 100 keys: p50, times raw TCP":                       "NO",
	}
	rows := judge(parse(output))
	for _, r := range rows {
		if r.verdict() != want[r.what] {
			t.Errorf("%s: got %s with %v, want %q", r.what, r.verdict(), r.measured, want[r.what])
		}
	}
	if len(rows) != len(want) {
		t.Errorf("got %d rows, want %d: goals whose benchmarks did not run are left out", len(rows), len(want))
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0.012345: "0.0123", 12.345: "12.3", 123.4: "123", 45_678.9: "45679"} {
		if got := short(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}

func TestByNumbers(t *testing.T) {
	got := slices.SortedFunc(slices.Values([]string{"bytes=1024/callers=16", "bytes=1024/callers=2", "bytes=100/callers=128"}), byNumbers)
	if want := []string{"bytes=100/callers=128", "bytes=1024/callers=2", "bytes=1024/callers=16"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What compare writes of an earlier run can be read.
func TestCompareAnEarlierRun(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "bench.txt")
	if err := os.WriteFile(in, []byte(output), 0o600); err != nil {
		t.Fatal(err)
	}
	doc := filepath.Join(dir, "doc.md")
	if err := os.WriteFile(doc, []byte("Before.\n"+begins+"An earlier run.\n"+ends+"After.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := compare("", in, dir, doc, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"figures.csv": "GetMany/keys=100/callers=1,raw-p50-µs,150\n",
		"goals.csv":   "near hit: allocations,0,<= 0,yes\n",
		"doc.md":      "| | nearcache | raw |\n|---|---|---|\n| keys=100/callers=1 | 300 | 150 |\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %v, want a line %q in:\n%s", name, err, want, got)
		}
	}
	svg, err := os.ReadFile(filepath.Join(dir, "goals.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(text); !strings.HasPrefix(s, "Before.\n"+begins) || !strings.HasSuffix(s, ends+"After.\n") || strings.Contains(s, "earlier") {
		t.Errorf("the document is\n%s", s)
	}
	if !strings.Contains(string(svg), "near hit: allocations") {
		t.Error("the picture lacks a goal that was judged")
	}
}
