package testcluster

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Process is a child: one node in a process of its own.
type Process struct {
	Settings Settings // with the address that it listens on

	tb      testing.TB
	cmd     *exec.Cmd
	orders  io.WriteCloser
	reports chan Report
	exited  chan struct{}
}

// reportTimeout is how long an order may take on a machine that is busy otherwise.
const reportTimeout = 30 * time.Second

// Spawn starts a child, which MaybeChild makes of this test binary or of another program, and returns when it listens. It is killed
// with the test.
func Spawn(tb testing.TB, s Settings) *Process {
	tb.Helper()
	settings, err := json.Marshal(s)
	if err != nil {
		tb.Fatal(err)
	}
	program := s.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			tb.Fatal(err)
		}
	}
	p := &Process{Settings: s, tb: tb, reports: make(chan Report), exited: make(chan struct{})}
	p.cmd = exec.Command(program) //nolint:noctx // it ends with the test, or with its orders
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(settings))
	p.cmd.Stderr = os.Stderr
	if p.orders, err = p.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go p.follow(out)
	tb.Cleanup(p.Kill)
	p.Settings.Listen = p.report().Listen
	return p
}

// follow passes reports on until the child exits.
func (p *Process) follow(out io.Reader) {
	defer close(p.exited)
	dec := json.NewDecoder(out)
	for {
		var r Report
		if dec.Decode(&r) != nil {
			break
		}
		p.reports <- r
	}
	_ = p.cmd.Wait() // killed, as a rule
}

// Do gives an order and waits for the report.
func (p *Process) Do(o Order) Report {
	p.tb.Helper()
	p.Tell(o)
	return p.Hear(o)
}

// Tell gives an order. Hear must follow; meanwhile others can be given orders.
func (p *Process) Tell(o Order) {
	p.tb.Helper()
	if err := json.NewEncoder(p.orders).Encode(o); err != nil {
		p.tb.Fatalf("%s: order %+v: %v", p.Settings.ID, o, err)
	}
}

// Hear waits for the report on an order that was told.
func (p *Process) Hear(o Order) Report {
	p.tb.Helper()
	r := p.report()
	if r.Error != "" {
		p.tb.Fatalf("%s: order %+v: %s", p.Settings.ID, o, r.Error)
	}
	return r
}

func (p *Process) report() Report {
	p.tb.Helper()
	late := time.NewTimer(reportTimeout)
	defer late.Stop()
	select {
	case r := <-p.reports:
		return r
	case <-p.exited:
		p.tb.Fatalf("%s has exited", p.Settings.ID)
	case <-late.C:
		p.tb.Fatalf("%s has not reported for %v", p.Settings.ID, reportTimeout)
	}
	return Report{}
}

// Kill ends the child at once and waits for its end. It may be called many times.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have exited
	for {
		select {
		case <-p.reports: // the last one, which nobody waited for
		case <-p.exited:
			p.orders.Close()
			return
		}
	}
}

// HangUp ends the child's input, as its parent's end does.
func (p *Process) HangUp() { p.orders.Close() }

// Exited is closed when the child has exited.
func (p *Process) Exited() <-chan struct{} { return p.exited }
