// Package peerstest is a network in memory for tests of whole clusters: hosts, listeners and connections that behave like
// TCP (an ordered byte stream per direction, bounded buffers, deadlines, refused and reset connections), with faults that a
// test switches on and off. It starts no goroutine and opens no socket, so it runs inside a testing/synctest bubble,
// where time is virtual and hours of a partition take no time.
//
// One host stands for one machine. Give each node its own:
//
//	synctest.Test(t, func(t *testing.T) {
//		network := peerstest.NewNetwork() // inside the bubble
//		host := network.Host("127.0.0.1")
//		listener, err := host.Listen(":7946")
//		...
//		node, err := nearcache.Start(ctx, nearcache.NodeConfig{Listener: listener, Dial: host.Dial, ...})
//
// Host names are free text without a port; numeric loopback addresses (127.0.0.1, 127.0.0.2, ...) spare a node the
// question whether it may talk in the clear.
//
// A fault acts on a direction between two hosts. Cut and Isolate hold bytes back without losing them, as a network does that
// TCP retransmits over: neither side sees an error, dials hang until their context ends, and after Heal everything held
// arrives in order. Reset and Crash break connections so that both sides see it. To test a process that hangs, Isolate its
// host; one that is killed, Crash it; a slow network, SetLatency and Delay.
//
// Everything in this package is safe for concurrent use. Make the network inside the bubble that uses it.
package peerstest
