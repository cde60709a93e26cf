// Package discoverytest tests whether a peers.Discovery does what its interface promises. A discovery of one's own is
// connected to something that the test controls, and runs all of it with one call:
//
//	func TestDiscovery(t *testing.T) {
//		discoverytest.Run(t, func(t *testing.T) discoverytest.Source {
//			registry := startRegistry(t) // one for each check
//			return discoverytest.Source{
//				Discovery: mydiscovery.New(registry.Addr()),
//				Set:       func(members ...peers.Member) { registry.Replace(members) },
//				Break:     func(broken bool) { registry.Refuse(broken) },
//			}
//		})
//	}
//
// What is checked: the first list comes soon; lists are complete, and each change is reported; telling the same list again does no
// harm; a list belongs to whoever got it; calls of update do not overlap, and none comes after Watch has returned; Watch ends with its
// context, and otherwise only with an error; no goroutine stays behind; an update that takes long does not lose the list that
// came meanwhile; several nodes can watch at once; a backend that is away leaves the last list alone, and is followed
// again when it is back.
//
// The checks run in real time, one after the other, and need no more of it than the source takes to report changes.
package discoverytest
