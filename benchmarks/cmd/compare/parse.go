package main

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// figure names one number: a benchmark, without "Benchmark" and the number of processors, and what was measured.
type figure struct{ benchmark, metric string }

type figures map[figure]float64

// sorted returns the names in order.
func (f figures) sorted() []figure {
	return slices.SortedFunc(maps.Keys(f), func(a, b figure) int {
		return cmp.Or(byNumbers(a.benchmark, b.benchmark), strings.Compare(a.metric, b.metric))
	})
}

// machineLine begins the line that run writes above the benchmarks' output.
const machineLine = "machine: "

// machine returns what an output says about where and how it came about.
func machine(text string) string {
	var cpu, about string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if s, ok := strings.CutPrefix(line, machineLine); ok {
			about = s
		} else if s, ok := strings.CutPrefix(line, "cpu: "); ok {
			cpu = s
		}
	}
	return cpu + ", " + about
}

// parse reads what go test -bench prints: lines with a name, a number of iterations, and pairs of a value and its unit. Other lines it skips.
func parse(text string) figures {
	procs := regexp.MustCompile(`-\d+$`)
	all := make(figures)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := procs.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				all[figure{name, fields[i+1]}] = v
			}
		}
	}
	return all
}
