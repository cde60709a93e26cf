package hotkey

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

const second = Window

// The rates of all keys are within the error that is stated for each, and nothing that is used more than the least used key of its set is
// missing, after every window.
func TestRatesAreWithinTheirErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	recorded, next := mails(t), 0
	for name, tt := range map[string]struct {
		draw      source
		perSecond int
		windows   int
		recall    float64 // of the 16 most used keys
	}{
		"domains_mail": {func(*rand.Rand) string { next++; return recorded[(next-1)%len(recorded)] }, 5000, 5, 0.98},
		"million":      {million, 20_000, 10, 1.0 / 16},
		"flat":         {flatCatalogue, 50_000, 5, 0},
		"steep":        {steepCatalogue(), 50_000, 5, 0.98},
	} {
		t.Run(name, func(t *testing.T) {
			k, exact, now := New(Config{}, 0), naive{}, int64(0)
			for range tt.windows {
				for range tt.perSecond {
					key := tt.draw(r)
					k.Count(key, Near, 1, now)
					exact[key]++
				}
				now += second
				k.Tick(now)
				exact.halve()
				exact.check(t, k)
			}
			if got := exact.recall(k, 16); got < tt.recall {
				t.Errorf("%.2f of the 16 most used keys are among the first 16, want %.2f", got, tt.recall)
			}
			if name == "domains_mail" {
				top := k.Top(3)
				for i, share := range []float64{0.210, 0.158, 0.118} {
					part := top[i].Rate / float64(tt.perSecond) / (1 - math.Pow(0.5, float64(tt.windows)))
					if math.Abs(part-share) > 0.02 || top[i].Error > top[i].Rate/100 {
						t.Errorf("%q has %.3f of the uses, give or take %.1f a second, want %.3f", top[i].Key, part, top[i].Error, share)
					}
				}
			}
		})
	}
}

// The table needs the same memory for a million keys as for a thousand, and their lengths do not add up.
func TestMemoryIsBounded(t *testing.T) {
	k := New(Config{PerSecond: 1}, 0)
	long := make([]byte, 60_000)
	for i := range 100_000 {
		key := fmt.Sprint("key:", i)
		if i%10_000 == 0 {
			key += string(long)
		}
		k.Count(key, Served, 1, 0)
		k.Count(key, Origin, 1, 0)
	}
	k.Tick(second)
	const slots = stripes * setsPerStripe * ways
	if got := len(k.Top(math.MaxInt)); got != slots {
		t.Errorf("got %d keys, want %d", got, slots)
	}
	if got := k.Len(); got != MaxHot {
		t.Errorf("got %d hot keys, want %d", got, MaxHot)
	}
	kept := 0
	for i := range k.table.stripes {
		for j := range k.table.stripes[i].sets {
			for _, e := range k.table.stripes[i].sets[j].slots {
				kept += cap(e.key)
			}
		}
	}
	if want := slots * keepKey; kept > want {
		t.Errorf("the slots keep %d bytes of keys, want %d at most", kept, want)
	}
}

func TestCountingDoesNotAllocate(t *testing.T) {
	k, keys := New(Config{}, 0), make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("catalog:product:%08d", i)
		k.Count(keys[i], Owner, 1, 0)
	}
	i := 0
	if got := testing.AllocsPerRun(1000, func() { i++; k.Count(keys[i%len(keys)], Owner, 1, 0) }); got > 0.2 { // sets that were never full
		t.Errorf("got %v allocations for a count, want none", got)
	}
}

// A catalogue without an outstanding key, and ten million others, makes nothing hot in a minute; the hot key of the others is found.
func TestOnlyWhatIsReadOftenBecomesHot(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name, tt := range map[string]struct {
		draw             source
		reads, threshold int
		seconds          int
		want             []string
	}{
		"flat":                     {flatCatalogue, 50_000, 500, 60, nil},
		"flat, a low threshold":    {flatCatalogue, 50_000, 25, 20, nil},
		"million":                  {million, 20_000, 500, 3, []string{"hot"}},
		"steep":                    {steepCatalogue(), 50_000, 2_000, 3, []string{"product:0"}},
		"steep, by one of 25":      {steepCatalogue(), 2_000, 500, 10, nil},
		"steep, a tenth by itself": {steepCatalogue(), 5_000, 200, 3, []string{"product:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := New(Config{PerSecond: tt.threshold}, 0)
			for now := int64(0); now < int64(tt.seconds)*second; now += second / 10 {
				for range tt.reads / 10 {
					k.Count(tt.draw(r), Near, 1, now)
				}
				k.Tick(now)
			}
			if got := k.Read(); !slices.Equal(got, tt.want) {
				t.Errorf("got %q hot, want %q", got, tt.want)
			}
		})
	}
}

