// Command compare runs the benchmarks and judges them by the goals of docs/design.md section 13. From benchmarks/:
//
//	go run ./cmd/compare                       # everything, some twelve minutes on two cores
//	go run ./cmd/compare -bench 'Near|Ring'    # some of it
//	go run ./cmd/compare -in results/bench.txt # no run: what an earlier one wrote
//	go run ./cmd/compare -doc ../docs/performance.md -args -traces=DIR
//
// It writes to -out, by default results: bench.txt, the benchmarks' own output; figures.csv, every figure; goals.csv, the table that it prints; and
// goals.svg, a picture of it. With -doc the tables of a document are replaced, too. A row whose benchmark did not run is left out. It fails only if a benchmark does: whether goals are met is for people
// to judge, on a machine that does nothing else.
package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	bench := flag.String("bench", ".", "which benchmarks, as for go test")
	in := flag.String("in", "", "file with the output of an earlier run")
	out := flag.String("out", "results", "directory for what is written")
	doc := flag.String("doc", "", "document whose measured part is replaced, as ../docs/performance.md")
	args := flag.String("args", "", "further arguments for the benchmarks, as -rounds=9 -traces=DIR")
	flag.Parse()
	if err := compare(*bench, *in, *out, *doc, strings.Fields(*args)); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func compare(bench, in, out, doc string, args []string) error {
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	text, failed := measure(bench, in, out, args)
	all := parse(string(text)) // what a failed run has measured, too
	rows := judge(all)
	printTable(os.Stdout, rows)
	return errors.Join(failed, write(out, all, rows), updateDocument(doc, machine(string(text)), all, rows))
}

// measure returns the output of an earlier run, or of one that it makes and keeps.
func measure(bench, in, out string, args []string) ([]byte, error) {
	if in != "" {
		return os.ReadFile(in)
	}
	text, err := run(bench, args)
	return text, errors.Join(err, os.WriteFile(filepath.Join(out, "bench.txt"), text, 0o666))
}

func write(out string, all figures, rows []row) error {
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
	args = append([]string{"test", "-run=^$", "-bench=" + bench, "-timeout=1h", "."}, args...)
	fmt.Fprintf(both, "%s%d cores, %s/%s, %s, commit %s, load average before the run %s, %s, go %s\n", machineLine, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH,
		runtime.Version(), commit(), load(), time.Now().UTC().Format("2006-01-02 15:04 MST"), strings.Join(args, " "))
	cmd := exec.CommandContext(context.Background(), "go", args...)
	cmd.Stdout, cmd.Stderr = both, os.Stderr
	err := cmd.Run()
	return text.Bytes(), err
}

// commit is what is measured, as far as git tells.
func commit() string {
	out, err := exec.CommandContext(context.Background(), "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// load tells how busy the machine was in the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	minute, _, _ := strings.Cut(string(text), " ")
	return minute
}

func printTable(out io.Writer, rows []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\nwhat\tmeasured\tgoal\tmet\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\n", r.what, short(r.measured), r.wanted(), r.verdict())
	}
	w.Flush()
}

// short has three digits, or as many as there are before the point.
func short(v float64) string {
	if math.Abs(v) >= 1000 && !math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

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
