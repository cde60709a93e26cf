package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

func put[V any](s *Store[V], key string, v V, bytes, deadline, now int64) bool {
	tx := s.Begin(key)
	defer tx.End()
	_, ok := tx.Put(v, bytes, deadline, now)
	return ok
}

func del[V any](s *Store[V], key string) bool {
	tx := s.Begin(key)
	defer tx.End()
	return tx.Delete() != nil
}

// check fails the test when the parts of a shard do not fit together.
func check[V any](t testing.TB, s *Store[V]) {
	t.Helper()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		x := sh.index.Load()
		n, bytes, due := 0, int64(0), 0
		for e := range x.all {
			n++
			bytes += e.Bytes()
			if got := x.find(e.hash, e.Key); got != e {
				t.Errorf("shard %d: find(%q) does not return the entry in the index", i, e.Key)
			}
			if got := x.at(*sh.queueOf(e).at(e.pos)); got != e {
				t.Errorf("shard %d: %q is not where its queue should have it", i, e.Key)
			}
			if e.bucket != noBucket {
				due++
				if got := sh.due.levels[e.bucket>>slotBits].buckets[e.bucket%wheelSlots][e.bucketPos]; x.at(got) != e {
					t.Errorf("shard %d: %q is not in its deadline bucket", i, e.Key)
				}
			}
		}
		if n != x.used || n != sh.entries() || bytes != sh.bytes() || due != sh.due.n {
			t.Errorf("shard %d: index has %d entries with %d bytes, %d with a deadline; counted are %d, queues %d with %d bytes, wheel %d",
				i, n, bytes, due, x.used, sh.entries(), sh.bytes(), sh.due.n)
		}
		if sh.bytes() > sh.maxBytes || int64(sh.entries()) > sh.maxEntries {
			t.Errorf("shard %d: %d bytes, %d entries: over %d, %d", i, sh.bytes(), sh.entries(), sh.maxBytes, sh.maxEntries)
		}
		sh.mu.Unlock()
	}
}

func TestPutGetDelete(t *testing.T) {
	s := New[string](Config{MaxBytes: 1 << 20})
	if e := s.Get("a", 0); e != nil {
		t.Fatalf("Get in an empty store = %v", e)
	}
	put(s, "a", "one", 3, 100, 0)
	e := s.Get("a", 99)
	if e == nil || e.Key != "a" || e.Value != "one" || e.Deadline != 100 || e.Bytes() != 1+3+EntryOverhead {
		t.Fatalf("Get = %+v, want what was put", e)
	}
	if got := s.Get("a", 100); got != nil {
		t.Errorf("Get at the deadline = %v, want nil", got)
	}
	if got := s.Find("a"); got != e {
		t.Errorf("Find after the deadline = %v, want the entry", got)
	}
	tx := s.Begin("a")
	if got := tx.Entry(); got != e {
		t.Errorf("Tx.Entry after the deadline = %v, want the entry", got)
	}
	if got, want := tx.Shard(), s.ShardOf("a"); got != want {
		t.Errorf("Tx.Shard() = %d, ShardOf = %d", got, want)
	}
	two, ok := tx.Put("two", 3, 300, 200)
	if got := tx.Entry(); !ok || got != two || got.Value != "two" {
		t.Errorf("Tx.Entry after Put = %v, want the new entry", got)
	}
	tx.End()
	if got := s.Get("a", 200); got != two {
		t.Errorf("Get after replacement = %v, want the new entry", got)
	}
	if e.Value != "one" {
		t.Errorf("the replaced entry changed to %q", e.Value)
	}
	tx = s.Begin("a")
	if got := tx.Delete(); got != two {
		t.Errorf("Delete = %v, want the entry", got)
	}
	if got := tx.Delete(); got != nil {
		t.Errorf("second Delete = %v, want nil", got)
	}
	tx.End()
	if got := s.Find("a"); got != nil {
		t.Errorf("Find after Delete = %v, want nil", got)
	}
	if got, want := s.Stats(), (Stats{MaxBytes: 1 << 20}); got != want {
		t.Errorf("Stats of the emptied store = %+v, want %+v", got, want)
	}
	check(t, s)
}

