package benchmarks

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/nearcache/nearcache/internal/shard"
)

const (
	memoryEnv = "NEARCACHE_BENCHMARKS_MEMORY" // set: this process measures the memory of a store, and that is its memorySpec as JSON

	memoryKeyBytes, memoryValueBytes = 24, 100
)

type memorySpec struct {
	Store   string
	Entries int
	Out     string // file for the memoryUse
}

// memoryUse is what a full store takes.
type memoryUse struct {
	Overhead float64 // bytes per entry that is there, besides key and value
	Cycle    float64 // ms of processor time of one collection
	PerGB    float64 // s of processor time that collections take per GB allocated, with GOGC=100
	Present  float64 // percent of what was set that is there
}

// BenchmarkMemory fills stores with keys of 24 bytes and values of 100, each in a process of its own, and measures their heap and what the garbage
// collector has to do for it. near and shard are the two tiers' stores; entries of the former have a source and a lease.
func BenchmarkMemory(b *testing.B) {
	for _, entries := range []int{1_000_000, 4_000_000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			cycles := make(map[string]float64)
			once(b, func() {
				for _, name := range memoryStores(entries) {
					if !chosen(name) {
						continue
					}
					u := measureMemory(b, memorySpec{Store: name, Entries: entries})
					cycles[name] = u.Cycle
					b.ReportMetric(u.Overhead, name+"-B/entry")
					b.ReportMetric(u.Cycle, name+"-gc-ms")
					b.ReportMetric(u.PerGB, name+"-gc-s/GB")
					b.ReportMetric(u.Present, name+"-present-%")
				}
			})
			for _, tier := range []string{"near", "shard"} {
				if bare := cycles["xsync.Map"]; bare > 0 && cycles[tier] > 0 {
					b.ReportMetric(cycles[tier]/bare, tier+"-gc-x-xsync.Map")
				}
			}
		})
	}
}

// memoryStores are the names of the two tiers and of the other stores; of more than a million entries only of some, as filling takes its time.
func memoryStores(entries int) []string {
	names := []string{"near", "shard"}
	for _, m := range locals()[1:] {
		if entries <= 1_000_000 || slices.Contains([]string{"xsync.Map", "otter", "golang-lru"}, m.name) {
			names = append(names, m.name)
		}
	}
	return names
}

// measureMemory runs TestMemoryOfAStore in a process of its own.
func measureMemory(b *testing.B, spec memorySpec) (u memoryUse) {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	spec.Out = filepath.Join(b.TempDir(), "use.json")
	settings, err := json.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), exe, "-test.run=^TestMemoryOfAStore$")
	cmd.Env = append(os.Environ(), memoryEnv+"="+string(settings))
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", spec.Store, err, out)
	}
	text, err := os.ReadFile(spec.Out)
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(text, &u); err != nil {
		b.Fatal(err)
	}
	return u
}

// TestMemoryOfAStore is what the process that BenchmarkMemory starts does.
func TestMemoryOfAStore(t *testing.T) {
	settings := os.Getenv(memoryEnv)
	if settings == "" {
		t.Skip("it is BenchmarkMemory's")
	}
	var spec memorySpec
	if err := json.Unmarshal([]byte(settings), &spec); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(memoryOf(t, spec))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spec.Out, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func memoryOf(t *testing.T, spec memorySpec) (u memoryUse) {
	t.Helper()
	before := liveHeap()
	l := newStore(t, spec)
	for i := range spec.Entries {
		l.set(valueKey(memoryValueBytes, i), newValue(valueKey(memoryValueBytes, i)))
		if l.settle != nil && i%1000 == 0 {
			l.settle()
		}
	}
	if l.settle != nil {
		l.settle()
	}
	heap := liveHeap() - before
	var cycles []float64
	for range 3 {
		begin := usageNow()
		runtime.GC()
		cycles = append(cycles, float64(usageNow().since(begin).CPU)/1e6)
	}
	present := 0
	for i := range spec.Entries {
		if l.peek(valueKey(memoryValueBytes, i)) {
			present++
		}
	}
	u.Overhead = float64(heap)/float64(present) - memoryKeyBytes - memoryValueBytes
	u.Cycle = median(cycles)
	u.PerGB = u.Cycle / 1e3 / (float64(heap) / 1e9)
	u.Present = 100 * float64(present) / float64(spec.Entries)
	return u
}

// newStore makes a store with room for a quarter more than the entries, as its shards are not equally full.
func newStore(t *testing.T, spec memorySpec) local {
	t.Helper()
	makers := append(locals(), maker{"near", localEngine}, maker{"shard", localShard})
	at := slices.IndexFunc(makers, func(m maker) bool { return m.name == spec.Store })
	if at < 0 {
		t.Fatalf("no store %q", spec.Store)
	}
	return makers[at].make(t, spec.Entries+spec.Entries/4)
}

// localShard is the owner's store.
func localShard(testing.TB, int) local {
	s := shard.New(shard.Config{MaxBytes: 1 << 40})
	until := int64(lifetime)
	return local{
		peek: func(key string) bool { v, _ := s.Get(key, 1); return v != nil },
		set: func(key string, value []byte) {
			s.Set(key, shard.Value{Bytes: value, Soft: until, Hard: until}, shard.Cond{}, 1)
		},
	}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what the first one found to have a finalizer
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return int64(ms.HeapAlloc)
}
