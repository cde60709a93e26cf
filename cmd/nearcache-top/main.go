// Command nearcache-top shows the most read keys and the hit ratios of a cluster in a terminal, live.
//
//	nearcache-top [-n keys] [-every interval] [-once] ADDRESS...
//
// An address is where a node's statistics page is, as http://127.0.0.1:8080/debug/nearcache/; one without a scheme is taken for
// http, one without a path for /debug/nearcache/. One address does: that node is asked for all members (?scope=cluster). Further ones are
// asked when it does not answer, and for members that it could not reach. Keys are shortened unless the node shows them to this host.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "nearcache-top:", err)
		os.Exit(1)
	}
}

// config is the command line.
type config struct {
	keys  int
	every time.Duration
	once  bool
	addrs []string
}

func parse(args []string) (c config, err error) {
	f := flag.NewFlagSet("nearcache-top", flag.ContinueOnError)
	f.IntVar(&c.keys, "n", 15, "how many keys")
	f.DurationVar(&c.every, "every", time.Second, "how often")
	f.BoolVar(&c.once, "once", false, "show it once, after one interval, and end")
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "usage: nearcache-top [flags] ADDRESS...   (of statistics pages, as 127.0.0.1:8080/debug/nearcache/)")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() == 0 {
		f.Usage()
		return c, flag.ErrHelp
	}
	for _, a := range f.Args() {
		addr, err := baseOf(a)
		if err != nil {
			return c, err
		}
		c.addrs = append(c.addrs, addr)
	}
	if c.keys < 1 || c.every < 100*time.Millisecond {
		return c, errors.New("-n must be positive, and -every 100ms or more")
	}
	return c, nil
}

// run shows the cluster until ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	asker := newAsker(cfg.addrs)
	before, err := asker.ask(ctx)
	if err != nil {
		return err // later failures are shown: the first one is a wrong address, as a rule
	}
	tick := time.NewTicker(cfg.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		now, err := asker.ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !cfg.once {
			fmt.Fprint(out, "\x1b[H\x1b[2J") // to the top, and clear
		}
		if err != nil {
			fmt.Fprintln(out, err)
		} else {
			show(out, before, now, cfg.keys)
			before = now
		}
		if cfg.once {
			return err
		}
	}
}
