package benchmarks

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
)

// child is another process of this test binary. Both sides write a line of JSON at a time; it ends when its input does.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	dec *json.Decoder
}

// startChild starts a process with these settings in its environment, until the benchmark ends.
func startChild(b *testing.B, env ...string) *child {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c := &child{cmd: exec.CommandContext(context.WithoutCancel(b.Context()), exe)}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	c.dec = json.NewDecoder(stdout)
	if err := c.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(c.in.Close(), c.cmd.Wait()); err != nil && c.cmd.ProcessState.Exited() { // not if it was killed
			b.Error("child process:", err)
		}
	})
	return c
}

func (c *child) write(b *testing.B, v any) {
	b.Helper()
	if err := json.NewEncoder(c.in).Encode(v); err != nil {
		b.Fatal("child process:", err)
	}
}

func (c *child) read(b *testing.B, v any) {
	b.Helper()
	if err := c.dec.Decode(v); err != nil {
		b.Fatal("child process:", err)
	}
}
