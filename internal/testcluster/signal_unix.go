//go:build unix

package testcluster

import "syscall"

// CanFreeze tells whether Freeze works on this system.
const CanFreeze = true

// Freeze stops the child with SIGSTOP: its connections stay open and nothing answers on them.
func (p *Process) Freeze() { p.signal(syscall.SIGSTOP) }

// Thaw lets the child run on.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.tb.Fatalf("%s: %v: %v", p.Settings.ID, s, err)
	}
}
