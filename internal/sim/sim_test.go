package sim

import (
	"flag"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("sim.seeds", 1, "seeds of every profile")
	first   = flag.Uint64("sim.first", 1, "the first of them")
	profile = flag.String("sim.profile", "", "only profiles whose name contains this")
	off     = flag.String("sim.off", "", "a switch of the mutation gate, to be turned off")
)

// profiles are the clusters that are simulated: some with everything that can go wrong, some with more of one thing.
func profiles() map[string]Config {
	all := map[string]Config{
		"calm": Base(), "normal": Normal(), "stress": Stress(),
	}
	add := func(name string, c Config, change func(*Config, *Faults)) {
		change(&c, &c.Faults)
		all[name] = c
	}
	add("three", Normal(), func(c *Config, _ *Faults) { c.Nodes = 3 })
	add("ten", Stress(), func(c *Config, _ *Faults) { c.Nodes, c.Keys, c.Reads = 10, 24, 1000 })
	add("short", Stress(), func(c *Config, _ *Faults) { c.NearTTL = time.Second })
	add("writes", Stress(), func(c *Config, _ *Faults) { c.Writes, c.Duration = 50, time.Minute })
	add("slow", Stress(), func(_ *Config, f *Faults) { f.SlowLoads, f.SlowLoad = 0.5, 9*time.Second })
	add("late", Normal(), func(_ *Config, f *Faults) { f.SlowView, f.SlowFor, f.Every = 0.2, time.Minute, 3*time.Second })

	add("lag", Normal(), func(c *Config, _ *Faults) { c.Lag = 500 * time.Millisecond })

	tagged := func(name string, c Config) {
		add(name, c, func(c *Config, _ *Faults) { c.Keys, c.TagShare, c.AckAllShare = 24, 0.7, 0.3 })
	}
	tagged("tags", Normal())
	add("tags of some", all["tags"], func(_ *Config, f *Faults) { f.Crash, f.Leave, f.Listed = false, false, true })
	tagged("tags in stress", Stress())

	handing := func(name string, c Config) {
		add(name, c, func(c *Config, _ *Faults) { c.HandOver, c.Keys = true, 24 })
	}
	handing("heirs", Normal())
	handing("heirs in stress", Stress())
	handing("heirs late", all["late"])

	replicated := func(name string, c Config) {
		add(name, c, func(c *Config, _ *Faults) { c.Replicas, c.Keys = 2, 24 })
	}
	replicated("copies", Normal())
	replicated("copied", Stress())
	replicated("copied late", all["late"])
	spread := func(name string, c Config) {
		add(name, c, func(c *Config, _ *Faults) { c.Spread, c.NearTTL, c.Replicas, c.Keys, c.Writes = true, 0, 3, 24, 20 })
	}
	spread("spread calm", Base())
	spread("spread", Normal())
	spread("spread stress", Stress())
	spread("spread late", all["late"])
	add("copies of ten", all["ten"], func(c *Config, _ *Faults) { c.Replicas = 3 })

	// More of one thing.
	only := func(name string, change func(*Config, *Faults)) {
		c := Base()
		c.Writes = 10
		c.Faults.Every = 3 * time.Second
		add(name, c, change)
	}
	only("overlap", func(c *Config, f *Faults) { f.SlowLoads, f.SlowLoad, c.Writes = 0.5, 3*time.Second, 20 })
	only("overtake", func(c *Config, f *Faults) { f.TailShare, f.Tail, c.Writes = 0.3, 40*time.Millisecond, 40 })
	only("tags overtake", func(c *Config, f *Faults) {
		c.TagShare, c.AckAllShare, c.Writes, c.Duration = 1, 0.5, 20, time.Minute
		f.TailShare, f.Tail, f.SlowLoads, f.SlowLoad = 0.3, 40*time.Millisecond, 0.5, time.Second
	})
	only("tags and islands", func(c *Config, f *Faults) {
		c.TagShare, c.AckAllShare, f.Isolate, f.Listed, f.Cut = 0.9, 0.3, true, true, true
	})
	only("tags and copies", func(c *Config, f *Faults) {
		c.Replicas, c.Keys, c.TagShare, c.AckAllShare = 2, 24, 0.9, 0.3
		f.Crash, f.Leave, f.TailShare, f.Tail = true, true, 0.02, time.Second
	})
	only("detours", func(_ *Config, f *Faults) {
		f.TailShare, f.Tail, f.SlowLoads, f.SlowLoad = 0.1, 200*time.Millisecond, 0.5, 5*time.Second
	})
	only("queues", func(c *Config, f *Faults) {
		f.Cut, f.OneWay, c.Writes, c.Duration = true, true, 60, time.Minute
		f.TailShare, f.Tail, f.SlowLoads, f.SlowLoad = 0.3, 200*time.Millisecond, 0.5, time.Second
	})
	only("tails", func(_ *Config, f *Faults) { f.TailShare, f.Tail, f.Loss, f.Holes = 0.05, 3*time.Second, 0.01, 0.01 })
	only("restarts", func(_ *Config, f *Faults) { f.Crash, f.Every = true, 2*time.Second })
	only("islands", func(_ *Config, f *Faults) { f.Isolate = true })
	only("seldom", func(c *Config, f *Faults) {
		f.Isolate, f.Listed, c.AllShare = true, true, 0
		c.Nodes, c.Keys, c.Reads, c.Writes, c.NearTTL, c.TTL = 3, 200, 40, 30, time.Second, 5*time.Minute
	})
	only("lonely", func(_ *Config, f *Faults) { f.Isolate, f.Listed = true, true })
	only("cuts", func(_ *Config, f *Faults) { f.Cut, f.OneWay = true, true })
	only("moves", func(_ *Config, f *Faults) { f.Leave, f.SlowView, f.SlowFor = true, 0.2, 20*time.Second })
	only("aged", func(c *Config, f *Faults) {
		c.LoadTimeout, c.NearTTL, c.Keys = 30*time.Second, time.Second, 24
		f.Leave, f.Isolate, f.SlowLoads, f.SlowLoad = true, true, 0.3, 25*time.Second
	})
	only("crashes", func(c *Config, f *Faults) {
		c.Replicas, c.Keys, c.Writes = 2, 24, 20
		f.Crash, f.Cut, f.TailShare, f.Tail, f.Every = true, true, 0.02, time.Second, 2*time.Second
	})
	only("copies move", func(c *Config, f *Faults) {
		c.Replicas, c.Writes, c.Duration = 2, 20, time.Minute
		f.Leave, f.Isolate, f.SlowView, f.SlowFor, f.TailShare, f.Tail = true, true, 0.3, 20*time.Second, 0.02, time.Second
	})
	only("heirs move", func(c *Config, f *Faults) {
		c.HandOver, c.Keys, c.Writes, c.Duration = true, 24, 20, time.Minute
		f.Leave, f.SlowView, f.SlowFor, f.TailShare, f.Tail = true, 0.3, 20*time.Second, 0.02, time.Second
	})
	only("heirs leave", func(c *Config, f *Faults) {
		c.HandOver, c.Keys, c.Reads, c.TagShare, c.AckAllShare = true, 60, 1000, 0.2, 0.2
		f.Leave, f.TailShare, f.Tail, f.Every = true, 0.05, 300*time.Millisecond, time.Second
	})
	only("heirs overtake", func(c *Config, f *Faults) {
		c.HandOver, c.Keys, c.Reads, c.Writes, c.NearTTL, c.Duration = true, 40, 1500, 60, 10*time.Millisecond, time.Minute
		f.Leave, f.TailShare, f.Tail, f.Every = true, 0.3, 45*time.Millisecond, time.Second
	})
	only("heirs and tags", func(c *Config, f *Faults) {
		c.HandOver, c.TagShare, c.Keys, c.Writes, c.NearTTL = true, 1, 40, 2, 10*time.Millisecond
		f.Leave, f.TailShare, f.Tail, f.Every = true, 0.3, 45*time.Millisecond, time.Second
		f.Learn = 500 * time.Millisecond
	})
	only("heirs and copies", func(c *Config, f *Faults) {
		c.HandOver, c.Replicas, c.Keys, c.Writes = true, 2, 24, 20
		f.Leave, f.Crash, f.Cut, f.TailShare, f.Tail = true, true, true, 0.02, time.Second
	})
	staled := func(name string, c Config, change func(*Config, *Faults)) {
		c.TTL, c.StaleOnError, c.NotFoundTTL, c.NearTTL, c.ExpireShare, c.AllShare = 3*time.Second, 20*time.Second, 2*time.Second, time.Second, 0.3, 0.02
		c.Faults.FailedLoads = 0.3
		add(name, c, change)
	}
	staled("stale for long", Base(), func(c *Config, _ *Faults) { // few ask for most keys
		c.Keys, c.Reads, c.Writes, c.LoadTimeout, c.StaleOnError = 200, 150, 20, 500*time.Millisecond, time.Minute
	})
	staled("stale", Normal(), func(c *Config, _ *Faults) { c.ManyShare = 0.3 })
	staled("stale in stress", Stress(), func(*Config, *Faults) {})
	updated := func(name string, c Config, change func(*Config, *Faults)) {
		c.Updates, c.Writes, c.Faults.Every = true, 20, 3*time.Second
		add(name, c, change)
	}
	updated("updates calm", Base(), func(c *Config, f *Faults) { c.ManyShare, f.SlowLoads, f.SlowLoad = 0.3, 0.3, time.Second })
	updated("updates", Normal(), func(_ *Config, f *Faults) { f.Crash, f.Leave, f.Listed = false, false, true })
	updated("updates in stress", Stress(), func(c *Config, _ *Faults) { c.ManyShare = 0.3 })
	staled("everything", Stress(), func(c *Config, _ *Faults) {
		c.Keys, c.Writes, c.TTL, c.NearTTL, c.Replicas, c.HandOver, c.Updates = 40, 20, 20*time.Second, 10*time.Second, 2, true, true
		c.ManyShare, c.TagShare, c.AckAllShare = 0.3, 0.2, 0.2
	})
	halved := func(name string, c Config, change func(*Config, *Faults)) {
		c.Nodes, c.Keys, c.Writes, c.Replicas = 8, 24, 20, 2
		c.Faults.Halve, c.Faults.Every = true, 2*time.Second
		add(name, c, change)
	}
	halved("halved", Base(), func(*Config, *Faults) {})
	halved("halved in stress", Stress(), func(c *Config, _ *Faults) { c.Mixed, c.HandOver = 0.1, true })
	only("pauses", func(_ *Config, f *Faults) { f.Pause = true })
	for name, c := range all {
		c.Rules = Complete()
		all[name] = c
	}
	return all
}

