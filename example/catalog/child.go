package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nearcache/nearcache/example/internal/trace"
	"github.com/nearcache/nearcache/peers"
)

// child runs one node of the shop in a process of its own: it obeys the commands on its input and reports on its output.
type child struct {
	settings settings
	trace    *trace.Trace
	list     *peers.List
	node     *shopNode
	reader   *reader
	clock    clock
	halt     context.CancelFunc // ends the reader
	halted   chan struct{}      // closed when it has ended
	work     sync.WaitGroup     // commands under way

	outMu sync.Mutex // keeps lines whole: held while one is written
	out   *json.Encoder
}

// reportEvery is how often a node reports what it read.
const reportEvery = 100 * time.Millisecond

// runChild runs a node until it is told to stop or its input ends, and returns the process' exit code.
func runChild(in io.Reader, out io.Writer) int {
	c := &child{out: json.NewEncoder(out)}
	if err := c.run(json.NewDecoder(in)); err != nil {
		c.report(report{Failed: err.Error()})
		return 1
	}
	return 0
}

func (c *child) run(in *json.Decoder) error {
	if err := in.Decode(&c.settings); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	t, err := trace.Open(c.settings.Trace)
	if err != nil {
		return err
	}
	c.trace = t
	listener, err := listenLoopback()
	if err != nil {
		return err
	}
	pages, err := listenLoopback()
	if err != nil {
		return err
	}
	c.report(report{Listening: &listeningReport{Addr: listener.Addr().String(), Page: "http://" + pages.Addr().String() + pagePath}})
	for {
		var cmd command
		if err := in.Decode(&cmd); err != nil {
			return fmt.Errorf("the parent is gone: %w", err)
		}
		if cmd.Stop {
			return c.stop()
		}
		if err := c.obey(cmd, listener, pages); err != nil {
			return err
		}
	}
}

// obey carries out any command but Stop.
func (c *child) obey(cmd command, listener, pages net.Listener) error {
	switch {
	case cmd.Members != nil && c.node == nil:
		return c.join(cmd.Members, listener, pages)
	case cmd.Members != nil:
		c.list.Set(members(cmd.Members)...)
	case cmd.Start != nil:
		c.start(*cmd.Start)
	case cmd.Invalidate != nil:
		c.work.Go(func() { c.invalidate(*cmd.Invalidate) })
	case cmd.Lost != nil:
		c.reader.lose(*cmd.Lost)
	case cmd.Halt:
		c.halt()
		c.work.Go(func() {
			<-c.halted
			stats := c.node.products.Stats()
			c.report(report{Halted: &stats})
		})
	}
	return nil
}

// join becomes a member and serves the statistics page.
func (c *child) join(addrs []string, listener, pages net.Listener) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c.list = peers.NewList(members(addrs)...)
	n, err := startNode(ctx, c.settings, listener, c.list)
	if err != nil {
		return err
	}
	c.node = n
	go func() {
		server := &http.Server{Handler: n.pages(), ReadHeaderTimeout: 5 * time.Second}
		_ = server.Serve(pages) // until the process ends
	}()
	c.report(report{Joined: true})
	return nil
}

// start begins to read.
func (c *child) start(zero time.Time) {
	c.clock = newClock(zero)
	c.reader = newReader(c.settings, c.trace, c.clock, c.node.get)
	ctx, cancel := context.WithCancel(context.Background())
	c.halt, c.halted = cancel, make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.reader.run(ctx)
	}()
	go func() {
		defer close(c.halted)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for running := true; running; {
			select {
			case <-tick.C:
			case <-ended:
				running = false
			}
			reads := c.reader.take()
			c.report(report{Reads: &reads})
		}
	}()
}

// invalidateTimeout is longer than Invalidate takes to give up by itself.
const invalidateTimeout = 4 * time.Second

func (c *child) invalidate(cmd invalidateCommand) {
	ctx, cancel := context.WithTimeout(context.Background(), invalidateTimeout)
	defer cancel()
	began := c.clock.now()
	err := c.node.invalidate(ctx, cmd.Key)
	at := c.clock.now()
	r := &invalidatedReport{ID: cmd.ID, At: at, Took: at - began}
	if err != nil {
		r.Error = err.Error()
	}
	c.report(report{Invalidated: r})
}

// stop ends everything in order.
func (c *child) stop() error {
	c.work.Wait()
	r := &closedReport{}
	if c.node != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		began := time.Now()
		if err := c.node.close(ctx); err != nil {
			r.Error = err.Error()
		}
		r.Took = time.Since(began)
	}
	c.report(report{Closed: r})
	if r.Error != "" {
		return errors.New("close: " + r.Error)
	}
	return nil
}

func (c *child) report(r report) {
	c.outMu.Lock()
	defer c.outMu.Unlock()
	_ = c.out.Encode(r) // the parent's end shows on the input
}

// listenLoopback listens on a free port that only this machine reaches.
func listenLoopback() (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

// members returns the cluster as discovery reports it: the nodes that have an address.
func members(addrs []string) []peers.Member {
	var list []peers.Member
	for i, addr := range addrs {
		if addr != "" {
			list = append(list, peers.Member{ID: nodeName(i), Addr: addr})
		}
	}
	return list
}
