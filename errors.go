package nearcache

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Errors that callers branch on with errors.Is. They are the same whether a load ran here or on another member.
var (
	// ErrNotFound says that the key does not exist at the origin. A loader returns it, wrapped or not.
	ErrNotFound = errors.New("nearcache: not found")
	// ErrOverloaded says that a load found no free slot in time, or that the loader keeps failing. The error is an *OverloadError.
	ErrOverloaded = errors.New("nearcache: overloaded")
	// ErrInvalidKey says that a key is empty or longer than 65,535 bytes.
	ErrInvalidKey = errors.New("nearcache: invalid key: it must have 1 to 65535 bytes")
	// ErrInvalidTag says that a tag is empty or longer than 255 bytes.
	ErrInvalidTag = errors.New("nearcache: invalid tag: it must have 1 to 255 bytes")
	// ErrClosed says that the node or the cache is closed.
	ErrClosed = errors.New("nearcache: closed")
	// ErrValueTooLarge says that Set was given a value larger than MaxValueBytes.
	ErrValueTooLarge = errors.New("nearcache: value too large")
	// ErrLoadTimeout says that LoadTimeout ended the load. The caller's own deadline is context.DeadlineExceeded.
	ErrLoadTimeout = errors.New("nearcache: load timed out")
	// ErrHold says that Update could not hold the keys; commit was not run.
	ErrHold = errors.New("nearcache: keys could not be held")
)

// LoadError says that the loader failed, here or on the member that held the lease.
type LoadError struct {
	Keyspace string
	Key      string
	Member   string // ID of the member the loader ran on
	// Err is the loader's error when it ran in this process or is one of Config.Errors; else it carries only its text.
	Err error
}

// Error implements error. Keys are cut to 64 bytes and quoted.
func (e *LoadError) Error() string {
	return fmt.Sprintf("nearcache: load %s/%s on %s: %v", e.Keyspace, quoteKey(e.Key), e.Member, e.Err)
}

// Unwrap returns Err.
func (e *LoadError) Unwrap() error { return e.Err }

// PanicError says that a loader or codec panicked, or left its goroutine with runtime.Goexit. The key works afterwards.
type PanicError struct {
	Value any    // what it panicked with; a string when it ran on another member
	Stack []byte // where; nil when it ran on another member
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("nearcache: loader panicked: %v", e.Value) }

// CircularLoadError refuses a call that a loader made with its context, since it would wait for itself: the load of the key asked for is the
// loader's own, or waits for it, directly or through others. Nothing else is disturbed, and a loader that can do without may go on. Callers of
// a load that failed by it find it in their *LoadError, where the load ran in their process. Circles over several processes are not seen:
// see Config.Load.
type CircularLoadError struct {
	// Circle are the keys, each as keyspace/"key" and cut to 64 bytes: what was asked for first, the loader's own last. The load of each
	// waits for the next.
	Circle []string
}

// Error implements error. It names at most eight keys.
func (e *CircularLoadError) Error() string {
	const most = 8
	names := e.Circle
	if len(names) > most {
		names = append(slices.Clone(names[:most-1]), "...")
	}
	return "nearcache: circular load: " + strings.Join(names, " needs ") + " needs " + e.Circle[0]
}

// PartialError says that some members have not confirmed an invalidation yet.
type PartialError struct {
	Members  []string      // IDs of the members that did not confirm; this one's own: it hears no majority, so that others may own its keys
	Keys     []string      // the keys they did not confirm; none, and no Tags: the whole keyspace
	Tags     []string      // of an InvalidateTag: the tags
	StaleFor time.Duration // an old copy may be served for at most this long
	Err      error         // the last failure
}

// Error implements error.
func (e *PartialError) Error() string {
	n, what := len(e.Keys), "key"
	if len(e.Tags) > 0 {
		n, what = len(e.Tags), "tag"
	}
	return fmt.Sprintf("nearcache: %d %s(s) not confirmed by %s, stale for at most %v: %v",
		n, what, strings.Join(e.Members, ", "), e.StaleFor, e.Err)
}

// Unwrap returns Err.
func (e *PartialError) Unwrap() error { return e.Err }

// OverloadError says that a load was shed. errors.Is(err, ErrOverloaded) holds for it.
type OverloadError struct {
	Keyspace string
	// RetryAfter is a hint: when a retry has a chance, by how many loads wait and how long they take, or a second where the loader keeps
	// failing. At least 10 ms.
	RetryAfter time.Duration
}

// Error implements error.
func (e *OverloadError) Error() string {
	return fmt.Sprintf("nearcache: overloaded: no load slot in keyspace %s in time, retry after %v", e.Keyspace, e.RetryAfter)
}

// Is tells that target is ErrOverloaded.
func (e *OverloadError) Is(target error) bool { return target == ErrOverloaded }

// ConfigError lists everything that is wrong with a configuration, or names what is not built yet.
type ConfigError struct{ Problems []string }

// Error implements error.
func (e *ConfigError) Error() string {
	return "nearcache: invalid configuration: " + strings.Join(e.Problems, "; ")
}

// BatchError holds the keys of a GetMany that failed; the others are in its map.
type BatchError struct{ Errs map[string]error }

// Error implements error. It names at most three keys.
func (e *BatchError) Error() string {
	keys := make([]string, 0, len(e.Errs))
	for k := range e.Errs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	fmt.Fprintf(&b, "nearcache: %d key(s) failed", len(keys))
	for i, k := range keys {
		if i == 3 {
			b.WriteString("; ...")
			break
		}
		fmt.Fprintf(&b, "; %s: %v", quoteKey(k), e.Errs[k])
	}
	return b.String()
}

// Unwrap returns the errors of the keys, in no particular order.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, 0, len(e.Errs))
	for _, err := range e.Errs {
		errs = append(errs, err)
	}
	return errs
}

// circularLoad makes the error of a circle.
func circularLoad(circle []need) *CircularLoadError {
	e := &CircularLoadError{Circle: make([]string, len(circle))}
	for i, n := range circle {
		e.Circle[i] = n.ks.name + "/" + quoteKey(n.key)
	}
	return e
}

// quoteKey makes a key fit for a message.
func quoteKey(key string) string {
	const limit = 64
	if len(key) > limit {
		return strconv.Quote(key[:limit]) + "..."
	}
	return strconv.Quote(key)
}
