// Package trace reads recorded access traces: the keys that a real program asked for, in order.
package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Suffix ends the name of every trace file.
const Suffix = ".keys.zst"

// maxKeyBytes is the longest key a trace may contain: the cache's own limit.
const maxKeyBytes = 1<<16 - 1

// Trace is a sequence of reads. It is immutable, so safe for concurrent use.
type Trace struct {
	keys     []string // distinct, in order of their first request
	requests []int32  // indexes into keys
}

// Open reads the trace called name. A name with a path separator or an extension is a file; any other is the file name+Suffix in
// testdata/traces, which is looked for in the working directory, its parents, and next to the source code this program was built from.
func Open(name string) (*Trace, error) {
	path, err := find(name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	t, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, path)
	}
	return t, nil
}

// Read reads zstd-compressed text, one key a line, from r. A trace without a single key is an error, and so is an empty or over-long line.
func Read(r io.Reader) (*Trace, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer z.Close()
	t := &Trace{}
	seen := make(map[string]int32)
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, maxKeyBytes+1)
	for lines.Scan() {
		key := lines.Text()
		if key == "" {
			return nil, fmt.Errorf("trace: empty key on line %d", len(t.requests)+1)
		}
		i, ok := seen[key]
		if !ok {
			i = int32(len(t.keys))
			seen[key] = i
			t.keys = append(t.keys, key)
		}
		t.requests = append(t.requests, i)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("trace: line %d: %w", len(t.requests)+1, err)
	}
	if len(t.requests) == 0 {
		return nil, errors.New("trace: no keys")
	}
	return t, nil
}

// Len returns the number of requests, which is at least one.
func (t *Trace) Len() int { return len(t.requests) }

// Keys returns the distinct keys in order of their first request. The caller must not write to the slice.
func (t *Trace) Keys() []string { return t.keys }

// At returns the index in Keys of the i-th request, i >= 0. After the last request the trace begins again.
func (t *Trace) At(i int) int { return int(t.requests[i%len(t.requests)]) }

// Key returns the key of the i-th request, as At.
func (t *Trace) Key(i int) string { return t.keys[t.At(i)] }

// find returns the path of the trace called name.
func find(name string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) || filepath.Ext(name) != "" {
		return name, nil
	}
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	for _, dir := range starts {
		for {
			path := filepath.Join(dir, "testdata", "traces", name+Suffix)
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				return path, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", fmt.Errorf("trace: no testdata/traces/%s above the working directory: run in the repository, or pass a file", name+Suffix)
}
