// Package feedtest tests whether a feed.Source does what its interface promises. A source of one's own is connected to something that the
// test controls, and runs all of it with one call:
//
//	func TestSource(t *testing.T) {
//		feedtest.Run(t, func(t *testing.T) feedtest.Stream {
//			broker := startBroker(t) // one for each check
//			return feedtest.Stream{
//				Source:  mysource.New(broker.Addr()),
//				Append:  func(changes ...feed.Change) { broker.Publish(changes) },
//				Clean:   func() { broker.Truncate() },
//				Restart: func() { broker.Restart() },
//			}
//		})
//	}
//
// What is checked: what is appended after Tail is read from there; every position that a batch had is one to go on from, with nothing
// missing; calls of apply do not overlap, and an error of one ends Read with that error; Read ends with its context; several readers
// each get everything; history that is gone, or of another stream, is a Gap, and what comes after it is read; nothing is lost when what
// is behind the source restarts.
//
// The checks run in real time, one after the other.
package feedtest
