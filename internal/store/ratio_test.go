package store

import (
	"bufio"
	"bytes"
	"container/list"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sort"
	"testing"
)

var tracesDir = flag.String("traces", "", "directory with *.keys.zst traces for TestTraceHitRatios")

// lru is the oracle of the differential tests: an exact LRU.
type lru struct {
	size  int
	order *list.List
	items map[string]*list.Element
}

func newLRU(size int) *lru {
	return &lru{size: size, order: list.New(), items: map[string]*list.Element{}}
}

// request tells whether key was resident, and makes it so.
func (l *lru) request(key string) bool {
	if el, ok := l.items[key]; ok {
		l.order.MoveToFront(el)
		return true
	}
	if len(l.items) == l.size {
		delete(l.items, l.order.Remove(l.order.Back()).(string))
	}
	l.items[key] = l.order.PushFront(key)
	return false
}

// ratio replays the keys through a read-through cache of size entries and returns its hits in percent.
func ratio(keys []string, cfg Config) float64 {
	cfg.MaxBytes, cfg.hash = 1<<50, stableHash
	s := New[struct{}](cfg)
	hits := 0
	for _, k := range keys {
		if s.Get(k, 0) != nil {
			hits++
			continue
		}
		put(s, k, struct{}{}, 0, math.MaxInt64, 0)
	}
	return 100 * float64(hits) / float64(len(keys))
}

func lruRatio(keys []string, size int) float64 {
	l, hits := newLRU(size), 0
	for _, k := range keys {
		if l.request(k) {
			hits++
		}
	}
	return 100 * float64(hits) / float64(len(keys))
}

// stableHash is FNV-1a with a finalizer: ratios do not vary from run to run.
func stableHash(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// zipf draws n keys of ids whose popularity falls with the power s of their rank; every drift requests the ranks move
// on by one in a hundred ids (0: never).
func zipf(seed uint64, n, ids int, s float64, drift int) []string {
	sum := make([]float64, ids)
	total := 0.0
	for i := range sum {
		total += math.Pow(float64(i+1), -s)
		sum[i] = total
	}
	r := rand.New(rand.NewPCG(seed, 1))
	keys := make([]string, n)
	offset := 0
	for i := range keys {
		if drift > 0 && i%drift == drift-1 {
			offset += ids / 100
		}
		rank := sort.SearchFloat64s(sum, r.Float64()*total)
		keys[i] = fmt.Sprint((rank + offset) % ids)
	}
	return keys
}

// soonOrNever is a stream of fresh keys, each of which is read twice more within reach requests, or never again.
func soonOrNever(seed uint64, n, reach int) []string {
	r := rand.New(rand.NewPCG(seed, 2))
	keys := make([]string, n)
	for i := range keys {
		if keys[i] != "" {
			continue
		}
		keys[i] = fmt.Sprint(i)
		if r.IntN(2) == 0 {
			for range 2 {
				if j := i + 1 + r.IntN(reach); j < n && keys[j] == "" {
					keys[j] = keys[i]
				}
			}
		}
	}
	return keys
}

func loop(n, ids int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(i % ids)
	}
	return keys
}

// scans is zipf with a pass over 5*size fresh keys every 20,000 requests.
func scans(seed uint64, n, size int) []string {
	keys := zipf(seed, n, 100_000, 1, 0)
	fresh := 0
	for i := 20_000; i+5*size < n; i += 20_000 {
		for j := range 5 * size {
			keys[i+j] = fmt.Sprint("scan", fresh)
			fresh++
		}
	}
	return keys
}

// The policy is never materially worse than LRU, whatever the load, and much better where frequency tells something.
func TestHitRatioAgainstLRU(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine, nothing for the race detector: runs without -race")
	}
	const n, size = 400_000, 1000
	tests := []struct {
		name string
		keys []string
		gain float64 // points above LRU, at least
	}{
		{"zipf", zipf(1, n, 100_000, 1, 0), 6},
		{"zipf, drifting", zipf(2, n, 100_000, 1, 20_000), 1.5},
		{"zipf with scans", scans(3, n, size), 5},
		{"read again soon or never", soonOrNever(4, n, size/2), -0.5},
		{"read again somewhat later or never", soonOrNever(5, n, size), -1},
		{"loop a little larger than the cache", loop(n, size+size/10), 40},
		{"fits", zipf(6, n, size, 0.8, 0), -0.6}, /* shards are not equally full */
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := lruRatio(tt.keys, size)
			for _, shards := range []int{1, 4} {
				got := ratio(tt.keys, Config{MaxEntries: size, Shards: shards})
				t.Logf("%d shards: %.2f %%, LRU %.2f %%", shards, got, base)
				if got < base+tt.gain {
					t.Errorf("%d shards: hit ratio %.2f %%, want at least %.2f %% (LRU has %.2f %%)", shards, got, base+tt.gain, base)
				}
			}
		})
	}
}

// TestTraceHitRatios replays real traces: go test ./internal/store -run TraceHitRatios -v -traces=DIR.
func TestTraceHitRatios(t *testing.T) {
	if *tracesDir == "" {
		t.Skip("no -traces=DIR")
	}
	sizes := map[string][]int{
		"arc_oltp":          {250, 500, 1000, 2000, 5000, 10000, 15000},
		"cache2k_orm-night": {625, 1250, 2500, 5000, 10000},
		"cache2k_web12":     {75, 300, 1200, 3000},
		"corda_vault":       {512, 1024, 8192},
		"domains_mail":      {50, 100, 200, 500, 1000, 2000},
	}
	files, err := filepath.Glob(filepath.Join(*tracesDir, "*.keys.zst"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces in %s: %v", *tracesDir, err)
	}
	sum, sumLRU, cells := 0.0, 0.0, 0
	for _, f := range files {
		name := filepath.Base(f[:len(f)-len(".keys.zst")])
		keys := readTrace(t, f)
		for _, size := range sizes[name] {
			base := lruRatio(keys, size)
			one, many := ratio(keys, Config{MaxEntries: int64(size), Shards: 1}), ratio(keys, Config{MaxEntries: int64(size)})
			t.Logf("%-18s %6d  one shard %6.2f  default %6.2f  LRU %6.2f", name, size, one, many, base)
			if size >= 500 && one < base-0.5 {
				t.Errorf("%s at %d entries: %.2f %%, want at most half a point under LRU's %.2f %%", name, size, one, base)
			}
			sum, sumLRU, cells = sum+one, sumLRU+base, cells+1
		}
	}
	t.Logf("mean of %d cells: %.2f, LRU %.2f", cells, sum/float64(cells), sumLRU/float64(cells))
}

func readTrace(t *testing.T, path string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "zstd", "-dcq", path).Output()
	if err != nil {
		t.Skipf("%s: zstd: %v", path, err)
	}
	var keys []string
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		keys = append(keys, sc.Text())
	}
	return keys
}
