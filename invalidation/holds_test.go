package invalidation

import "testing"

func TestHolds(t *testing.T) {
	h := NewHolds(3)
	a, b := HoldID{"a/1", 1}, HoldID{"b/1", 1}
	want := func(step, key string, held bool) {
		t.Helper()
		if got := h.Held(key); got != held {
			t.Errorf("%s: %s: got held %v, want %v", step, key, got, held)
		}
	}
	want("empty", "x", false)
	if !h.Hold([]string{"x", "y"}, a, 100) || !h.Hold([]string{"x"}, b, 50) {
		t.Fatal("got no hold, want two")
	}
	want("held twice", "x", true)
	want("held", "y", true)
	want("another", "z", false)
	if h.Hold([]string{"z", "u"}, b, 100) {
		t.Error("got a hold of too many keys")
	}
	want("refused", "z", false)
	h.Release([]string{"x", "z"}, a)
	want("released once", "x", true)
	want("not released", "y", true)
	h.Tick(49)
	want("not over", "x", true)
	h.Tick(50)
	want("over", "x", false)
	if !h.Hold([]string{"y"}, a, 200) {
		t.Error("got no longer hold")
	}
	h.Tick(150)
	want("extended", "y", true)
	h.Release([]string{"y"}, b)
	want("another's release", "y", true)
	h.Release([]string{"y"}, a)
	want("released", "y", false)
	if h.some.Load() {
		t.Error("holds nothing, and says it does")
	}
}
