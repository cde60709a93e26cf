package shard

import (
	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/tag"
)

// packed is a Value as the store has it, 48 bytes instead of 112: when it ends for good is the deadline of its entry, and what few values have is
// apart from it.
type packed struct {
	bytes    []byte
	loadedAt int64
	soft     int64
	rest     *rest // nil: all of it is zero
}

// rest is what few values have. It is immutable, as all of an entry is.
type rest struct {
	vouched, retry            int64
	version                   uint64
	mark                      tag.Mark
	absent, inherits, expired bool
}

const restBytes = 48 // what the heap has for a rest

func pack(v *Value) packed {
	p := packed{bytes: v.Bytes, loadedAt: v.LoadedAt, soft: v.Soft}
	r := rest{
		vouched: v.Vouched, retry: v.Retry, version: v.Version, mark: v.Mark,
		absent: v.Absent, inherits: v.Inherits, expired: v.Expired,
	}
	if r != (rest{}) {
		p.rest = &r
	}
	return p
}

func (p *packed) absent() bool { return p.rest != nil && p.rest.absent }

// unpack sets v, which is zero, to the value of e.
func (v *Value) unpack(e *store.Entry[packed]) {
	p := &e.Value
	v.Bytes, v.LoadedAt, v.Soft, v.Hard = p.bytes, p.loadedAt, p.soft, e.Deadline
	if r := p.rest; r != nil {
		v.Vouched, v.Retry, v.Version, v.Mark = r.vouched, r.retry, r.version, r.mark
		v.Absent, v.Inherits, v.Expired = r.absent, r.inherits, r.expired
	}
}

// valueOf returns the value of e, or nil if that is nil.
func valueOf(e *store.Entry[packed]) *Value {
	if e == nil {
		return nil
	}
	v := new(Value)
	v.unpack(e)
	return v
}

// resident returns what the transaction's key has, past its lifetime or not, or nil.
func resident(tx *store.Tx[packed]) *Value { return valueOf(tx.Entry()) }

// put makes v the resident value of the transaction's key; see store.Tx.Put.
func put(tx *store.Tx[packed], v *Value, now int64) bool {
	_, ok := tx.Put(pack(v), v.cost(), v.Hard, now)
	return ok
}
