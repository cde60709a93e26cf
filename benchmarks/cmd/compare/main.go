// Command compare runs the benchmarks and judges them by the goals of docs/design.md section 13. From benchmarks/:
//
//	go run ./cmd/compare                       # everything, some twelve minutes on two cores
//	go run ./cmd/compare -bench 'Near|Ring'    # some of it
//	go run ./cmd/compare -in results/bench.txt # no run: what an earlier one wrote
//
// It writes to -out, by default results: bench.txt, the benchmarks' own output; figures.csv, every figure; goals.csv, the table that it prints; and
// goals.svg, a picture of it. A row whose benchmark did not run is left out. It fails only if a benchmark does: whether goals are met is for people
// to judge, on a machine that does nothing else.
package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
)

func main() {
	bench := flag.String("bench", ".", "which benchmarks, as for go test")
	in := flag.String("in", "", "file with the output of an earlier run")
	out := flag.String("out", "results", "directory for what is written")
	args := flag.String("args", "", "further arguments for the benchmarks, as -rounds=9 -traces=DIR")
	flag.Parse()
	if err := compare(*bench, *in, *out, strings.Fields(*args)); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func compare(bench, in, out string, args []string) error {
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	var text []byte
	var err error
	if in != "" {
		text, err = os.ReadFile(in)
	} else if text, err = run(bench, args); err == nil {
		err = os.WriteFile(filepath.Join(out, "bench.txt"), text, 0o666)
	}
	if err != nil {
		return err
	}
	all := parse(string(text))
	rows := judge(all)
	printTable(os.Stdout, rows)
	if err := writeCSV(filepath.Join(out, "figures.csv"), figureRecords(all)); err != nil {
		return err
	}
	if err := writeCSV(filepath.Join(out, "goals.csv"), goalRecords(rows)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "goals.svg"), []byte(draw(rows)), 0o666)
}

// run runs the benchmarks, shows what they print as it comes, and returns it behind a line about the machine.
func run(bench string, args []string) ([]byte, error) {
	var text bytes.Buffer
	both := io.MultiWriter(os.Stdout, &text)
	fmt.Fprintf(both, "machine: %d cores, %s\n", runtime.NumCPU(), runtime.Version())
	cmd := exec.CommandContext(context.Background(), "go", append([]string{"test", "-run=^$", "-bench=" + bench, "-timeout=1h", "."}, args...)...)
	cmd.Stdout, cmd.Stderr = both, os.Stderr
	return text.Bytes(), cmd.Run()
}

func printTable(out io.Writer, rows []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\nwhat\tmeasured\tgoal\tmet\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\n", r.what, short(r.measured), r.wanted(), r.verdict())
	}
	w.Flush()
}

func short(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

func figureRecords(all figures) [][]string {
	records := [][]string{{"benchmark", "metric", "value"}}
	for _, f := range all.sorted() {
		records = append(records, []string{f.benchmark, f.metric, strconv.FormatFloat(all[f], 'g', -1, 64)})
	}
	return records
}

func goalRecords(rows []row) [][]string {
	records := [][]string{{"what", "measured", "goal", "met"}}
	for _, r := range rows {
		records = append(records, []string{r.what, strconv.FormatFloat(r.measured, 'g', -1, 64), r.wanted(), r.verdict()})
	}
	return records
}

func writeCSV(path string, records [][]string) error {
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(records); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o666)
}
