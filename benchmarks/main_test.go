package benchmarks

import (
	"cmp"
	"flag"
	"os"
	"slices"
	"testing"
	"time"
)

var (
	rounds       = flag.Int("rounds", 5, "rounds of a benchmark, at least")
	slice        = flag.Duration("slice", 250*time.Millisecond, "how long a system runs in a round")
	only         = flag.String("only", "", "measure this system alone")
	ownerProfile = flag.String("ownercpuprofile", "", "file for a CPU profile of the owner process")
	tracesDir    = flag.String("traces", "../testdata/traces", "directory of the *.keys.zst traces")
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		os.Exit(runOwner())
	}
	if reader := os.Getenv(crowdEnv); reader != "" {
		os.Exit(runCrowd(reader))
	}
	os.Exit(m.Run())
}

// inRounds calls round for every round, with the systems in another order each time.
func inRounds[S any](b *testing.B, systems []S, round func(order []S)) {
	b.Helper()
	order := slices.Clone(systems)
	eachRound(b, func() {
		round(order)
		order = append(order[1:], order[0])
	})
}

// eachRound calls round as often as -rounds and -benchtime want. The time that the testing package measures means nothing here, and is not
// reported.
func eachRound(b *testing.B, round func()) {
	b.Helper()
	done := 0
	for b.Loop() {
		round()
		done++
	}
	for ; done < *rounds; done++ {
		round()
	}
	b.ReportMetric(0, "ns/op") // hidden
}

// once calls do once, however often the testing package wants it: again it would find the same.
func once(b *testing.B, do func()) {
	b.Helper()
	for done := false; b.Loop(); done = true {
		if !done {
			do()
		}
	}
	b.ReportMetric(0, "ns/op") // hidden
}

// median returns the middle one of xs.
func median[T cmp.Ordered](xs []T) T {
	xs = slices.Sorted(slices.Values(xs))
	return xs[len(xs)/2]
}

// ratios divides pairwise.
func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// chosen tells whether -only allows a system.
func chosen(name string) bool { return *only == "" || *only == name }
