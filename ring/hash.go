package ring

import (
	"math/bits"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Hash returns the place of a key on the ring. A key that contains a {tag} lies where every other key with that tag
// lies, in every keyspace; the tag is what stands between the first "{" and the first "}" behind it, and an empty one is
// none. Other keys are placed by keyspace and key. It does not allocate.
//
// The value is part of the protocol between members: it is the same in every process and release.
func Hash(keyspace, key string) uint64 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		// A length above 0: the pair is closed and something is in it.
		if length := strings.IndexByte(key[open+1:], '}'); length > 0 {
			return xxhash.Sum64String(key[open+1 : open+1+length])
		}
	}
	// Rotated, so that a key named like its keyspace does not cancel it out.
	return xxhash.Sum64String(key) ^ bits.RotateLeft64(xxhash.Sum64String(keyspace), 32)
}
