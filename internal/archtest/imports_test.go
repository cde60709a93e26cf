package archtest

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The modules that the core may depend on, by the import paths' beginnings.
const (
	grpcLib     = "google.golang.org/grpc"
	protobufLib = "google.golang.org/protobuf"
	syncLib     = "golang.org/x/sync"
	simplelru   = "github.com/hashicorp/golang-lru/v2/simplelru"
	xxhashLib   = "github.com/cespare/xxhash/v2"
	goleakLib   = "go.uber.org/goleak"
	zstdLib     = "github.com/klauspost/compress/zstd"
	dnsLib      = "golang.org/x/net/dns/dnsmessage"
	nettestLib  = "golang.org/x/net/nettest"
	htmlLib     = "golang.org/x/net/html"
)

const protoPkg = "proto/nearcache/v1"

// room says what one package may import beyond the standard library.
type room struct {
	project  []string            // packages of this module, relative to its root
	external []string            // import path prefixes outside of it
	files    map[string][]string // external prefixes that only this file of the package may import
	tests    []string            // what its tests may import besides, project packages and external prefixes alike
	passive  bool                // no goroutine, no clock, no I/O: the time is an argument
}

// layout is section 3 of docs/design.md as a table. A package without a row fails the test: give it one, and a line there.
var layout = map[string]room{
	".": {
		project: []string{
			"hotkey", "near", "peers", "ring", "singleflight", "invalidation", "feed",
			"internal/clock", "internal/counter", "internal/foreign", "internal/membership", "internal/origin", "internal/shard", "internal/store", "internal/tag",
			"internal/transport",
		},
		external: []string{syncLib, simplelru, xxhashLib},
		files:    map[string][]string{"codec.go": {protobufLib}},
		tests:    []string{"peers/peerstest", "internal/testcluster", protoPkg, grpcLib, protobufLib, zstdLib, htmlLib}, // a hostile peer is a client of its own
	},

	// The rooms: none of these knows another but through what stands here.
	"hotkey":       {passive: true},
	"near":         {project: []string{"internal/store", "internal/counter", "internal/tag"}, passive: true},
	"ring":         {external: []string{xxhashLib}, passive: true},
	"singleflight": {external: []string{syncLib}},
	"invalidation": {external: []string{xxhashLib, simplelru}, passive: true},
	"peers":        {tests: []string{"peers/discoverytest", dnsLib}},

	"peers/discoverytest": {project: []string{"peers"}},

	"peers/peerstest": {project: []string{"peers"}, tests: []string{grpcLib, nettestLib}},

	"feed":          {tests: []string{"feed/feedtest"}},
	"feed/feedtest": {project: []string{"feed"}},
	"feed/outbox":   {project: []string{"feed"}},

	"internal/clock":      {},
	"internal/counter":    {passive: true},
	"internal/foreign":    {},
	"internal/membership": {project: []string{"peers", "ring"}, passive: true},
	"internal/store":      {project: []string{"internal/counter"}, external: []string{simplelru, xxhashLib}, passive: true, tests: []string{zstdLib}},
	"internal/shard":      {project: []string{"internal/store", "internal/counter", "internal/tag"}, external: []string{simplelru}, passive: true},
	"internal/origin":     {project: []string{"internal/counter"}, external: []string{syncLib}},
	"internal/tag":        {external: []string{xxhashLib}, passive: true},
	"internal/transport": {
		project:  []string{protoPkg, "internal/clock", "internal/counter", "internal/foreign"},
		external: []string{grpcLib, protobufLib},
		tests:    []string{"peers/peerstest"},
	},
	"internal/sim": {project: []string{
		"near", "peers", "ring", "singleflight", "invalidation", "internal/membership", "internal/shard", "internal/store", "internal/tag",
	}},
	"internal/testcluster":        {project: []string{".", "peers", "peers/peerstest"}},
	"internal/testcluster/member": {project: []string{"internal/testcluster"}},
	"internal/archtest":           {},

	"cmd/nearcache-top": {project: []string{"."}, tests: []string{"peers"}},
	"page":              {tests: []string{".", "internal/testcluster"}},

	protoPkg: {external: []string{grpcLib, protobufLib}},
}

