package sim

import "time"

// Config is a cluster, its load and its faults. Base returns one to start from.
type Config struct {
	Nodes, Keys int           // keys that end in 5 have versions and are written by Set, the others by Invalidate; tagOf has their tags
	Duration    time.Duration // of load and faults; a quiet time follows in which everything has to end

	Bound, NearTTL, TTL        time.Duration
	NotFoundTTL                time.Duration // 0: there is always a row
	StaleOnError               time.Duration
	LoadTimeout, LoadQueueTime time.Duration
	PeerTimeout                time.Duration
	Lag                        time.Duration // a load reads what the origin had up to so long ago
	Updates                    bool          // keys that end in 1 or 2 are written by Update
	HandOver                   bool          // who leaves, or loses keys to a newcomer, hands over what it owned, and new owners peek
	Replicas                   int           // members that keep a key, its owner included; 0 means 1
	Mixed                      float64       // of the processes: they have another number of Replicas, up to that

	// Spread: all keys are read from their replicas too, as those in heavy use are where there are no near copies (R10). NearTTL must be 0 then.
	Spread bool

	Reads, Writes float64 // a second, of the whole cluster
	AllShare      float64 // of the writes: InvalidateAll
	ExpireShare   float64 // of the invalidations of keys: Expire; and of those of all, as a feed with a gap does
	ManyShare     float64 // of the reads: GetMany
	TagShare      float64 // of the writes: InvalidateTag, when all keys with a tag have changed
	AckAllShare   float64 // of the invalidations of keys and tags: with AckAll
	LeaveShare    float64 // of the reads: the caller gives up

	Rules  Rules
	Faults Faults
}

// Faults says what goes wrong.
type Faults struct {
	Loss        float64 // of a message: its connection breaks, and with it is lost what is under way
	Holes       float64 // of a message of the coherence stream: it is lost alone, which no transport of today does
	Doubles     float64 // of a message of the coherence stream: it comes twice
	TailShare   float64 // of the messages: they take up to Tail
	Tail        time.Duration
	SlowLoads   float64 // of the loads: they take up to SlowLoad
	SlowLoad    time.Duration
	FailedLoads float64
	ClockRate   float64 // rates of clocks differ by this at most

	Crash, Isolate, Cut, OneWay, Pause, Leave, Halve bool

	Listed bool // who is isolated stays on the list

	Every    time.Duration // mean time between two of them
	Learn    time.Duration // a change of the list is known everywhere within this time
	SlowView float64       // of the changes and members: it is known only within SlowLearn
	SlowFor  time.Duration
}

// Base is a cluster of five without faults: near copies of 30 s, 600 reads and 5 writes a second.
func Base() Config {
	return Config{
		Nodes: 5, Keys: 12, Duration: 120 * time.Second,
		Bound: time.Second, NearTTL: 30 * time.Second, TTL: 60 * time.Second,
		LoadTimeout: 10 * time.Second, LoadQueueTime: 100 * time.Millisecond, PeerTimeout: 50 * time.Millisecond,
		Reads: 600, Writes: 5, AllShare: 0.005, LeaveShare: 0.01,
		Rules:  Built(),
		Faults: Faults{ClockRate: 0.009, Learn: 3500 * time.Millisecond},
	}
}

// Normal is Base with every fault: connections that break, delays with tails, crashes, members isolated, links cut, one way or both,
// pauses, members that leave and come.
func Normal() Config {
	c := Base()
	c.Faults = Faults{
		Loss: 0.002, Doubles: 0.01,
		TailShare: 0.005, Tail: 400 * time.Millisecond,
		SlowLoads: 0.02, SlowLoad: 800 * time.Millisecond, FailedLoads: 0.01,
		ClockRate: 0.009,
		Crash:     true, Isolate: true, Cut: true, OneWay: true, Pause: true, Leave: true,
		Every: 4 * time.Second, Learn: 3500 * time.Millisecond,
	}
	return c
}

// Stress is Normal with more of it: tails of 3 s, loads of 4 s and now and then 8 s, two percent of the messages lost, holes in the
// coherence stream.
func Stress() Config {
	c := Normal()
	f := &c.Faults
	f.Loss, f.Holes, f.Doubles = 0.02, 0.002, 0.02
	f.Tail, f.SlowLoad = 3*time.Second, 4*time.Second
	return c
}
