package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	module = "github.com/nearcache/nearcache"
	root   = "../.." // of the repository, from this package
)

// source is one Go file of the repository.
type source struct {
	dir    string // slash-separated, relative to the repository; "." is its root
	name   string
	module string // directory of the go.mod that the file belongs to
	test   bool
	fset   *token.FileSet
	file   *ast.File
}

func (s *source) path() string { return path.Join(s.dir, s.name) }

func (s *source) at(p token.Pos) string {
	pos := s.fset.Position(p)
	return s.path() + ":" + strconv.Itoa(pos.Line)
}

// sources parses every Go file of the repository, those of nested modules included.
func sources(t *testing.T) []*source {
	t.Helper()
	var all []*source
	fset := token.NewFileSet()
	modules := map[string]string{} // directory -> directory of its go.mod
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if skipDir(rel, d.Name()) {
				return filepath.SkipDir
			}
			modules[rel] = modules[path.Dir(rel)]
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
				modules[rel] = rel
			}
			return nil
		}
		if !strings.HasSuffix(d.Name(), ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := path.Dir(rel)
		all = append(all, &source{
			dir: dir, name: d.Name(), module: modules[dir],
			test: strings.HasSuffix(d.Name(), "_test.go"), fset: fset, file: f,
		})
		return nil
	})
	if err != nil {
		t.Fatalf("reading the repository: %v", err)
	}
	if modules["."] != "." {
		t.Fatalf("no go.mod in %s", root)
	}
	return all
}

func skipDir(rel, name string) bool {
	return rel != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor")
}

// readDoc returns a document of the repository.
func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatalf("reading %s: %v", name, err)
	}
	return string(b)
}
