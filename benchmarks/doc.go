// Package benchmarks compares nearcache with other caches and transports, side by side in one run.
//
// It has tests only, and is a module of its own so that its opponents are nobody's dependencies. From this directory:
//
//	go run ./cmd/compare                              # everything, judged by the goals: some twelve minutes
//	go test -run='^$' -bench=. -timeout=1h            # everything
//	go test -run='^$' -bench='RemoteGet/bytes=1024$'  # gets of resident values that another process owns
//	go test -run='^$' -bench=HitRatio -traces=DIR     # hit ratios on the *.keys.zst in a directory, zstd texts with a key per line
//	go test -run='^$' -bench=BesideInvalidations           # reads while 30,000 keys a second are invalidated
//	go test -v -run=HitRatio                          # the engine's alone, as a test
//
// A benchmark's figures are medians of rounds, -rounds=5 of them or one per iteration if -benchtime asks for more
// (-benchtime=20x). In a round every system runs once for a slice of time (-slice=250ms), in another order each time; ratios are formed
// within a round. On shared machines trust the ratios, not the absolute figures: docs/design.md section 13 has what they should be, and
// docs/performance.md what they were.
//
// The owner of the values is a child process: this test binary once more. redis-server and memcached are started where they are installed (Debian's
// packages of these names), else their clients are left out. -only=nearcache measures one system alone, which is what a profile wants;
// -cpuprofile writes the client's profile and -ownercpuprofile the owner's.
package benchmarks
