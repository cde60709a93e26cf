// Command catalog shows a cluster of caches at work: a shop whose product pages are served by three processes, in front of a database that
// is slower than the visitors are many.
//
//	go run ./example/catalog
//
// It starts three processes of itself as a cluster on loopback, replays the recorded visits of a real shop's product pages on them, and
// changes prices meanwhile. Every answer is compared with the database's history. It ends by itself with a table of what happened and
// with verdicts; the exit code is 0 only if all of them pass. Flags: go run ./example/catalog -h.
//
// node.go is what an application does; origin.go is the database; all else is the stage: child.go and cluster.go run the processes, reader.go
// and writer.go play the visitors and the shopkeeper, tally.go, staleness.go, ledger.go and separate.go keep the books.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// childArg makes this program run one node, as its parent starts it.
const childArg = "run-node"

// Exit codes.
const (
	exitPass  = 0
	exitFail  = 1 // a verdict failed, or the run could not be done
	exitUsage = 2
)

// config is what the flags say.
type config struct {
	nodes    int
	rate     int
	writes   int
	duration time.Duration
	trace    string
	capacity int
	latency  time.Duration
	ttl      time.Duration
	seed     uint64
	keep     bool
	kill     bool
	json     bool
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		signal.Ignore(os.Interrupt) // Ctrl-C reaches all processes: the parent decides
		os.Exit(runChild(os.Stdin, os.Stdout))
	}
	cfg, err := parseFlags(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(exitPass)
	case err != nil:
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := show(ctx, cfg)
	stop()
	os.Exit(code)
}

// show runs the demonstration and returns the exit code.
func show(ctx context.Context, cfg config) int {
	out, live := io.Writer(os.Stdout), newDisplay(os.Stdout)
	if cfg.json {
		live = newDisplay(os.Stderr) // standard output is for the machine
	}
	s, err := perform(ctx, cfg, live)
	if err != nil {
		fmt.Fprintln(os.Stderr, "catalog:", err)
		return exitFail
	}
	if cfg.json {
		err = s.writeJSON(out)
	} else {
		_, err = io.WriteString(out, s.table(live.style))
	}
	if err != nil || !s.Pass {
		return exitFail
	}
	return exitPass
}

// parseFlags returns the configuration that args ask for. It explains what is wrong on w.
func parseFlags(args []string, w io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet("catalog", flag.ContinueOnError)
	f.SetOutput(w)
	f.IntVar(&c.nodes, "nodes", 3, "`processes` in the cluster")
	f.IntVar(&c.rate, "rate", 4000, "`reads` a second, of all nodes together")
	f.IntVar(&c.writes, "writes", 20, "price `changes` a second")
	f.DurationVar(&c.duration, "duration", 15*time.Second, "`time` to run, at least 1s")
	f.StringVar(&c.trace, "trace", "cache2k_web12", "`name` of a trace in testdata/traces, or a file of zstd text with a key a line")
	f.IntVar(&c.capacity, "capacity", 2400, "`loads` a second that the database can do")
	f.DurationVar(&c.latency, "latency", 20*time.Millisecond, "`time` the database takes for a load")
	f.DurationVar(&c.ttl, "ttl", 10*time.Second, "lifetime of a cached product, short so that a short run sees some end")
	f.Uint64Var(&c.seed, "seed", 1, "of everything random")
	f.BoolVar(&c.keep, "keep", false, "keep running until Ctrl-C")
	f.BoolVar(&c.kill, "kill", false, "kill one process in the middle")
	f.BoolVar(&c.json, "json", false, "write the result as JSON, and the progress to standard error")
	f.Usage = func() {
		fmt.Fprintln(w, "Shows three processes that share one cache in front of a slow database.")
		fmt.Fprintln(w, "\nUsage: go run ./example/catalog [flags]")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return c, err
	}
	err := c.validate()
	if f.NArg() > 0 {
		err = errors.Join(fmt.Errorf("unexpected argument %q", f.Arg(0)), err)
	}
	if err != nil {
		fmt.Fprintln(w, err)
	}
	return c, err
}

// validate returns all that is wrong with c.
func (c config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.nodes >= 1 && c.nodes <= 32, "-nodes must be 1 to 32, not %d", c.nodes)
	check(c.rate >= 1 && c.rate <= 1_000_000, "-rate must be 1 to 1,000,000, not %d", c.rate)
	check(c.writes >= 0 && c.writes <= 1000, "-writes must be 0 to 1,000, not %d", c.writes)
	check(c.duration >= time.Second, "-duration must be at least 1s, not %s", c.duration)
	check(c.capacity >= 1 && c.capacity <= 1_000_000, "-capacity must be 1 to 1,000,000, not %d", c.capacity)
	check(c.latency >= time.Millisecond && c.latency <= time.Second, "-latency must be 1ms to 1s, not %s", c.latency)
	check(c.ttl >= time.Second, "-ttl must be at least 1s, not %s", c.ttl)
	check(!c.kill || c.nodes > 1, "-kill needs at least two nodes")
	if len(errs) == 0 {
		check(slots(c.capacity, c.latency) >= c.nodes,
			"-capacity %d and -latency %s are fewer loads at a time than there are nodes", c.capacity, c.latency)
	}
	return errors.Join(errs...)
}

// maxLoads is a node's share of the loads that the database can do at a time: so that all nodes together cannot overload it.
func (c config) maxLoads() int { return slots(c.capacity, c.latency) / c.nodes }
