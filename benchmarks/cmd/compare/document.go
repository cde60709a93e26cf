package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// What stands between these lines of a document is compare's.
const (
	begins = "<!-- measured: written by benchmarks/cmd/compare -->\n"
	ends   = "<!-- end of what was measured -->\n"
)

// table shows the figures of the benchmarks whose names begin with under and whose metric is a system's name and suffix: a row for each benchmark, a
// column for each system.
type table struct{ title, under, suffix string }

func tables() []table {
	return []table{
		{"Near hit of one hot key, processor ns per get", "NearHit/", "-cpu-ns/get"},
		{"Zipf 0.99 over a million keys, 100,000 entries, processor ns per get", "NearZipf/", "-cpu-ns/get"},
		{"The same, hit ratio in percent", "NearZipf/read-through/", "-hit-%"},
		{"Resident keys, each as often as any other, processor ns per get", "NearUniform/", "-cpu-ns/get"},
		{"Hit ratio in percent", "HitRatio/", "-hit-%"},
		{"Remote get, gets per second", "RemoteGet/", "-get/s"},
		{"Remote get, processor µs per get, both ends", "RemoteGet/", "-cpu-µs/get"},
		{"Remote get, p50 in µs", "RemoteGet/", "-p50-µs"},
		{"Many keys at once, p50 in µs", "GetMany/", "-p50-µs"},
		{"Many keys at once, processor µs per call", "GetMany/", "-cpu-µs/call"},
		{"Growth with the nodes of a cluster (nearcache has 3), processor µs per get", "GrowthNodes/", "-cpu-µs/get"},
		{"Growth with the keys of an owner (nearcache has 10,000), processor µs per get", "GrowthKeys/", "-cpu-µs/get"},
		{"Mutual TLS (nearcache) and plaintext, processor µs per get", "TLS/", "-cpu-µs/get"},
		{"Memory besides key and value, bytes per entry", "Memory/", "-B/entry"},
		{"One collection, ms of processor time", "Memory/", "-gc-ms"},
		{"Collections, s of processor time per GB allocated", "Memory/", "-gc-s/GB"},
		{"Ring lookups, ns", "Ring/", "-ns"},
		{"Start, first value and Close", "Start/", "/op"},
		{"A program that refers to it, MiB", "Weight", "-MiB"},
		{"Packages in it that are not of the standard library", "Weight", "-packages"},
	}
}

// updateDocument replaces what an earlier run left in a document. An empty path: there is none.
func updateDocument(path, machine string, all figures, rows []row) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), begins)
	_, after, there := strings.Cut(rest, ends)
	if !found || !there {
		return fmt.Errorf("%s lacks the lines %q and %q", path, begins, ends)
	}
	return os.WriteFile(path, []byte(before+begins+document(machine, all, rows)+ends+after), 0o666)
}

func document(machine string, all figures, rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n### Goals\n\n| what | measured | goal | met |\n|---|---|---|---|\n", machine)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.what, short(r.measured), r.wanted(), r.verdict())
	}
	for _, t := range tables() {
		t.write(&b, all)
	}
	b.WriteString("\n")
	return b.String()
}

// write leaves out a table without figures.
func (t table) write(b *strings.Builder, all figures) {
	cells := make(map[string]map[string]float64) // by benchmark and system
	columns := make(map[string]bool)
	for f, v := range all {
		system, ok := strings.CutSuffix(f.metric, t.suffix)
		if !ok || !strings.HasPrefix(f.benchmark, t.under) {
			continue
		}
		if cells[f.benchmark] == nil {
			cells[f.benchmark] = make(map[string]float64)
		}
		cells[f.benchmark][system] = v
		columns[system] = true
	}
	if len(cells) == 0 {
		return
	}
	systems := oursFirst(columns)
	fmt.Fprintf(b, "\n### %s\n\n| | %s |\n|---|%s\n", t.title, strings.Join(systems, " | "), strings.Repeat("---|", len(systems)))
	for _, benchmark := range slices.SortedFunc(maps.Keys(cells), byNumbers) {
		fmt.Fprintf(b, "| %s |", cmp.Or(strings.TrimPrefix(benchmark, t.under), benchmark))
		for _, s := range systems {
			text := ""
			if v, ok := cells[benchmark][s]; ok {
				text = short(v)
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteString("\n")
	}
}

// oursFirst orders systems: this library's, then the others by name.
func oursFirst(systems map[string]bool) []string {
	ours := []string{"nearcache", "nearcache-3-owners", "engine", "near", "shard"}
	place := func(system string) uint { return uint(slices.Index(ours, system)) } // -1 is behind all
	return slices.SortedFunc(maps.Keys(systems), func(a, b string) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), byNumbers(a, b))
	})
}

// byNumbers orders names by their text, and by the values of the numbers in it.
func byNumbers(a, b string) int {
	padded := func(s string) string {
		return regexp.MustCompile(`\d+`).ReplaceAllStringFunc(s, func(n string) string { return fmt.Sprintf("%12s", n) })
	}
	return strings.Compare(padded(a), padded(b))
}
