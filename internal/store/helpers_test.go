package store

import "unsafe"

// aliased is a string over the bytes of b, as a server hands out that reuses its buffers.
func aliased(b []byte) string { return unsafe.String(&b[0], len(b)) }
