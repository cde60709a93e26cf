package sim

import (
	"errors"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/invalidation"
)

// op, status and the fields of request and reply are those of internal/transport, as far as the rules look at them.
type op int

const (
	opGet op = iota + 1
	opFill
	opRelease
	opSet
	opInvalidate
	opUpdate
	opHold
	opPeek
	opPermit // to hand over
	opHandOver
)

type status int

const (
	statusHit status = iota + 1
	statusStale
	statusHeld
	statusLease
	statusFailed
	statusNotOwner
	statusBusy
	statusAccepted
	statusRejected
	statusStored
	statusNotStored
	statusMiss
	statusOK
	statusUnconfirmed // an Invalidate that could not be passed on
)

type request struct {
	op                 op
	key                string
	keys, tags         []string // of an Invalidate
	all                bool
	soft               bool // flag of an Invalidate: values stay as stale copies
	standIn, fresh     bool // flags of a Get
	spread             bool
	forwarded, relayed bool // flags of an Invalidate
	copies             bool // the same: near copies only
	replica            bool // flag of a hand over: of copies
	near, life, budget int64
	token              shard.Token
	value              string
	version            uint64
	age, ttl, stale    int64       // stale: how long it may be kept as a stale copy beyond ttl
	absent             bool        // value says which version of the row does not exist
	cause              shard.Cause // of a Release
	relay              string      // of an Invalidate: the member that it is for
	view               uint64
}

type reply struct {
	status           status
	incarnation, seq uint64
	age, ttl, near   int64
	waited           int64 // from the arrival of the request to the answer
	uncached         bool
	absent           bool
	lasting          bool // a near copy may be kept as a stale one
	spare            bool // of a lease: value is a stale copy
	lapsed           bool // of a stale copy, one of a lease too: it is no more than past its lifetime
	value            string
	version          uint64
	mark             tag.Mark
	vouched          bool // of a peek
	token            shard.Token
	failure          error
	frame            frame
}

// frame is what every frame says about its sender's ring; inView: the receiver is in it.
type frame struct {
	view    uint64
	inView  bool
	leaving bool
}

// down is a message of the coherence stream.
type down struct {
	incarnation uint64
	batch       invalidation.Batch
	frame       frame
	silent      []invalidation.Silence // whom the sender does not hear
}

var (
	errDown     = errors.New("the peer is down")
	errTimeout  = errors.New("the peer did not answer in time")
	errCanceled = errors.New("canceled")
	errLoad     = errors.New("the load failed")
	errLate     = errors.New("the load timed out")
	errWaited   = errors.New("waited too long for another member's load")
)
