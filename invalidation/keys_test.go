package invalidation

import (
	"testing"
	"unsafe"
)

// Case L1-15.
// Keys that alias a buffer, which is used for other keys afterwards: whoever comes first and whoever comes again.
func TestKeysOverRecycledBuffers(t *testing.T) {
	buf := []byte("key")
	keys := []string{unsafe.String(&buf[0], len(buf))}
	recycled := func(do func()) {
		copy(buf, "key")
		do()
		copy(buf, "xxx")
	}

	h := NewHolds(10)
	a, b := HoldID{"a", 1}, HoldID{"b", 1}
	recycled(func() { h.Hold(keys, a, 100) })
	recycled(func() { h.Hold(keys, b, 100) })
	recycled(func() { h.Release(keys, a) })
	if !h.Held("key") {
		t.Error("the key is not held although one of two holds is left")
	}
	recycled(func() { h.Release(keys, b) })
	if h.Held("key") {
		t.Error("the key is held although both holds were released")
	}

	o := NewOwed(10)
	recycled(func() { o.Owe("m", keys, 100) })
	recycled(func() { o.Owe("m", keys, 200) })
	if d, ok := o.Take("m", 150); !ok || len(d.Keys) != 1 || d.Keys[0] != "key" {
		t.Errorf("got %q, %v, want the key to be owed", d.Keys, ok)
	}
}
