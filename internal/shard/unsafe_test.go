package shard

import "unsafe"

// unsafeString returns the bytes of b as a string that changes with them, as a key in a receive buffer does.
func unsafeString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
