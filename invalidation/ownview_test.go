package invalidation

import (
	"testing"
	"time"
)

// Of two invalidations of one key the one that began first may return last: what was loaded between their beginnings stays old.
func TestOwnViewKeepsTheLaterInvalidation(t *testing.T) {
	o := NewOwnView()
	o.Invalidated([]string{"k"}, 20, 25, time.Second)
	o.Invalidated([]string{"k"}, 10, 30, time.Second)
	for loaded, want := range map[int64]bool{5: true, 15: true, 19: true, 20: false} {
		if got := o.Old("k", loaded, 40); got != want {
			t.Errorf("loaded at %d: got old %v, want %v", loaded, got, want)
		}
	}
	if o.Old("other", 5, 40) {
		t.Error("another key is old")
	}
	if o.Old("k", 5, 30+int64(time.Second)) {
		t.Error("it is remembered for longer than a Bound")
	}
}

// R16: an age that was measured by a clock that is one per cent slow does not make a value newer than the invalidation.
func TestLoadedBy(t *testing.T) {
	o := NewOwnView()
	const began, second = 100 * int64(time.Second), int64(time.Second)
	o.Invalidated([]string{"k"}, began, began+1, time.Minute)
	loaded, given := began-second/1000, began+second
	age := time.Duration(given-loaded) * 99 / 100
	if !o.Old("k", LoadedBy(given, age), given) {
		t.Error("a value from before the invalidation counts as newer, because a clock is slow")
	}
	if o.Old("k", LoadedBy(given, time.Duration(second*9/10)), given) {
		t.Error("a value that was loaded long after the invalidation counts as old")
	}
}
