package transport

import (
	"errors"

	"google.golang.org/grpc/mem"
)

// The frames are the messages of peer.proto as the streams use them: one value per stream direction, reused for every
// message, so that a frame of many operations costs no allocation per operation. They are not safe for concurrent use.

var (
	errMalformed  = errors.New("nearcache: malformed message from a peer")
	errLimit      = errors.New("nearcache: message exceeds a limit of the wire")
	errUnanswered = errors.New("nearcache: peer acknowledged a request that it did not answer")
	errChanged    = errors.New("nearcache: message changed while it was encoded")
)

const (
	// maxMessageBytes is the largest message: gRPC's limits on both sides. It holds one value of MaxValueBytes with the rest of its
	// request at its largest.
	maxMessageBytes = MaxValueBytes + 256<<10
	// maxKeysBytes bounds the Keys of an Invalidate together.
	maxKeysBytes = MaxValueBytes
	// scatterBytes is the size from which a value is attached to a message by reference instead of being copied into it.
	scatterBytes = 4 << 10
	// keptStrings is the capacity up to which a reused request keeps its lists.
	keptStrings = 8
)

// hello opens every stream in both directions. A decoded one shares no memory with the message it came in.
type hello struct {
	Protocol      uint32
	Features      uint64
	Cluster       string // at most MaxNameBytes, as Member and Addr
	Member        string
	Addr          string
	Incarnation   uint64
	View          uint64
	MaxValueBytes uint64
	Replicas      uint32
}

// requestFrame is a batch of requests. IDs[i] is the id of Reqs[i]; there are at most MaxBatchOps.
//
// To send: reset, set View (and Hello in a stream's first frame), add, SendMsg. The requests are read during SendMsg only, but
// their Values of scatterBytes or more are sent by reference: see Request.
//
// To receive: RecvMsg, answer, release. Reqs then points into memory of the frame, and the strings of the requests alias
// the receive buffers: all of it is gone at release, or when the next message is decoded into the frame. Values are
// slices of their own.
type requestFrame struct {
	Hello *hello // nil: not in this frame
	View  uint64
	IDs   []uint32
	Reqs  []*Request

	ops   []Request       // what Reqs points to after decoding
	hold  mem.BufferSlice // what their strings alias
	sizes []int           // scratch of the encoder
}

// add appends a request to a frame that is to be sent.
func (f *requestFrame) add(id uint32, q *Request) {
	f.IDs = append(f.IDs, id)
	f.Reqs = append(f.Reqs, q)
}

// reset empties a frame that was sent; it holds no request any more.
func (f *requestFrame) reset() {
	clear(f.Reqs)
	f.Hello, f.View, f.IDs, f.Reqs = nil, 0, f.IDs[:0], f.Reqs[:0]
}

// release gives the receive buffers back to the pool. Whoever still holds a decoded request sees it empty, a copied string of it
// is undefined. Needed once per received frame; more do no harm.
func (f *requestFrame) release() {
	for i := range f.ops {
		emptyRequest(&f.ops[i])
	}
	f.ops = f.ops[:0]
	f.reset()
	f.hold.Free()
	clear(f.hold)
	f.hold = f.hold[:0]
}

// emptyRequest makes q the zero Request, but for the capacity of its lists.
func emptyRequest(q *Request) {
	tags, keys := q.Tags, q.Keys
	*q = Request{}
	if c := cap(tags); 0 < c && c <= keptStrings {
		clear(tags)
		q.Tags = tags[:0]
	}
	if c := cap(keys); 0 < c && c <= keptStrings {
		clear(keys)
		q.Keys = keys[:0]
	}
}

// replyFrame is a batch of answers. IDs[i] is the id of the request that Reps[i] answers; there are at most MaxBatchOps.
//
// To send: reset, set the rest, add, SendMsg. Values of scatterBytes or more are sent by reference: they are never written again.
//
// To receive: RecvMsg; Reps[i] may be copied out and everything it points to belongs to the receiver: nothing aliases
// the receive buffer. The slices themselves are reused by the next RecvMsg.
type replyFrame struct {
	Hello    *hello // nil: not in this frame
	View     uint64
	Acked    uint32 // request frames of which every quick answer has been sent, since the last one
	InView   bool   // the receiver is in the sender's ring ("you_in_view")
	Draining bool
	IDs      []uint32
	Reps     []Reply

	sizes []int // scratch of the encoder
}

// add appends a copy of the answer to a frame that is to be sent.
func (f *replyFrame) add(id uint32, r *Reply) {
	f.IDs = append(f.IDs, id)
	f.Reps = append(f.Reps, *r)
}

// reset empties the frame; it holds no value any more.
func (f *replyFrame) reset() {
	clear(f.Reps)
	*f = replyFrame{IDs: f.IDs[:0], Reps: f.Reps[:0], sizes: f.sizes}
}

// cohereUp is what a subscriber sends on the coherence stream.
type cohereUp struct {
	Hello *hello // first message only
	View  uint64
	Nonce uint64 // of a renewal; 0: none
}

// cohereDown is what the owner of the log sends. A decoded Down shares no memory with the frame or the receive buffer.
// It has at most MaxBatchKeys Invs and as many Revokes.
type cohereDown struct {
	Hello *hello // first message only
	Down
}

// bulkRequest is one request that travels alone. A decoded one shares no memory with the receive buffer.
type bulkRequest struct {
	Hello *hello
	View  uint64
	Req   Request
}

// bulkReply is the answer to a bulkRequest. A decoded one shares no memory with the receive buffer.
type bulkReply struct {
	Hello *hello
	View  uint64
	Rep   Reply
}