// sum adds up results.
type sum struct {
	runs, failing                                int
	reads, near, stale, loads, failed, beyond    int
	acked, partial, backwards, copied, inherited int
	worst, worstPartial, longest                 time.Duration
	firstBad                                     Result
	kinds                                        map[string]int
}

func (s *sum) add(r Result) {
	s.runs++
	s.reads += r.Reads
	s.near += r.NearHits
	s.stale += r.Stale
	s.loads += r.Loads
	s.failed += r.Failed
	s.acked += r.Acked
	s.partial += r.Partial
	s.backwards += r.Backwards
	s.copied += r.Copied
	s.inherited += r.Inherited
	s.beyond += r.Count["stale"]
	s.worst, s.worstPartial, s.longest = max(s.worst, r.Worst), max(s.worstPartial, r.WorstPartial), max(s.longest, r.Longest)
	for k, n := range r.Count {
		s.kinds[k] += n
	}
	if len(r.Violations) > 0 {
		s.failing++
		if s.failing == 1 || r.Seed < s.firstBad.Seed {
			s.firstBad = r
		}
	}
}

// runAll simulates seeds on all processors. Each run is single-threaded.
func runAll(cfg Config, from uint64, n int) *sum {
	total := &sum{kinds: make(map[string]int)}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range next {
				r := Run(cfg, seed)
				mu.Lock()
				total.add(r)
				mu.Unlock()
			}
		})
	}
	for i := range n {
		next <- from + uint64(i)
	}
	close(next)
	wg.Wait()
	return total
}

