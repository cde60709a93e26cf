//go:build !unix

package benchmarks

import "runtime"

// usage is what a process has used so far. There is no CPU time here.
type usage struct {
	CPU     int64
	Mallocs uint64 // objects
}

func (u usage) since(before usage) usage { return usage{Mallocs: u.Mallocs - before.Mallocs} }

func usageNow() usage {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return usage{Mallocs: ms.Mallocs}
}
