package transport

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec this one falls back to
	"google.golang.org/grpc/mem"
)

// codec is the wire code of the frames: plain proto3, as peer.proto says, without protobuf's allocations. Every other message
// goes to gRPC's own codec, whose name it has. It is safe for concurrent use.
type codec struct {
	std  encoding.CodecV2
	pool mem.BufferPool
}

// newCodec returns a codec that takes its buffers from pool.
func newCodec(pool mem.BufferPool) codec {
	return codec{std: encoding.GetCodecV2("proto"), pool: pool}
}

// Name is the content subtype: the frames are ordinary protobuf messages to any other peer.
func (codec) Name() string { return "proto" }

// Marshal encodes a frame into buffers that the caller frees. It fails if something in the frame exceeds a limit of the
// wire: Request.check tells beforehand which request would.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch f := v.(type) {
	case *requestFrame:
		return c.marshalRequests(f)
	case *replyFrame:
		return c.marshalReplies(f)
	case *cohereUp:
		return c.marshalUp(f)
	case *cohereDown:
		return c.marshalDown(f)
	case *bulkRequest:
		return c.marshalBulkRequest(f)
	case *bulkReply:
		return c.marshalBulkReply(f)
	}
	return c.std.Marshal(v)
}

// Unmarshal replaces what is in the frame by the message in data. After an error the frame is empty. Who owns what was decoded is
// told at the frames. Bounds: nothing is allocated that the message is not large enough for, counts and lengths beyond the limits
// are errors, and so is a message that protobuf would refuse. Unknown fields are skipped.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch f := v.(type) {
	case *requestFrame:
		return f.unmarshal(data)
	case *replyFrame:
		return f.unmarshal(data)
	case *cohereUp:
		return f.unmarshal(data)
	case *cohereDown:
		return f.unmarshal(data)
	case *bulkRequest:
		return f.unmarshal(data)
	case *bulkReply:
		return f.unmarshal(data)
	}
	return c.std.Unmarshal(data, v)
}
