// Command drill breaks a cluster of caches on purpose, with the protection of the origin off and on, and shows what its readers saw.
//
//	go run ./example/drill
//	go run ./example/drill -break 1 -plot break1.svg
//	go run ./example/drill -db postgres:///shop
//
// Five members run in this process over an in-memory network, in real time, in front of a simulated database with a capacity: beyond it queries
// queue, clients give up, and what they left behind is worked off all the same. The scale is a fifteenth of a shop with 50,000 reads a second in
// front of a database for 6,000: what matters is the ratio.
//
//	1  the members lose each other at peak, for a while
//	2  a hot key expires, again and again, and takes long to load
//	3  a cold start at peak: nothing is cached anywhere
//	4  the stream of changes is lost, for ten seconds that stand for minutes, and comes back
//	5  one product is read 37,500 times a second on ten members: a quarter of 150,000 on forty
//
// Off means: no stale copies and no limit on loads (a loader that fails for all keys is asked less all the same). Since a shared load cannot be
// switched off, it is a map in each process for break 2. For break 4 it is a stream that forgets what nobody hears, for break 5 no near copies.
//
// With -db the products are in a PostgreSQL, behind a pool of ten connections; each query takes 25 ms there (250 ms in break 2). Tables and
// functions whose names begin with drill_ are made in it, and dropped at the end.
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
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "drill:", err)
		os.Exit(1)
	}
}

// run does what args say. Progress goes to progress, the tables to out.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("drill", flag.ContinueOnError)
	flags.SetOutput(progress)
	dsn := flags.String("db", "", "use the PostgreSQL that this connection `string` names, and not a simulated database")
	number := flags.Int("break", 0, "run only this `break`; 0: all")
	plot := flags.String("plot", "", "write a time line of what the readers saw to this SVG `file`; with -break")
	scale := flags.Float64("speed", 1, "make the phases so many `times` as short, for a first look")
	if err := flags.Parse(args); err != nil {
		return err
	}
	all := breaks()
	if *number < 0 || *number > len(all) || *plot != "" && *number == 0 || *scale <= 0 {
		return fmt.Errorf("there are breaks 1 to %d, and -plot is for one of them", len(all))
	}
	if *number > 0 {
		all = all[*number-1 : *number]
	}
	for _, b := range all {
		fmt.Fprintf(out, "\nbreak %d: %s\n%s\n", b.number, b.title, tableHead)
		var both []*meter
		for _, protected := range []bool{false, true} {
			m, err := perform(ctx, b.faster(*scale), *dsn, protected, progress)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, m.row(protected))
			both = append(both, m)
		}
		if *plot != "" {
			return os.WriteFile(*plot, []byte(draw(b.faster(*scale), both)), 0o600)
		}
	}
	return nil
}

// showProgress draws a bar until stop is called; where nobody looks at it, a line says what runs.
func showProgress(w io.Writer, what string, total time.Duration) (stop func()) {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			fmt.Fprintln(w, what)
			return func() {}
		}
	}
	const width = 40
	done, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			n := min(int(width*time.Since(began)/total), width)
			fmt.Fprintf(w, "\r%-24s [%-*s] %2.0f s ", what, width, fmt.Sprintf("%.*s", n, "########################################"), time.Since(began).Seconds())
			select {
			case <-tick.C:
			case <-done:
				fmt.Fprintf(w, "\r%*s\r", width+36, "")
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}
