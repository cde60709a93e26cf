package invalidation

import (
	"strconv"
	"testing"
	"time"
)

// Of two invalidations of one key the one that began first may return last: what was loaded between their beginnings stays old.
func TestOwnViewKeepsTheLaterInvalidation(t *testing.T) {
	o := NewOwnView(time.Minute)
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

// R16: the asking counts, not the answer, which may take as long as a load: it is remembered until then.
func TestOwnViewOutlastsSlowAnswers(t *testing.T) {
	const answer, second = 10 * time.Second, int64(time.Second)
	for name, crowd := range map[string]int{"alone": 0, "with more others than it holds": ownKeys} {
		o := NewOwnView(answer)
		o.Invalidated([]string{"k"}, 20, 25, time.Second)
		for i := range crowd {
			o.Invalidated([]string{strconv.Itoa(i)}, 5*second, 5*second, time.Second)
		}
		o.Tick(25 + second + int64(answer) - 1)
		if !o.Old("k", 19, 24+second) {
			t.Errorf("%s: what was asked for within the second is not old when its answer comes after %v", name, answer)
		}
		if o.Old("k", 4*second, 7*second) {
			t.Errorf("%s: what was asked for later is old", name)
		}
		o.Tick(6*second + int64(answer))
		if o.Active(0) {
			t.Errorf("%s: it is remembered for ever", name)
		}
	}
}

// R16: an age that was measured by a clock that is one per cent slow does not make a value newer than the invalidation.
func TestLoadedBy(t *testing.T) {
	o := NewOwnView(time.Minute)
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

// R16: stale copies are held against what was invalidated for ever, and not against what was expired.
func TestOwnViewOfStaleCopies(t *testing.T) {
	const ever = int64(1000 * time.Hour)
	o := NewOwnView(time.Minute)
	o.Invalidated([]string{"k"}, 20, 25, time.Second)
	o.Expired([]string{"soft"}, 20, 25, time.Second)
	o.Expired([]string{"k"}, 40, 45, time.Second)
	check := func(key string, loaded int64, want bool) {
		t.Helper()
		if got := o.OldCopy(key, loaded); got != want {
			t.Errorf("a copy of %q loaded at %d: old is %v, want %v", key, loaded, got, want)
		}
	}
	check("k", 19, true)
	check("k", 20, false)
	check("soft", 19, false)
	if !o.Old("soft", 19, 30) || o.Old("soft", 19, ever) {
		t.Error("an Expire is no invalidation of fresh values")
	}
	o.Tick(ever)
	check("k", 19, true)
	many := make([]string, ownKeys)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	o.Invalidated(many, 50, 55, time.Second)
	check("k", 19, false) // there is no room for it, and it makes no other key old
	check("other", 19, false)
	o.AllInvalidated(60, 65, time.Second)
	o.Tick(ever)
	check("other", 59, true)
	check("other", 60, false)
}

// R15, R16: a value is older than the invalidation of any of its tags, and of any tag at all where its own are not known.
func TestOwnTags(t *testing.T) {
	o := NewOwnTags(time.Minute)
	o.Invalidated([]uint64{1, 2}, 20, 25, time.Second)
	for _, tt := range []struct {
		name   string
		tags   []uint64
		known  bool
		loaded int64
		want   bool
	}{
		{"one of its tags", []uint64{7, 2}, true, 19, true},
		{"loaded afterwards", []uint64{7, 2}, true, 20, false},
		{"another tag", []uint64{7}, true, 19, false},
		{"no tag", nil, true, 19, false},
		{"tags that are not known", nil, false, 19, true},
	} {
		if got := o.Old(tt.tags, tt.known, tt.loaded, 30); got != tt.want {
			t.Errorf("%s: old is %v, want %v", tt.name, got, tt.want)
		}
	}
	if o.Old([]uint64{1}, true, 19, 25+int64(time.Second)) {
		t.Error("what was asked for later is old")
	}
	if !o.OldCopy([]uint64{7, 2}, true, 19) || o.OldCopy([]uint64{7}, true, 19) || !o.OldCopy(nil, false, 19) || o.OldCopy(nil, true, 19) {
		t.Error("stale copies are judged by other tags than values are")
	}
}