// Case L1-2: degenerate capacities work, and 0 does not mean unlimited.
func TestTinySizes(t *testing.T) {
	type size struct{ bytes, entries int64 }
	var sizes []size
	for _, b := range []int64{-1, 0, 1, 100, EntryOverhead + 2, EntryOverhead + 3, 2*EntryOverhead + 6, 3*EntryOverhead + 9, 7*EntryOverhead + 21} {
		sizes = append(sizes, size{bytes: b})
	}
	for _, n := range []int64{1, 2, 3, 4, 5, 7, 8, 100} {
		sizes = append(sizes, size{1 << 30, n})
	}
	for _, sz := range sizes {
		for _, shards := range []int{0, 1, 3, 4, 1000} {
			s := New[int](Config{MaxBytes: sz.bytes, MaxEntries: sz.entries, Shards: shards})
			limit := sz.entries
			if limit == 0 {
				limit = max(0, sz.bytes) / (EntryOverhead + 2)
			}
			for round := range 40 {
				for k := range 50 {
					key := fmt.Sprintf("%02d", k)
					if e := s.Get(key, 0); e != nil && e.Value != k {
						t.Fatalf("%+v: Get(%s) = %d", sz, key, e.Value)
					}
					put(s, key, k, int64(k%2), int64(1+k*round)<<tickBits, 0)
					if (k+round)%11 == 0 {
						del(s, key)
					}
				}
				s.Sweep(int64(round*20) << tickBits)
				if got := s.Stats().Entries; got > limit {
					t.Fatalf("%+v, %d shards: %d entries, want at most %d", sz, shards, got, limit)
				}
				check(t, s)
			}
			if sz.entries > 0 && s.Stats().Entries == 0 && put(s, "x", 1, 0, math.MaxInt64, 0) && s.Get("x", 0) == nil {
				t.Errorf("%+v, %d shards: an empty store did not keep an entry", sz, shards)
			}
		}
	}
}

func TestShardCount(t *testing.T) {
	most := 1
	for most*2 <= min(16, 4*runtime.GOMAXPROCS(0)) {
		most *= 2
	}
	tests := []struct {
		cfg  Config
		want int
	}{
		{Config{}, 1},
		{Config{MaxBytes: 1 << 20}, 1},
		{Config{MaxBytes: 2<<20 - 1}, 1},
		{Config{MaxBytes: 1 << 40}, most},
		{Config{MaxBytes: 1 << 40, MaxEntries: 255}, 1},
		{Config{MaxBytes: 1 << 40, MaxEntries: 256}, 2},
		{Config{Shards: 1}, 1},
		{Config{Shards: 5}, 8},
		{Config{Shards: 8}, 8},
		{Config{Shards: 1 << 20}, 256},
		{Config{Shards: 64, MaxEntries: 3}, 2},
	}
	for _, tt := range tests {
		if got := New[int](tt.cfg).Shards(); got != tt.want {
			t.Errorf("Shards() of %+v = %d, want %d", tt.cfg, got, tt.want)
		}
	}
}

// The budget holds after every write, whatever the size of the values.
func TestByteBudgetWithLargeValues(t *testing.T) {
	const budget = 64 << 20
	s := New[[]byte](Config{MaxBytes: budget})
	for i := range 1000 {
		size := int64(1) << 20
		if i%3 == 0 {
			size = int64(rand.IntN(3 << 20))
		}
		if !put(s, fmt.Sprint(i%300), nil, size, math.MaxInt64, 0) {
			t.Fatalf("a value of %d bytes was refused", size)
		}
		if got := s.Stats().Bytes; got > budget {
			t.Fatalf("%d bytes held, budget %d", got, budget)
		}
	}
	if got := s.Stats().Bytes; got < budget/2 {
		t.Errorf("%d bytes held, want most of %d", got, budget)
	}
	check(t, s)
}

func TestSmallBudgetHoldsAFairlyLargeValue(t *testing.T) {
	s := New[int](Config{MaxBytes: 1 << 20})
	for i := range 1000 {
		put(s, fmt.Sprint(i), i, 1000, math.MaxInt64, 0)
	}
	for range 2 { // a newcomer that large has to show that it is asked for again
		if !put(s, "large", 1, 256<<10, math.MaxInt64, 0) {
			t.Fatal("a value of 256 KiB was refused by a store of 1 MiB")
		}
	}
	if s.Get("large", 0) == nil {
		t.Error("a value of 256 KiB that was asked for twice is not resident in a store of 1 MiB")
	}
}

// Case L1-13: a value that cannot be held is refused, counted, and displaces nobody; the old value of its key is gone.
func TestTooLarge(t *testing.T) {
	s := New[int](Config{MaxBytes: 1 << 20})
	for i := range 800 {
		put(s, fmt.Sprint(i), i, 1024, math.MaxInt64, 0)
	}
	before := s.Stats()
	for i := range 10 {
		if put(s, "0", 1, 2<<20, math.MaxInt64, 0) {
			t.Fatal("a value larger than the store was accepted")
		}
		if s.Find("0") != nil {
			t.Fatalf("attempt %d: the value that was to be replaced is still there", i)
		}
	}
	after := s.Stats()
	if before.Entries-after.Entries > 1 || after.TooLarge != 10 || after.Evictions != before.Evictions {
		t.Errorf("before %+v, after %+v: want one entry less, 10 refusals, no eviction", before, after)
	}
	if put(s, "0", 1, 1<<40, math.MaxInt64, 0) {
		t.Error("a terabyte was accepted")
	}
	check(t, s)
}

