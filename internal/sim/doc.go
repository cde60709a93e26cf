// Package sim is a deterministic simulation of a cluster: one goroutine, virtual time, one seeded source of chance. It drives the project's
// own protocol code (invalidation, internal/shard, near, singleflight, ring, internal/membership) through faults, and a checker judges
// every read (docs/protocol.md, "The simulation").
//
// What is simulated is the shell around that code: the network, the clocks, the timers, the loaders, and the order of the calls that the
// root package makes. The files are named after the root's files that they stand for (get.go, fill.go, serve.go, invalidate.go, cohere.go,
// holders.go, members.go) and their functions name the root's functions; what the root does in one goroutine from top to bottom is a chain
// of callbacks here. A rule that is not built yet is a model in this package (Rules says which), behind the seam where the real one will be.
//
// Everything that happens is a function of a Config and a seed, so a failure is reproduced by its seed, with the event log of its key.
package sim
