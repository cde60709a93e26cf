package main

import (
	"time"

	"github.com/nearcache/nearcache"
)

// The parent and its nodes talk in JSON, one message a line: settings and then commands on a node's standard input, reports on its
// standard output. When its input ends, a node ends.

// settings are what a node must know before it can start.
type settings struct {
	Node     int    // its number, from 0
	Nodes    int    // of the cluster
	Origin   string // URL of the origin
	Trace    string
	Rate     int // reads a second, of all nodes together
	Seed     uint64
	TTL      time.Duration
	MaxLoads int
}

// command is a message to a node; one field is set.
type command struct {
	Members    []string           `json:",omitempty"` // addresses of the nodes, by number; a lost one is empty
	Start      *time.Time         `json:",omitempty"` // begin to read; the run's time zero
	Invalidate *invalidateCommand `json:",omitempty"`
	Lost       *int               `json:",omitempty"` // that node is gone: take your share of its requests
	Halt       bool               `json:",omitempty"` // stop reading
	Stop       bool               `json:",omitempty"` // close and exit
}

type invalidateCommand struct {
	ID  int // of the command, for the report
	Key string
}

// report is a message from a node. Times are since the run's time zero.
type report struct {
	Listening   *listeningReport         `json:",omitempty"` // first
	Joined      bool                     `json:",omitempty"` // sees all members
	Reads       *readsReport             `json:",omitempty"` // several times a second
	Invalidated *invalidatedReport       `json:",omitempty"`
	Halted      *nearcache.KeyspaceStats `json:",omitempty"` // no read is under way any more
	Closed      *closedReport            `json:",omitempty"` // last
	Failed      string                   `json:",omitempty"` // cannot go on
}

type listeningReport struct {
	Addr string // for the other nodes
	Page string // URL of the statistics
}

type readsReport struct {
	Reads    []readRecord
	Failures map[string]int `json:",omitempty"` // failed reads by the error's text
	Wrong    map[string]int `json:",omitempty"` // wrong answers by what is wrong
	Stalls   []stallRecord  `json:",omitempty"` // when the process did not run
}

// stallRecord is a stall's begin and end.
type stallRecord [2]time.Duration

type invalidatedReport struct {
	ID    int
	At    time.Duration // when Invalidate returned
	Took  time.Duration
	Error string // empty: everybody confirmed
}

type closedReport struct {
	Took  time.Duration
	Error string
}

// tier is where a read was answered, from near to far.
type tier int

const (
	tierFailed tier = iota
	tierNear        // a near copy in the process that asked
	tierOwn         // the shard of the process that asked
	tierPeer        // the shard of another process
	tierOrigin      // a load, shared by all who asked meanwhile
	tiers
)

func (t tier) String() string {
	return [tiers]string{"failed", "near copy", "own shard", "peer's shard", "origin"}[t]
}

// readRecord is one read, kept small because there are many: request number, start and latency in nanoseconds, tier, version.
type readRecord [5]int64

func record(request int, start, latency time.Duration, t tier, version uint64) readRecord {
	return readRecord{int64(request), int64(start), int64(latency), int64(t), int64(version)}
}

func (r readRecord) request() int           { return int(r[0]) }
func (r readRecord) start() time.Duration   { return time.Duration(r[1]) }
func (r readRecord) latency() time.Duration { return time.Duration(r[2]) }
func (r readRecord) tier() tier             { return tier(r[3]) }
func (r readRecord) version() uint64        { return uint64(r[4]) }
