// Package benchmarks compares nearcache with other caches and transports, side by side in one run.
//
// It has tests only, and is a module of its own so that its opponents are nobody's dependencies. From this directory:
//
//	go test -run='^$' -bench=.              # everything, some two minutes
//	go test -run='^$' -bench=RemoteGet      # gets of resident values that another process owns
//	go test -run='^$' -bench=BesideLarge    # small values while large ones come from the same process
//	go test -v -run=HitRatio                # hit ratios on the traces in ../testdata/traces
//
// A benchmark's figures are medians of rounds, -rounds=5 of them or one per iteration if -benchtime asks for more
// (-benchtime=20x). In a round every system runs once for a slice of time (-slice=400ms), in another order each time; ratios are formed
// within a round. On shared machines trust the ratios, not the absolute figures: docs/design.md section 13 has what they should be.
//
// The owner of the values is a child process: this test binary once more. -only=nearcache measures one system alone,
// which is what a profile wants; -cpuprofile writes the client's profile and -ownercpuprofile the owner's.
package benchmarks
