package transport

import (
	"encoding/binary"
	"math/bits"
	"time"

	"google.golang.org/grpc/mem"
)

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
