package nearcache

import (
	"testing"
	"time"
	"unsafe"
)

// Case L1-15.
func TestSpells(t *testing.T) {
	var s spells
	buf := []byte("key")
	alias := unsafe.String(&buf[0], len(buf))
	for i := range int64(3) { // the key comes again when its time is over and nothing was forgotten yet
		copy(buf, "key")
		now := i * int64(time.Second)
		if !s.begin(alias, now, time.Second) || s.begin(alias, now+1, time.Second) {
			t.Errorf("round %d: it does not begin once", i)
		}
		copy(buf, "xxx")
		if !s.has("key", now+1) || s.has("xxx", now+1) || s.has("key", now+int64(time.Second)) {
			t.Errorf("round %d: got %v and %v, want that it holds of the key, and not for longer than its time", i, s.has("key", now+1), s.has("xxx", now+1))
		}
	}
	s.tick(int64(time.Hour))
	if got := s.number.Load(); got != 0 || len(s.keys) != 0 {
		t.Errorf("%d keys are left", got)
	}
	for i := range 2 * maxSpells {
		s.put(string(rune(i)), 0, time.Second)
	}
	if got := s.number.Load(); got != maxSpells {
		t.Errorf("got %d keys, want %d at most", got, maxSpells)
	}
}
