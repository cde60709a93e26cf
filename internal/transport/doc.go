// Package transport carries requests between the members of a cluster.
//
// A member keeps one connection to every other one. On it run two lanes, long-lived streams of frames of many small
// requests and their answers, matched by id, and one coherence stream, which carries the peer's invalidations in order. Values
// above InlineValueBytes travel alone on a second connection, which is opened when the first of them comes.
//
// The package knows no cache: the node hands it requests (Peer.Start) and answers those of others (Handler). Every call
// is completed exactly once, whatever happens to the peer, and nothing here waits for a peer without a bound.
//
// Goroutines, besides gRPC's own; Close waits for all of them:
//
//	per peer         one that keeps deadlines (watch.go), one per lane that receives (lane.go), two of its coherence stream (cohere.go)
//	with TLS         one that replaces connections (renew.go)
//	on demand        a lane's sender while callers hand over to it, one per bulk call (at most maxBulkCalls), one for orphans
//	per lane served  one that receives and answers (session.go), and a sender while there are late answers
//	per subscriber   one that sends, one that receives (server.go)
package transport
