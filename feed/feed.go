package feed

import (
	"context"
	"strings"
	"time"
)

// Source is a stream of changes. It is safe for concurrent use: several nodes may follow one.
type Source interface {
	// Tail returns the stream's end: reading from it brings every change that is visible to a loader only after the call, and perhaps
	// some that were before.
	Tail(ctx context.Context) (Position, error)

	// Read calls apply with what comes after a position, batch by batch, until ctx ends, whose error it returns, or it cannot go on. It
	// waits for each call of apply before it makes the next one, and returns the error of one that fails.
	//
	// A position of another stream (see Position), or of a place that the source does not keep any more, is no error: the first batch has a
	// Gap. It is followed by what there is.
	//
	// While nothing changes it should call apply with an empty batch every few seconds: the sign that it is there.
	Read(ctx context.Context, after Position, apply func(Batch) error) error
}

// Batch is a part of a stream. It belongs to its source again when apply has returned.
type Batch struct {
	// Changes are what changed, in any order, at most a few thousand. None: nothing did.
	Changes []Change
	// Position is behind the Changes: what was read up to here need not be read again.
	Position Position
	// Gap says why changes before Position may be missing; empty: none is.
	Gap string
	// Behind is about how many changes the source has after Position, and Lag how long ago the first of them was made; 0: none.
	Behind int
	Lag    time.Duration
}

// Change says what is not at the origin any more what it was: a key, everything with one of some tags, or all of a keyspace.
type Change struct {
	Keyspace string
	Key      string   // 1 to 65,535 bytes; empty: Tags or All say what
	Tags     []string // only without Key
	All      bool     // only without Key and Tags
	// Version is the key's new version. What has this one or a higher one stays, and lower ones are refused from now on. 0: whatever there is goes.
	Version uint64
}

// Position is a place in a stream. It means something to its Source only, but for the epoch in it, which names the stream: one that is
// made anew, or restored from a copy, has another epoch. The empty Position is none. It can be kept in any store as bytes or text.
type Position string

// At makes the position of a place in the stream that epoch names. epoch must have no slash.
func At(epoch, place string) Position { return Position(epoch + "/" + place) }

// Split returns what At was given; false: it was not made by At.
func (p Position) Split() (epoch, place string, ok bool) { return strings.Cut(string(p), "/") }
