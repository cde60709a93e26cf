package ring

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

const goldenFile = "testdata/golden.txt"

// goldenRings are the lists that the golden file describes.
func goldenRings() map[string][]Member {
	zoned := named("10.0.16.%d:7946", 9)
	for i := range zoned {
		zoned[i].Zone = fmt.Sprintf("zone-%d", i%3)
	}
	return map[string][]Member{
		"1 one":      {{ID: "alone"}},
		"2 pods":     named("pod-%d.cache.svc:7946", 10),
		"3 weights":  {{ID: "a", Weight: 1}, {ID: "b", Weight: 2}, {ID: "c", Weight: 5}, {ID: "client", Weight: -1}},
		"4 zones":    zoned,
		"5 hundreds": named("10.0.0.%d:7946", 100),
	}
}

func goldenKeys() [][2]string {
	return [][2]string{
		{"product", "8812"},
		{"user", "8812"},
		{"", "8812"},
		{"product", "{8812}:price"},
		{"user", "x{8812}"},
		{"product", "{}8812"},
		{"product", "\x00\xff\xfe"},
		{"product", "product"},
		{"produkt", "grün"},
		{"product", strings.Repeat("long", 1000)},
	}
}

// TestGoldenVectors holds the places of keys still from release to release, since members of several releases share a ring
// in a rolling upgrade. A change of the file moves keys in every cluster: it needs a new protocol version. With
// UPDATE_GOLDEN=1 in the environment it is written anew.
//
// Case ring-1.
func TestGoldenVectors(t *testing.T) {
	got := describe(t)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(goldenFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(file), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		var g, w string
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			t.Errorf("%s:%d: got %s, want %s", goldenFile, i+1, g, w)
		}
	}
}

func describe(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# hash of keyspace and key; see TestGoldenVectors\n")
	for _, k := range goldenKeys() {
		fmt.Fprintf(&b, "%q %.40q %016x\n", k[0], k[1], Hash(k[0], k[1]))
	}
	for name, members := range inOrder(goldenRings()) {
		r := mustNew(t, members)
		fmt.Fprintf(&b, "\n# ring %s: fingerprint, preference lists (at most 4), digest of 50,000 of them\n", name)
		fmt.Fprintf(&b, "%016x\n", r.Fingerprint())
		for _, k := range goldenKeys() {
			h := Hash(k[0], k[1])
			fmt.Fprintf(&b, "%016x %s\n", h, strings.Join(ids(r, r.Prefer(nil, h, 4)), " "))
		}
		digest := xxhash.New()
		for _, h := range userHashes(50_000) {
			for _, m := range r.Prefer(nil, h, 4) {
				_, _ = digest.Write(binary.BigEndian.AppendUint16(nil, uint16(m))) // never fails
			}
		}
		fmt.Fprintf(&b, "%016x\n", digest.Sum64())
	}
	return b.String()
}