// A newcomer that is larger than the window has to win its duel at once; it does not throw the window out.
func TestLargeNewcomerDisplacesNobodyBusy(t *testing.T) {
	s := New[int](Config{MaxBytes: 1 << 20})
	for range 5 {
		for i := range 700 {
			k := fmt.Sprint(i)
			if s.Get(k, 0) == nil {
				put(s, k, i, 1024, math.MaxInt64, 0)
			}
		}
	}
	before := s.Stats()
	for i := range 20 {
		put(s, fmt.Sprint("large", i), i, 900<<10, math.MaxInt64, 0)
	}
	if lost := before.Entries - s.Stats().Entries; lost > before.Entries/10 {
		t.Errorf("%d of %d entries in use were displaced by large values asked for once", lost, before.Entries)
	}
}

// Case L1-14: overwriting keeps the account exact.
func TestOverwritesKeepTheAccount(t *testing.T) {
	s := New[int](Config{MaxBytes: 1 << 20})
	for i := range 100_000 {
		size := int64(10 + i*97%10_000)
		put(s, "k", i, size, math.MaxInt64, 0)
		if got, want := s.Stats().Bytes, 1+size+EntryOverhead; got != want {
			t.Fatalf("%d bytes after overwrite %d, want %d", got, i, want)
		}
	}
	for i := range 500 {
		put(s, fmt.Sprint("fresh", i), i, 1024, math.MaxInt64, 0)
	}
	hits := 0
	for i := range 500 {
		if s.Get(fmt.Sprint("fresh", i), 0) != nil {
			hits++
		}
	}
	if hits < 480 {
		t.Errorf("%d of 500 fresh keys are resident, want 480", hits)
	}
	check(t, s)
}

// Case L1-3: keys with equal hashes stay separate, in every operation.
func TestEqualHashes(t *testing.T) {
	for _, h := range []uint64{0, 1, math.MaxUint64, 0x8000_0000_0000_0000} {
		s := New[int](Config{MaxBytes: 1 << 30, hash: func(string) uint64 { return h }})
		want := map[string]int{}
		for i, k := range []string{"costarring", "liquid", "declinate", "macallums", "altarage", "zinke", "plumless", "buckeroo"} {
			want[k] = i
		}
		for i := range 1000 { // far more than the buckets' counts of passed entries can tell
			want[fmt.Sprint(i)] = 100 + i
		}
		for k, v := range want {
			put(s, k, v, 1, math.MaxInt64, 0)
		}
		verify := func() {
			t.Helper()
			for k, v := range want {
				if e := s.Get(k, 0); e == nil || e.Key != k || e.Value != v {
					t.Fatalf("hash %#x: Get(%q) = %+v, want %d", h, k, e, v)
				}
			}
			if got := s.Stats().Entries; got != int64(len(want)) {
				t.Fatalf("hash %#x: %d entries, want %d", h, got, len(want))
			}
		}
		verify()
		for _, k := range []string{"liquid", "zinke", "7", "999", "buckeroo"} {
			if !del(s, k) {
				t.Errorf("hash %#x: %q was not there to delete", h, k)
			}
			delete(want, k)
			if e := s.Get(k, 0); e != nil {
				t.Errorf("hash %#x: Get(%q) after Delete = %+v", h, k, e)
			}
		}
		verify()
		for k := range want {
			want[k]++
			put(s, k, want[k], 1, math.MaxInt64, 0)
		}
		verify()
		check(t, s)
	}
}

// Case L1-15: the store owns its keys.
func TestKeysAreCopied(t *testing.T) {
	s := New[int](Config{MaxBytes: 1 << 20})
	buf := []byte("original")
	key := aliased(buf)
	put(s, key, 1, 1, math.MaxInt64, 0)
	put(s, key, 2, 1, math.MaxInt64, 0)
	copy(buf, "recycled")
	if e := s.Get("original", 0); e == nil || e.Key != "original" || e.Value != 2 {
		t.Errorf("Get(original) = %+v, want its value", e)
	}
	if e := s.Get(key, 0); e != nil {
		t.Errorf("Get(%q) = %+v, want nil", key, e)
	}
	if !del(s, "original") {
		t.Error("the key could not be deleted")
	}
}

