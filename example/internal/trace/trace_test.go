package trace

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func compress(t *testing.T, text string) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll([]byte(text), nil)
}

// TestCommittedTraces holds the figures that testdata/traces/README.md states.
func TestCommittedTraces(t *testing.T) {
	for _, c := range []struct {
		name               string
		requests, distinct int
		first              string
	}{
		{"cache2k_web12", 95607, 13756, "0"},
		{"domains_mail", 99991, 17632, "comhem.se"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := Open(c.name)
			if err != nil {
				t.Fatal(err)
			}
			if tr.Len() != c.requests || len(tr.Keys()) != c.distinct || tr.Key(0) != c.first {
				t.Errorf("got %d requests, %d keys, first %q; want %d, %d, %q", tr.Len(), len(tr.Keys()), tr.Key(0), c.requests, c.distinct, c.first)
			}
		})
	}
}

func TestRead(t *testing.T) {
	long := strings.Repeat("x", maxKeyBytes)
	for _, c := range []struct {
		name, text string
		keys       []string
		requests   []int32
		err        string
	}{
		{"repeats", "b\na\nb\n", []string{"b", "a"}, []int32{0, 1, 0}, ""},
		{"no newline at the end", "a\nb", []string{"a", "b"}, []int32{0, 1}, ""},
		{"longest key", long + "\n", []string{long}, []int32{0}, ""},
		{"nothing", "", nil, nil, "no keys"},
		{"empty line", "a\n\nb\n", nil, nil, "empty key on line 2"},
		{"too long", "a\n" + long + "xx\n", nil, nil, "line 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := Read(bytes.NewReader(compress(t, c.text)))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(tr.keys, c.keys) || !slices.Equal(tr.requests, c.requests) {
				t.Errorf("got %d keys, requests %v; want %d, %v", len(tr.keys), tr.requests, len(c.keys), c.requests)
			}
		})
	}
	if _, err := Read(strings.NewReader("not zstd")); err == nil {
		t.Error("got no error for text that is not compressed")
	}
}

func TestTraceBeginsAgain(t *testing.T) {
	tr, err := Read(bytes.NewReader(compress(t, "a\nb\na\n")))
	if err != nil {
		t.Fatal(err)
	}
	var got string
	for i := range 7 {
		got += tr.Key(i)
	}
	if want := "abaabaa"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOpenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "own.keys.zst")
	if err := os.WriteFile(path, compress(t, "k\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(path)
	if err != nil || tr.Key(0) != "k" {
		t.Errorf("got %v, %v; want the key k", tr, err)
	}
	if _, err := Open("no_such_trace"); err == nil || !strings.Contains(err.Error(), "no_such_trace") {
		t.Errorf("got %v, want an error that names the trace", err)
	}
}
