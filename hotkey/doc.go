// Package hotkey finds the keys of a keyspace that are used most, and decides which of them are hot.
//
// Counting: a set-associative table of a fixed size. A key that is in its set is counted exactly; one that is not takes the place, and the
// count, of the least used key there (Space-Saving: Metwally, Agrawal, El Abbadi, ICDT 2005). Counts are halved at the end of every window of
// a second, so that a rate is a mean over the last windows in which each counts half of the one after it, and what is not used any more is
// forgotten. The memory does not depend on the number of keys.
//
// The error is known for each key: its rate is at least Key.Rate, and at most Key.Rate + Key.Error. Error is what the key took over from
// another one, which is no more than an eighth of the rate of all keys of its set, a 128th of all; it is halved with every window that
// the key stays in its place. A key that is not in the table is used at most as much as that.
//
// Deciding: a key becomes hot when this process reads it often enough within one window, which what was taken over does not count for. It
// stops being hot when it was read less than half as often for ten windows on end. So a key at the threshold does not come and go.
//
// The package is passive: no goroutine, no clock, no I/O; times are nanoseconds on the node's own monotonic clock. All methods are safe for
// concurrent use.
package hotkey