// Case L1-5, case L1-6: what nobody reads again is freed after its deadline, and counted as expired.
func TestSweepFreesWhatExpired(t *testing.T) {
	const ttl, n = int64(time.Second), 50_000
	s := New[int](Config{MaxBytes: 1 << 40, Shards: 16}) // with few of them a Sweep may do nothing but move entries to finer buckets
	var now int64 = 1
	for cycle := range 3 {
		for i := range n {
			put(s, fmt.Sprint(cycle, i), i, 200, now+ttl, now)
		}
		for i := range 10 {
			put(s, fmt.Sprint("long", i), i, 200, now+1000*ttl, now)
		}
		if got := s.Sweep(now + ttl - 1); got != 0 {
			t.Fatalf("cycle %d: %d entries freed before their deadline", cycle, got)
		}
		now += ttl + 2<<tickBits
		freed := 0
		for range 100 {
			got := s.Sweep(now)
			if got > sweepMax*s.Shards() {
				t.Fatalf("%d entries freed by one Sweep, want at most %d per shard", got, sweepMax)
			}
			if freed += got; got == 0 {
				break
			}
		}
		st := s.Stats()
		if freed != n || st.Entries != 10 || st.Expirations != uint64(n*(cycle+1)) || st.Evictions != 0 {
			t.Fatalf("cycle %d: %d freed, %+v: want %d freed and 10 left", cycle, freed, st, n)
		}
		check(t, s)
	}
	for i := range s.shards {
		if got := len(s.shards[i].index.Load().buckets); got > 64 {
			t.Errorf("shard %d: index of the emptied store has %d buckets", i, got)
		}
		if got := len(s.shards[i].window.ring) + len(s.shards[i].main.ring); got > 256 {
			t.Errorf("shard %d: queues of the emptied store have room for %d", i, got)
		}
	}
}

// At a lifetime of a second and a sweep every 20 ms, expired entries are at most 5 % of the live ones.
func TestHeldExpired(t *testing.T) {
	const perMs = 20
	s := New[int](Config{MaxBytes: 1 << 40})
	worst := 0.0
	for ms := range int64(4000) {
		now := ms * int64(time.Millisecond)
		for i := range perMs {
			put(s, fmt.Sprint(ms, i), 0, 100, now+int64(time.Second), now)
		}
		if ms < 2000 {
			if ms%12 == 0 {
				s.Sweep(now)
			}
			continue
		}
		held := float64(s.Stats().Entries)/(1000*perMs) - 1
		worst = max(worst, held)
		if ms%12 == 0 {
			s.Sweep(now)
		}
	}
	if worst > 0.02 {
		t.Errorf("%.1f %% of the live entries were held expired", 100*worst)
	}
}

// Expired entries are the first to go: they win no duel and no second chance.
func TestExpiredLoseEveryDuel(t *testing.T) {
	s := New[int](Config{MaxBytes: 1 << 30, MaxEntries: 1000, Shards: 1})
	for i := range 1000 {
		k := fmt.Sprint("old", i)
		put(s, k, i, 1, 100, 0)
		for range 5 {
			s.Get(k, 0)
		}
	}
	for i := range 790 {
		put(s, fmt.Sprint("new", i), i, 1, math.MaxInt64, 200)
	}
	for i := range 790 {
		if s.Get(fmt.Sprint("new", i), 200) == nil {
			t.Fatalf("new%d lost to an expired entry", i)
		}
	}
	if st := s.Stats(); st.Evictions != 0 || st.Expirations != 790 {
		t.Errorf("%+v: want 790 expirations and no eviction", st)
	}
}

// Case L1-8: any lifetime is harmless, and none of the short ones means for ever.
func TestOddDeadlines(t *testing.T) {
	const now = int64(5 * time.Second)
	s := New[int](Config{MaxBytes: 1 << 20, Shards: 1})
	short := []int64{math.MinInt64, -1, 0, 1, now - int64(time.Second), now - 1, now, now + 1, now + 50, now + 1000, now + int64(10*time.Millisecond)}
	for _, d := range short {
		put(s, fmt.Sprint(d), 0, 1, d, now)
		if e := s.Get(fmt.Sprint(d), now); (e != nil) != (d > now) {
			t.Errorf("deadline %d at %d: Get = %v", d, now, e)
		}
	}
	long := []int64{now + int64(time.Hour), now + int64(1000*time.Hour), now + int64(100_000*time.Hour), math.MaxInt64 - 1, math.MaxInt64}
	for _, d := range long {
		put(s, fmt.Sprint(d), 0, 1, d, now)
	}
	s.Sweep(now + int64(50*time.Millisecond))
	if got := s.Stats().Entries; got != int64(len(long)) {
		t.Errorf("%d entries after 50 ms, want the %d long-lived", got, len(long))
	}
	s.Sweep(now + int64(200_000*time.Hour))
	if got := s.Stats().Entries; got != 2 {
		t.Errorf("%d entries after 200,000 hours, want 2", got)
	}
	check(t, s)
}

