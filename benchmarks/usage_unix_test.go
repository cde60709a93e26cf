//go:build unix

package benchmarks

import (
	"runtime"
	"syscall"
)

// usage is what a process has used so far.
type usage struct {
	CPU     int64  // ns
	Mallocs uint64 // objects
}

func (u usage) since(before usage) usage {
	return usage{CPU: u.CPU - before.CPU, Mallocs: u.Mallocs - before.Mallocs}
}

func usageNow() usage {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err) // cannot fail with these arguments
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return usage{CPU: ru.Utime.Nano() + ru.Stime.Nano(), Mallocs: ms.Mallocs}
}