// report fails the test with the first bad seed and the event log of its key.
func (s *sum) report(t *testing.T, name string, cfg Config) {
	t.Helper()
	t.Logf("%s: %d seeds, %d reads, %d near hits, %d stale, %d loads, %d copies, %d inherited, %d errors, %d acknowledged, %d partial, worst %v, worst after a partial error %v, longest get %v",
		name, s.runs, s.reads, s.near, s.stale, s.loads, s.copied, s.inherited, s.failed, s.acked, s.partial, s.worst, s.worstPartial, s.longest)
	if s.failing == 0 {
		return
	}
	v := s.firstBad.Violations[0]
	t.Errorf("%s: %d of %d seeds fail, %v; seed %d: %s: %s", name, s.failing, s.runs, s.kinds, s.firstBad.Seed, v.Kind, v.Text)
	t.Log("\n" + strings.Join(upToViolation(Trace(cfg, s.firstBad.Seed, v.Key)), "\n"))
}

// upToViolation cuts an event log behind its first violation, and to what is readable.
func upToViolation(log []string) []string {
	const most = 150
	if i := slices.IndexFunc(log, func(l string) bool { return strings.Contains(l, "VIOLATION") }); i >= 0 {
		log = log[:i+1]
	}
	return log[max(0, len(log)-most):]
}

// brief tells that little is to be run: there is one goroutine to a run, so that the race detector learns nothing from many.
func brief() bool { return raceEnabled || testing.Short() }

// No read is older than the bound, nobody waits for ever, and no key is loaded twice where nothing fails.
func TestProtocol(t *testing.T) {
	for name, cfg := range profiles() {
		if !strings.Contains(name, *profile) || brief() && name != "stress" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			switchOff(t, &cfg.Rules, *off)
			runAll(cfg, *first, *seeds).report(t, name, cfg)
		})
	}
}

// A run is a function of its seed.
func TestSameSeedSameRun(t *testing.T) {
	cfg := profiles()["stress"]
	cfg.Duration = 30 * time.Second
	a, b := Run(cfg, 7), Run(cfg, 7)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("got %+v and %+v", a, b)
	}
	if a, b := Trace(cfg, 7, "k00"), Trace(cfg, 7, "k00"); !slices.Equal(a, b) {
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("event %d: %q and %q", i, a[i], b[i])
			}
		}
	}
	if c := Run(cfg, 8); reflect.DeepEqual(a, c) {
		t.Error("another seed makes no difference")
	}
}
