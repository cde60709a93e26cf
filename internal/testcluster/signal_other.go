//go:build !unix

package testcluster

// CanFreeze tells whether Freeze works on this system.
const CanFreeze = false

// Freeze fails the test: the system has no signal for it.
func (p *Process) Freeze() { p.tb.Fatal("a process cannot be frozen here") }

// Thaw lets the child run on.
func (p *Process) Thaw() {}
