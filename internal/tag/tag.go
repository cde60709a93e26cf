package tag

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Hash returns what stands for a tag, in every process and release.
func Hash(tag string) uint64 { return xxhash.Sum64String(tag) }

// Hashes returns what stands for tags. They may alias a buffer.
func Hashes(tags []string) []uint64 {
	hashes := make([]uint64, len(tags))
	for i, t := range tags {
		hashes[i] = Hash(t)
	}
	return hashes
}

// Mark is what a value carries: its tags, and how old it is for them. It is immutable.
//
// The zero Mark is that of a value whose tags are not known: any invalidation of a tag that comes after Pos ends it.
type Mark struct {
	pos  int64     // what is newer ends the value; never: the value has no tags
	tags *[]uint64 // hashes; nil: not known, or none
}

const never = math.MaxInt64

// Of returns the mark of a value with these tags, known to be all of them. hashes belongs to the mark from then on.
func Of(hashes []uint64) Mark {
	if len(hashes) == 0 {
		return Mark{pos: never}
	}
	return Mark{tags: &hashes}
}

// At returns the mark of a value whose load began when the table's position was pos.
func (m Mark) At(pos int64) Mark {
	if m.pos != never {
		m.pos = pos
	}
	return m
}

// Tags returns the hashes of the tags, and whether they are known. They are shared and read-only.
func (m Mark) Tags() (hashes []uint64, known bool) {
	if m.tags == nil {
		return nil, m.pos == never
	}
	return *m.tags, true
}

// Bytes is what the tags count beside the value.
func (m Mark) Bytes() int64 {
	hashes, _ := m.Tags()
	return 8 * int64(len(hashes))
}

const places = 1 << 16

// Table remembers when tags were invalidated last. The zero Table is ready to use. All methods are safe for concurrent use; only Invalidate
// takes a lock.
type Table struct {
	last atomic.Int64                         // the newest position
	at   atomic.Pointer[[places]atomic.Int64] // by place: the newest position of its tags

	mu sync.Mutex // guards the writing
}

// Invalidate ends what has one of the tags and a mark that is older than this call. now is the member's time: a position is not before the
// time of its invalidation, which makes Newest a time.
func (t *Table) Invalidate(hashes []uint64, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.at.Load()
	if at == nil {
		at = new([places]atomic.Int64)
		t.at.Store(at)
	}
	pos := max(t.last.Load()+1, now)
	for _, h := range hashes {
		at[h%places].Store(pos)
	}
	// Last: a load that begins before it counts as older. The other way round one could begin after it, and be found older than nothing.
	t.last.Store(pos)
}

// Pos returns the position that a load, or a request for a copy, begins at.
func (t *Table) Pos() int64 { return t.last.Load() }

// Alive reports whether no tag of a value was invalidated after its mark was made. While no tag at all was it costs one atomic load, and for a
// value without tags always.
func (t *Table) Alive(m *Mark) bool { return t.last.Load() <= m.pos || t.Newest(m) <= m.pos }

// Newest returns the position of the last invalidation of a tag of the value: a time that is at most a little after it. 0: there was none.
//
//go:noinline // so that Alive is: it is on the path of every near hit
func (t *Table) Newest(m *Mark) int64 {
	if m.pos == never {
		return 0
	}
	if m.tags == nil {
		return t.last.Load()
	}
	at := t.at.Load()
	if at == nil {
		return 0
	}
	var newest int64
	for _, h := range *m.tags {
		newest = max(newest, at[h%places].Load())
	}
	return newest
}