func TestResize(t *testing.T) {
	s := New[int](Config{MaxBytes: 64 << 20})
	for i := range 10_000 {
		put(s, fmt.Sprint(i), i, 4000, math.MaxInt64, 0)
	}
	for _, budget := range []int64{32 << 20, 1 << 20, 0, -5, 64 << 20} {
		s.Resize(budget)
		st := s.Stats()
		if st.Bytes > max(0, budget) || st.MaxBytes > max(0, budget) {
			t.Errorf("after Resize(%d): %+v", budget, st)
		}
		check(t, s)
	}
	put(s, "again", 1, 4000, math.MaxInt64, 0)
	if s.Get("again", 0) == nil {
		t.Error("nothing is kept after the budget was raised again")
	}
}

func TestRangeAndDeleteFunc(t *testing.T) {
	s := New[int](Config{MaxBytes: 64 << 20})
	for i := range 5000 {
		put(s, fmt.Sprint(i), i, 10, int64(i), 0)
	}
	var seen []int
	for e := range s.Range {
		if e.Value%2 == 0 {
			del(s, e.Key) // allowed: no lock is held
		}
		seen = append(seen, e.Value)
	}
	slices.Sort(seen)
	if len(seen) != 5000 || seen[0] != 0 || seen[4999] != 4999 {
		t.Errorf("Range yielded %d entries, want all 5000", len(seen))
	}
	n := 0
	for range s.Range {
		if n++; n == 10 {
			break
		}
	}
	if n != 10 {
		t.Errorf("Range went on after its yield returned false: %d", n)
	}
	if got := s.DeleteFunc(func(e *Entry[int]) bool { return e.Value < 1000 }); got != 500 {
		t.Errorf("DeleteFunc = %d, want the 500 odd ones below 1000", got)
	}
	for e := range s.Range {
		if e.Value < 1000 {
			t.Errorf("%d was not deleted", e.Value)
		}
	}
	check(t, s)
	if got := s.DeleteFunc(func(*Entry[int]) bool { return true }); got != 2000 || s.Stats().Entries != 0 {
		t.Errorf("DeleteFunc = %d with %d left, want 2000 and 0", got, s.Stats().Entries)
	}
	check(t, s)
}

// A caller's table for a shard is guarded by Lock and by transactions alike; the race detector judges.
func TestSideTables(t *testing.T) {
	s := New[int](Config{MaxBytes: 64 << 20, Shards: 4})
	tables := make([]map[string]int, s.Shards())
	for i := range tables {
		tables[i] = map[string]int{}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 1000 {
			s.Lock(i % 4)
			clear(tables[i%4])
			s.Unlock(i % 4)
		}
	}()
	for i := range 1000 {
		tx := s.Begin(fmt.Sprint(i))
		tables[tx.Shard()][fmt.Sprint(i)]++
		tx.End()
	}
	<-done
}

func TestAllocations(t *testing.T) {
	s := New[[]byte](Config{MaxBytes: 64 << 20})
	put(s, "present", []byte("v"), 1, 100, 0)
	value := []byte("w")
	tests := []struct {
		name string
		want float64
		f    func()
	}{
		{"hit", 0, func() { s.Get("present", 0) }},
		{"expired", 0, func() { s.Get("present", 100) }},
		{"miss", 0, func() { s.Get("absent", 0) }},
		{"Find", 0, func() { s.Find("present") }},
		{"transaction", 0, func() { tx := s.Begin("absent"); tx.Entry(); tx.Delete(); tx.End() }},
		{"Sweep", 0, func() { s.Sweep(0) }},
		{"Stats", 0, func() { s.Stats(); s.Expired(0) }},
		{"replacement", 1, func() { put(s, "present", value, 1, 100, 0) }},
		{"insert", 2, func() { put(s, "another", value, 1, 100, 0); del(s, "another") }},
	}
	for _, tt := range tests {
		if got := testing.AllocsPerRun(1000, tt.f); got > tt.want {
			t.Errorf("%s: %v allocations, want at most %v", tt.name, got, tt.want)
		}
	}
}
