package main

import (
	"fmt"
	"strconv"
)

// goal is one of docs/design.md section 13: a figure, or a quotient of two, that is to be at most or at least so much.
type goal struct {
	what    string
	of      figure
	divisor figure // zero: none
	atLeast bool
	bound   float64
}

// row is a goal and what was measured.
type row struct {
	goal
	measured float64
}

func (r row) met() bool {
	if r.atLeast {
		return r.measured >= r.bound
	}
	return r.measured <= r.bound
}

func (r row) verdict() string {
	if r.met() {
		return "yes"
	}
	return "NO"
}

func (r row) wanted() string {
	if r.atLeast {
		return ">= " + short(r.bound)
	}
	return "<= " + short(r.bound)
}

// judge returns the goals whose figures there are.
func judge(all figures) (rows []row) {
	for _, g := range goals() {
		v, ok := all[g.of]
		if g.divisor != (figure{}) {
			d, there := all[g.divisor]
			v, ok = v/d, ok && there && d != 0
		}
		if ok {
			rows = append(rows, row{g, v})
		}
	}
	return rows
}

func goals() []goal {
	atMost := func(what, benchmark, metric string, bound float64) goal {
		return goal{what: what, of: figure{benchmark, metric}, bound: bound}
	}
	atLeast := func(what, benchmark, metric string, bound float64) goal {
		return goal{what: what, of: figure{benchmark, metric}, bound: bound, atLeast: true}
	}
	const one, many = "NearHit/procs=1/goroutines=1", "NearHit/procs=2/goroutines=64"
	all := []goal{
		atMost("near hit, one hot key: times a map read, cpu", one, "cpu-x-map", 1.75),
		atMost("near hit, one hot key: times otter, cpu", one, "cpu-x-otter", 0.65),
		atMost("near hit: allocations", one, "nearcache-allocs/get", 0),
		{what: "near hit: 64 goroutines on 2 cores, times one on one, cpu", of: figure{many, "nearcache-cpu-ns/get"}, divisor: figure{one, "nearcache-cpu-ns/get"}, bound: 1.2},
		atMost("near, Zipf 0.99: times otter, cpu", "NearZipf/gets/procs=1", "cpu-x-otter", 0.65),
		atMost("near, Zipf 0.99, 5 % writes: times otter, cpu", "NearZipf/writes=5/procs=1", "cpu-x-otter", 0.70),
		atLeast("hit ratio, mean: points over the best other", "HitRatio/mean", "over-best-points", 0),
		atMost("hit ratio, worst size of 500 or more: points under LRU", "HitRatio/mean", "under-LRU-points", 0.5),
		atMost("byte budget: entries per shard above it", "ByteBudget", "over", 1),
		atMost("expired entries held at a lifetime of 1 s, % of the live", "Expired", "held-%", 2),
	}
	for i, callers := range []int{1, 16, 128, 1024} {
		b, name := fmt.Sprintf("RemoteGet/bytes=1024/callers=%d", callers), fmt.Sprintf("remote get, %d callers: ", callers)
		all = append(all,
			atLeast(name+"times groupcache", b, "x-groupcache", []float64{1.5, 3.3, 6, 11}[i]),
			atMost(name+"times raw TCP, cpu", b, "cpu-x-raw", []float64{2.6, 2.2, 2.1, 1.9}[i]),
			atMost(name+"allocations of the client", b, "nearcache-client-allocs/get", []float64{8, 4, 3, 3}[i]))
		if callers >= 128 {
			all = append(all, atLeast(name+"times rueidis and Redis", b, "x-rueidis", 1.2))
		}
	}
	const batch = "GetMany/keys=100/callers=1"
	all = append(all,
		atLeast("get of 100 keys: times groupcache", batch, "x-groupcache", 9),
		goal{what: "get of 100 keys: p50, times raw TCP", of: figure{batch, "nearcache-p50-µs"}, divisor: figure{batch, "raw-p50-µs"}, bound: 1.8},
		goal{what: "get of 100 keys of 3 owners: p50, times one owner", of: figure{batch, "nearcache-3-owners-p50-µs"}, divisor: figure{batch, "nearcache-p50-µs"}, bound: 2})
	for _, mib := range []int{1, 16} {
		all = append(all, atMost("small gets beside values of "+strconv.Itoa(mib)+" MiB: p99, times without", fmt.Sprintf("BesideLarge/large=%dMiB", mib), "x-p99", 3))
	}
	for _, callers := range []int{16, 128} {
		all = append(all, atMost(fmt.Sprintf("mutual TLS, %d callers: times plaintext, cpu", callers), fmt.Sprintf("TLS/callers=%d", callers), "cpu-x-plain", 1.45))
	}
	return append(all,
		atMost("ring lookup, 100 members: times the hash", "Ring/members=100", "x-hash", 2.5),
		atMost("memory, near: overhead per entry, bytes", "Memory/entries=1000000", "near-B/entry", 160),
		atMost("memory, owner: overhead per entry, bytes", "Memory/entries=1000000", "shard-B/entry", 160),
		atMost("a collection with 4 M entries, near: times a bare concurrent map's", "Memory/entries=4000000", "near-gc-x-xsync.Map", 1.3),
		atMost("a collection with 4 M entries, owner: likewise", "Memory/entries=4000000", "shard-gc-x-xsync.Map", 1.3),
		atMost("invalidation: p99 to all of 10 members, ms", "FanOut", "p99-ms", 5),
		atMost("owner killed: p99 of its keys in the first second, ms", "OwnerKilled", "p99-ms", 50),
		atMost("owner killed: loads per key", "OwnerKilled", "loads/key", 1),
		atMost("cold key, 10 nodes, 10,000 callers: loads", "ColdKey", "loads/key", 1))
}
