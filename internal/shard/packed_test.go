package shard

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/nearcache/nearcache/internal/store"
	"github.com/nearcache/nearcache/internal/tag"
)

// What is packed comes out as it was: each field by itself, and all of them.
func TestPack(t *testing.T) {
	full := Value{
		Bytes: []byte("v"), LoadedAt: 1, Vouched: 2, Version: 3, Soft: 4, Hard: 5, Retry: 6,
		Mark: tag.Of([]uint64{7}).At(8), Absent: true, Inherits: true, Expired: true,
	}
	values := []Value{{}, full}
	for i := range reflect.TypeFor[Value]().NumField() {
		var v Value
		f := reflect.ValueOf(full).Field(i)
		if f.IsZero() {
			t.Errorf("the test has nothing in %s", reflect.TypeFor[Value]().Field(i).Name)
		}
		reflect.ValueOf(&v).Elem().Field(i).Set(f)
		values = append(values, v)
	}
	for _, want := range values {
		if got := *valueOf(&store.Entry[packed]{Deadline: want.Hard, Value: pack(&want)}); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// Eight bytes more and every entry takes sixteen more of the heap (docs/performance.md).
func TestEntrySize(t *testing.T) {
	if got := unsafe.Sizeof(store.Entry[packed]{}); got > 96 {
		t.Errorf("an entry has %d bytes, want 96 at most", got)
	}
	if got := unsafe.Sizeof(rest{}); got > restBytes {
		t.Errorf("the rest of a value has %d bytes, more than it counts: %d", got, restBytes)
	}
	if v := (Value{Bytes: []byte("v"), LoadedAt: 1, Soft: 2, Hard: 3}); pack(&v).rest != nil {
		t.Error("a value with nothing special takes a second object")
	}
}
