package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/nearcache/nearcache"
)

// How long the parts of a run may take, so that it ends within 30 seconds whatever happens.
const (
	startTimeout = 6 * time.Second // until all nodes have joined
	haltTimeout  = readTimeout     // until the last read has ended, after the nodes stop asking
	closeTimeout = 2 * time.Second // of a node
)

// process is the parent's handle of one node.
type process struct {
	number int
	cmd    *exec.Cmd
	stderr *tail
	exited chan struct{} // closed after the process has ended and its reports are read
	err    error         // of its end; read it after exited

	joined, halted chan struct{} // closed by the report
	listening      chan listeningReport

	outMu sync.Mutex // keeps lines whole: held while one is written
	out   *json.Encoder

	mu     sync.Mutex // guards what follows
	failed string
	stats  *nearcache.KeyspaceStats // when halted
	closed *closedReport
}

// cluster is the set of node processes.
type cluster struct {
	nodes []*process
	addrs []string
	pages []string
}

// handler receives the reports of all nodes, from one goroutine each.
type handler interface {
	reads(node int, r *readsReport)
	invalidated(node int, r *invalidatedReport)
	gone(node int) // no report follows
}

// startCluster starts a process of this program for each of the settings and waits until they have joined. On an error nothing is left.
func startCluster(ctx context.Context, all []settings, h handler) (_ *cluster, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the nodes take too long to start"))
	defer cancel()
	c := &cluster{}
	defer func() {
		if err != nil {
			c.killAll()
		}
	}()
	for _, s := range all {
		p, err := startProcess(s, h)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, p)
	}
	for _, p := range c.nodes {
		select {
		case l := <-p.listening:
			c.addrs = append(c.addrs, l.Addr)
			c.pages = append(c.pages, l.Page)
		case <-p.exited:
			return nil, p.failure()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c.send(command{Members: c.addrs})
	for _, p := range c.nodes {
		if err := p.wait(ctx, p.joined); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func startProcess(s settings, h handler) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{
		number:    s.Node,
		cmd:       exec.Command(self, childArg), //nolint:noctx // ended by its input, or killed
		stderr:    &tail{},
		exited:    make(chan struct{}),
		joined:    make(chan struct{}),
		halted:    make(chan struct{}),
		listening: make(chan listeningReport, 1),
	}
	p.cmd.Stderr = p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewEncoder(in)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", nodeName(s.Node), err)
	}
	go func() {
		defer close(p.exited)
		p.receive(json.NewDecoder(out), h)
		p.err = p.cmd.Wait()
		h.gone(p.number)
	}()
	return p, p.write(s)
}

// receive hands on the reports until they end.
func (p *process) receive(in *json.Decoder, h handler) {
	for {
		var r report
		if err := in.Decode(&r); err != nil {
			return
		}
		switch {
		case r.Listening != nil:
			p.listening <- *r.Listening
		case r.Joined:
			close(p.joined)
		case r.Reads != nil:
			h.reads(p.number, r.Reads)
		case r.Invalidated != nil:
			h.invalidated(p.number, r.Invalidated)
		case r.Halted != nil:
			p.set(func() { p.stats = r.Halted })
			close(p.halted)
		case r.Closed != nil:
			p.set(func() { p.closed = r.Closed })
		case r.Failed != "":
			p.set(func() { p.failed = r.Failed })
		}
	}
}

// send sends cmd to every node; one that is gone misses it.
func (c *cluster) send(cmd command) {
	for _, p := range c.nodes {
		_ = p.write(cmd)
	}
}

// kill ends a node as a crash of its machine would, and waits for its last report.
func (c *cluster) kill(node int) {
	p := c.nodes[node]
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// halt ends the reading and waits for the last reads. Nodes that are gone have nothing to wait for.
func (c *cluster) halt() {
	ctx, cancel := context.WithTimeout(context.Background(), haltTimeout)
	defer cancel()
	c.send(command{Halt: true})
	for _, p := range c.nodes {
		_ = p.wait(ctx, p.halted) // a node that does not halt does not close either, and that is reported
	}
}

// stop closes the nodes and waits until their processes have ended, the hard way if need be.
func (c *cluster) stop() {
	c.send(command{Stop: true})
	late := time.After(closeTimeout + time.Second)
	for _, p := range c.nodes {
		select {
		case <-p.exited:
		case <-late:
			c.killAll()
		}
	}
}

// stats returns the counters that each node has reported when it halted, by its name.
func (c *cluster) stats() map[string]nearcache.KeyspaceStats {
	all := make(map[string]nearcache.KeyspaceStats)
	for _, p := range c.nodes {
		p.set(func() {
			if p.stats != nil {
				all[nodeName(p.number)] = *p.stats
			}
		})
	}
	return all
}

func (c *cluster) killAll() {
	for _, p := range c.nodes {
		_ = p.cmd.Process.Kill()
	}
	for _, p := range c.nodes {
		<-p.exited
	}
}

// wait waits for the event, for the end of the process, or for the end of ctx.
func (p *process) wait(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-p.exited:
		return p.failure()
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", nodeName(p.number), context.Cause(ctx))
	}
}

// failure says why a process ended that should not have.
func (p *process) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.failed
	if text == "" {
		text = fmt.Sprint(p.err)
	}
	if s := p.stderr.String(); s != "" {
		text += "\n" + s
	}
	return fmt.Errorf("%s ended: %s", nodeName(p.number), text)
}

func (p *process) write(v any) error {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	return p.out.Encode(v)
}

func (p *process) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// tail keeps the last few KB written to it.
type tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	t.buf = t.buf[max(0, len(t.buf)-tailBytes):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
