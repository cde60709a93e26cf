// Package ring says who owns a key: consistent hashing over the members of a cluster, as a pure function of their list.
//
//	r, err := ring.New([]ring.Member{{ID: "a", Zone: "z1"}, {ID: "b", Zone: "z2"}})
//	h := ring.Hash("product", "8812")
//	owner := r.Members()[r.Owner(h)]
//	list := r.Prefer(nil, h, 2) // the owner and one replica, in different zones
//
// Equal lists give equal rings in every process and every release, whatever their order: golden vectors in testdata hold
// that still. A member's places on the ring depend on nothing but its own ID and weight. So adding one member to N of
// equal weight moves about 1/(N+1) of the keys, all of them to the newcomer, and removing it moves them back.
//
// How even: with PointsPerWeight points a member, the largest share of 100 equal members is about 1.08 times the mean.
//
// A Ring never changes, and everything in this package is safe for concurrent use. It knows nothing of addresses or of
// health: a member that is down stays the owner of its keys, and the caller goes on along the preference list.
//
// The method is that of Karger et al., Consistent Hashing and Random Trees (STOC 1997); the positions are 64-bit xxHash.
package ring