// A key comes at the threshold, stays at half of it, and goes after ten windows below that. Uses by others make none hot.
func TestAHotKeyCoolsSlowly(t *testing.T) {
	k, now := New(Config{PerSecond: 100, Pin: []string{"pinned"}}, 0), int64(0)
	window := func(kind Kind, uses uint32) []string {
		k.Count("k", kind, uses, now)
		now += second
		return k.Tick(now)
	}
	window(Served, 1000)
	window(Owner, 99)
	if k.IsHot("k") {
		t.Error("99 reads made it hot, want 100")
	}
	k.Count("k", Owner, 60, now)
	k.Count("k", Near, 40, now)
	if !k.IsHot("k") {
		t.Fatal("100 reads in a window did not make it hot at once")
	}
	for range 3 * quietWindows {
		if cooled := window(Near, 50); len(cooled) > 0 {
			t.Fatal("half of the threshold let it cool")
		}
	}
	window(Served, 1)
	if got := k.Read(); !slices.Equal(got, []string{"pinned"}) || !k.IsHot("k") {
		t.Errorf("got %q read in the last window, want what is pinned; k is hot: %v", got, k.IsHot("k"))
	}
	window(Near, 50)
	for i := range quietWindows {
		cooled := window(Near, 49)
		if last := i == quietWindows-1; last != slices.Equal(cooled, []string{"k"}) || last == k.IsHot("k") {
			t.Fatalf("quiet window %d: got %q cooled, hot: %v", i+1, cooled, k.IsHot("k"))
		}
	}
	if !k.IsHot("pinned") || k.Len() != 1 {
		t.Errorf("got %q hot, want what is pinned", k.Read())
	}
	for _, key := range k.Top(1) {
		if key.Key != "k" || key.Uses[Served] != 1001 || key.HotSince != 0 {
			t.Errorf("got %+v", key)
		}
	}
}

// After a pause no window is left out, and a very long one costs no more than a short one.
func TestTickAfterAPause(t *testing.T) {
	k := New(Config{PerSecond: 10}, 0)
	k.Count("k", Origin, 1<<20, 0)
	k.Tick(5 * second)
	if got := k.Top(1); len(got) != 1 || got[0].Rate != 1<<15 {
		t.Errorf("got %+v after five windows, want a rate of 2^15", got)
	}
	if cooled := k.Tick(math.MaxInt64 / 2); !slices.Equal(cooled, []string{"k"}) {
		t.Errorf("got %q cooled, want k", cooled)
	}
	k.Loaded("k", 1, math.MaxInt64/2) // forgotten: it has no rate
	if got := k.Top(1); len(got) != 0 {
		t.Errorf("got %+v, want nothing", got)
	}
}

func TestKeysAreSafeForConcurrentUse(t *testing.T) {
	k := New(Config{PerSecond: 100}, 0)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				now := int64(i) * second / 100
				k.Count(fmt.Sprint(i%50), Kind(i)%Kinds, 3, now)
				k.Loaded(fmt.Sprint(i%50), 1, now)
				if i%100 == g {
					k.Tick(now)
					k.Top(10)
					k.Read()
				}
				k.IsHot("1")
			}
		})
	}
	wg.Wait()
	total := uint64(0)
	for _, key := range k.Top(math.MaxInt) {
		for _, n := range key.Uses {
			total += n
		}
	}
	if want := uint64(4 * 2000 * 3); total != want {
		t.Errorf("got %d uses, want %d", total, want)
	}
}

func BenchmarkCount(b *testing.B) {
	k, keys, r := New(Config{PerSecond: 500}, 0), make([]string, 1<<16), rand.New(rand.NewPCG(1, 2))
	draw := steepCatalogue()
	for i := range keys {
		keys[i] = draw(r)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k.Count(keys[i&(len(keys)-1)], Near, 1, 0)
	}
}