// Section 3 of docs/design.md: which package may import which.
func TestLayout(t *testing.T) {
	for _, s := range sources(t) {
		if s.module != "." {
			continue
		}
		r, ok := layout[s.dir]
		if !ok {
			t.Errorf("%s: package %s has no row in the layout table of internal/archtest", s.path(), s.dir)
			continue
		}
		for _, imp := range s.file.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatalf("%s: %v", s.at(imp.Pos()), err)
			}
			if !r.allows(s, p) {
				t.Errorf("%s: %s must not import %s (layout table of internal/archtest, docs/design.md section 3)", s.at(imp.Pos()), s.dir, p)
			}
		}
	}
}

// The example and benchmark modules use the library; the library must not know of them.
func TestCoreImportsNoNestedModule(t *testing.T) {
	all := sources(t)
	nested := map[string]bool{}
	for _, s := range all {
		if s.module != "." {
			nested[module+"/"+s.module] = true
		}
	}
	for _, s := range all {
		for _, imp := range s.file.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			for n := range nested {
				if s.module == "." && under(p, n) {
					t.Errorf("%s: the core imports %s of a nested module", s.at(imp.Pos()), p)
				}
			}
		}
	}
}

func (r room) allows(s *source, imp string) bool {
	if rel, ours := relative(imp); ours {
		if slices.Contains(r.project, rel) {
			return true
		}
		return s.test && (rel == s.dir || slices.Contains(r.tests, rel))
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return imp != "C" // the standard library
	}
	allowed := slices.Concat(r.external, r.files[s.name])
	if s.test {
		allowed = slices.Concat(allowed, r.tests, []string{goleakLib})
	}
	return slices.ContainsFunc(allowed, func(prefix string) bool { return under(imp, prefix) })
}

// relative returns the package directory of an import path of this module.
func relative(imp string) (string, bool) {
	if imp == module {
		return ".", true
	}
	rel, ok := strings.CutPrefix(imp, module+"/")
	return rel, ok
}

func under(imp, prefix string) bool {
	return imp == prefix || strings.HasPrefix(imp, prefix+"/")
}

// clockCalls are the functions of package time that read or wait for the clock.
var clockCalls = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}

// ioPackages do I/O, or bring chance into what must be a function of its arguments.
var ioPackages = []string{"net", "os", "io/fs", "log", "log/slog", "syscall", "math/rand", "crypto/rand", "runtime/pprof"}

// Passive packages are functions of state and arguments: no goroutine, no clock, no I/O, so that a model test or a
// simulator can drive them (docs/design.md section 3).
func TestPassivePackages(t *testing.T) {
	for _, s := range sources(t) {
		if s.module != "." || s.test || !layout[s.dir].passive {
			continue
		}
		for _, imp := range s.file.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if slices.ContainsFunc(ioPackages, func(bad string) bool { return under(p, bad) }) {
				t.Errorf("%s: passive package %s imports %s", s.at(imp.Pos()), s.dir, p)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: passive package %s starts a goroutine", s.at(n.Pos()), s.dir)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockCalls, n.Sel.Name) {
					t.Errorf("%s: passive package %s calls time.%s: the time is an argument", s.at(n.Pos()), s.dir, n.Sel.Name)
				}
			}
			return true
		})
	}
}

// Tests wait for a condition, in a loop, or run in a testing/synctest bubble, where a sleep is exact and costs nothing.
func TestSleepOnlyInBubbles(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test || slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				return false
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && n.Sel.Name == "Sleep" {
					t.Errorf("%s: time.Sleep in a test that runs in no bubble and waits for no condition", s.at(n.Pos()))
				}
			}
			return true
		})
	}
}

// The table itself: a row must name packages that may exist, so that a rename does not leave a hole behind.
func TestLayoutTableIsClean(t *testing.T) {
	for dir, r := range layout {
		for _, p := range r.project {
			if _, ok := layout[p]; !ok {
				t.Errorf("row %q allows %q, which has no row", dir, p)
			}
			if dir != "." && dir != "internal/testcluster" && !strings.HasPrefix(dir, "cmd/") && p == "." {
				t.Errorf("row %q may import the root package", dir)
			}
		}
		for _, ext := range slices.Concat(r.external, r.tests) {
			if path.Clean(ext) != ext || strings.HasPrefix(ext, "github.com/hashicorp/golang-lru/v2/expirable") {
				t.Errorf("row %q allows %q", dir, ext)
			}
		}
	}
}
