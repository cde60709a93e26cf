// Package histories checks what clients of a cluster saw for linearizability (docs/protocol.md R13), with porcupine. It is a module of its own,
// because of that.
package histories
