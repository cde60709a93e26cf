package transport

import (
	"encoding/binary"
	"time"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// reader walks an encoded message that lies in several buffers without joining them. The first error sticks and ends every loop
// over fields; nothing is read past the end of the innermost open message, so no length is larger than the input.
type reader struct {
	cur   []byte          // unread rest of the current buffer
	rest  mem.BufferSlice // the buffers after it
	left  int             // unread bytes of the innermost open message
	alias bool            // strings may alias the buffers; otherwise they are copies
	err   error
}

func newReader(data mem.BufferSlice, alias bool) reader {
	return reader{rest: data, left: data.Len(), alias: alias}
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.cur, r.rest, r.left = nil, nil, 0
}

// open enters a message whose length comes next and returns what close needs to leave it.
func (r *reader) open() (outer int) {
	n := r.length()
	outer = r.left - n
	r.left = n
	return outer
}

func (r *reader) close(outer int) {
	if r.err == nil {
		r.left = outer
	}
}

// next makes cur non-empty. The caller knows that a byte is left.
func (r *reader) next() {
	for len(r.cur) == 0 {
		r.cur, r.rest = r.rest[0].ReadOnlyData(), r.rest[1:]
	}
}

func (r *reader) advance(n int) {
	r.cur = r.cur[n:]
	r.left -= n
}

// tag reads a field's number and wire type.
func (r *reader) tag() uint32 {
	v := r.uint()
	if v < 1<<3 || v > 1<<32-1 {
		r.fail(errMalformed)
	}
	return uint32(v)
}

// uint reads a varint.
func (r *reader) uint() uint64 {
	if r.left > 0 && len(r.cur) > 0 && r.cur[0] < 0x80 {
		v := uint64(r.cur[0])
		r.advance(1)
		return v
	}
	return r.longUint()
}

func (r *reader) longUint() uint64 {
	if b := r.cur[:min(len(r.cur), r.left)]; len(b) >= binary.MaxVarintLen64 || len(b) == r.left {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			r.fail(errMalformed)
			return 0
		}
		r.advance(n)
		return v
	}
	var b [binary.MaxVarintLen64]byte // it may span buffers
	for i := range b {
		if r.left == 0 {
			break
		}
		r.next()
		b[i] = r.cur[0]
		r.advance(1)
		if b[i] < 0x80 {
			v, n := binary.Uvarint(b[:i+1])
			if n <= 0 {
				break
			}
			return v
		}
	}
	r.fail(errMalformed)
	return 0
}

func (r *reader) uint32() uint32 { return uint32(r.uint()) }
func (r *reader) bool() bool     { return r.uint() != 0 }

// small reads a number of a kind; one that no version of this code knows is 0.
func (r *reader) small() uint8 {
	v := r.uint32()
	if v > 1<<8-1 {
		return 0
	}
	return uint8(v)
}

// duration reads microseconds, cut to MaxDuration.
func (r *reader) duration() time.Duration {
	return time.Duration(min(r.uint(), uint64(MaxDuration/time.Microsecond))) * time.Microsecond
}

func (r *reader) fixed32() uint32 {
	if len(r.cur) >= 4 && r.left >= 4 {
		v := binary.LittleEndian.Uint32(r.cur)
		r.advance(4)
		return v
	}
	var b [4]byte
	r.read(b[:])
	return binary.LittleEndian.Uint32(b[:])
}

func (r *reader) fixed64() uint64 {
	if len(r.cur) >= 8 && r.left >= 8 {
		v := binary.LittleEndian.Uint64(r.cur)
		r.advance(8)
		return v
	}
	var b [8]byte
	r.read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// length reads the length of a field that lies whole in the message.
func (r *reader) length() int {
	n := r.uint()
	if n > uint64(r.left) {
		r.fail(errMalformed)
		return 0
	}
	return int(n)
}

// bounded reads a length and refuses more than limit bytes.
func (r *reader) bounded(limit int) int {
	n := r.length()
	if n > limit {
		r.fail(errLimit)
		return 0
	}
	return n
}

// str reads a string of at most limit bytes.
func (r *reader) str(limit int) string {
	n := r.bounded(limit)
	if n == 0 {
		return ""
	}
	if len(r.cur) == 0 {
		r.next()
	}
	if len(r.cur) < n {
		return string(r.bytes(n))
	}
	b := r.cur[:n]
	r.advance(n)
	if r.alias {
		return unsafe.String(&b[0], n)
	}
	return string(b)
}

// bytes reads n bytes, which are left, into a slice of exactly that size.
func (r *reader) bytes(n int) []byte {
	if len(r.cur) >= n {
		b := r.cur[:n]
		out := make([]byte, len(b))
		copy(out, b)
		r.advance(n)
		return out
	}
	out := make([]byte, n)
	r.read(out)
	return out
}

// read fills dst.
func (r *reader) read(dst []byte) {
	if len(dst) > r.left {
		r.fail(errMalformed)
		return
	}
	for len(dst) > 0 {
		r.next()
		n := copy(dst, r.cur)
		r.advance(n)
		dst = dst[n:]
	}
}

// skip passes over the rest of an unknown field. Groups, which proto3 does not have, are malformed.
func (r *reader) skip(tag uint32) {
	n := 0
	switch tag & 7 {
	case varint:
		r.uint()
	case fixed64:
		n = 8
	case lenPre:
		n = r.length()
	case fixed32:
		n = 4
	default:
		r.fail(errMalformed)
	}
	if n > r.left {
		r.fail(errMalformed)
		return
	}
	for n > 0 {
		r.next()
		m := min(n, len(r.cur))
		r.advance(m)
		n -= m
	}
}
