package transport

import (
	"encoding/binary"
	"math/bits"
	"time"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// Wire types of protobuf, the low three bits of a tag.
const (
	varint  = 0
	fixed64 = 1
	lenPre  = 2 // length-prefixed: bytes, messages, packed lists
	fixed32 = 5
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

// writer appends fields to one pooled buffer whose size is known beforehand. Fields with the zero value are left out, as proto3 has it.
type writer struct {
	b     []byte
	total int             // what b will hold in the end
	root  mem.Buffer      // the buffer of b
	done  int             // how much of b is in out
	out   mem.BufferSlice // what is complete
}

// newWriter returns a writer for a message of that layout.
func (c codec) newWriter(l layout) (writer, error) {
	if l.total+l.attached > maxMessageBytes {
		return writer{}, errLimit
	}
	p := c.pool.Get(l.total)
	return writer{b: (*p)[:0], total: l.total, root: mem.NewBuffer(p, c.pool), out: make(mem.BufferSlice, 0, 2*l.large+1)}, nil
}

// finish returns the message. It fails if somebody changed a request or an answer while it was encoded.
func (w *writer) finish() (mem.BufferSlice, error) {
	if len(w.b) != w.total {
		w.out.Free()
		w.root.Free()
		return nil, errChanged
	}
	w.cut()
	w.root.Free()
	return w.out, nil
}

// cut completes what was written since the last cut.
func (w *writer) cut() {
	if len(w.b) > w.done {
		w.out = append(w.out, w.root.Slice(w.done, len(w.b)))
		w.done = len(w.b)
	}
}

func (w *writer) tag(tag uint32) {
	if tag < 0x80 {
		w.b = append(w.b, byte(tag))
		return
	}
	w.b = append(w.b, byte(tag)|0x80, byte(tag>>7)) // field numbers stay below 2048
}

func (w *writer) uint(tag uint32, v uint64) {
	if v != 0 {
		w.tag(tag)
		w.b = binary.AppendUvarint(w.b, v)
	}
}

func (w *writer) bool(tag uint32, v bool) {
	if v {
		w.tag(tag)
		w.b = append(w.b, 1)
	}
}

func (w *writer) fixed32(tag, v uint32) {
	if v != 0 {
		w.tag(tag)
		w.b = binary.LittleEndian.AppendUint32(w.b, v)
	}
}

func (w *writer) fixed64(tag uint32, v uint64) {
	if v != 0 {
		w.tag(tag)
		w.b = binary.LittleEndian.AppendUint64(w.b, v)
	}
}

func (w *writer) str(tag uint32, s string) {
	if s != "" {
		w.item(tag, s)
	}
}

// item is str for an element of a list, which is written even if it is empty.
func (w *writer) item(tag uint32, s string) {
	w.tag(tag)
	w.b = binary.AppendUvarint(w.b, uint64(len(s)))
	w.b = append(w.b, s...)
}

// open starts a message of n bytes.
func (w *writer) open(tag uint32, n int) {
	w.tag(tag)
	w.b = binary.AppendUvarint(w.b, uint64(n))
}

// value writes a value: large ones become a buffer of their own.
func (w *writer) value(tag uint32, v []byte) {
	if len(v) == 0 {
		return
	}
	w.open(tag, len(v))
	if len(v) < scatterBytes {
		w.b = append(w.b, v...)
		return
	}
	w.cut()
	w.out = append(w.out, mem.SliceBuffer(v))
}

// The sizes of what the writer's methods of the same names write.

func sizeTag(tag uint32) int {
	if tag < 0x80 {
		return 1
	}
	return 2
}

func sizeVarint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func sizeUint(tag uint32, v uint64) int {
	if v == 0 {
		return 0
	}
	return sizeTag(tag) + sizeVarint(v)
}

func sizeBool(tag uint32, v bool) int {
	if !v {
		return 0
	}
	return sizeTag(tag) + 1
}

func sizeFixed32(tag, v uint32) int {
	if v == 0 {
		return 0
	}
	return sizeTag(tag) + 4
}

func sizeFixed64(tag uint32, v uint64) int {
	if v == 0 {
		return 0
	}
	return sizeTag(tag) + 8
}

// sizeLen is the size of a length-prefixed field of n bytes, empty or not.
func sizeLen(tag uint32, n int) int { return sizeTag(tag) + sizeVarint(uint64(n)) + n }

// sizeBytes is sizeLen for a field that is left out when it is empty.
func sizeBytes(tag uint32, n int) int {
	if n == 0 {
		return 0
	}
	return sizeLen(tag, n)
}

// floorMicros is d in microseconds as a lifetime travels: rounded down, so that nothing lives longer after a hop.
func floorMicros(d time.Duration) uint64 { return uint64(max(d, 0) / time.Microsecond) }

// ceilMicros is d in microseconds as an age travels: rounded up.
func ceilMicros(d time.Duration) uint64 {
	d = max(d, 0)
	up := d / time.Microsecond
	if d%time.Microsecond != 0 {
		up++
	}
	return uint64(up)
}

// cutTo returns at most the first n bytes of s.
func cutTo(s string, n int) string { return s[:min(len(s), n)] }
