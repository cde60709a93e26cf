package archtest

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are the pages whose references into the code are checked.
var documents = []string{"README.md", "ARCHITECTURE.md", "docs/design.md", "docs/protocol.md", "docs/statistics.md", "docs/consistency.md", "docs/cases.md"}

// A reference is `get.go: Cache.Get` or `internal/shard/shard.go: New`: a file relative to the repository, then a
// function, or a type and its method.
var reference = regexp.MustCompile("`([a-z0-9_/]+\\.go): ([A-Za-z0-9_]+(?:\\.[A-Za-z0-9_]+)?)`")

// Every `file.go: function` that a document names exists.
func TestNamedFunctionsExist(t *testing.T) {
	functions := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				functions[s.path()+": "+functionName(f)] = true
			}
		}
	}
	for _, doc := range documents {
		for _, m := range reference.FindAllStringSubmatch(readDoc(t, doc), -1) {
			if ref := m[1] + ": " + m[2]; !functions[ref] {
				t.Errorf("%s names `%s`, which does not exist", doc, ref)
			}
		}
	}
}

// A test is named `TestX`, in the root, or `internal/sim/TestX`.
var namedTest = regexp.MustCompile("`(?:([a-z0-9_/]+)/)?(Test[A-Z][A-Za-z0-9_]*)`")

// Every test that a document names exists.
func TestNamedTestsExist(t *testing.T) {
	tests := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test {
				tests[path.Join(s.dir, f.Name.Name)] = true
			}
		}
	}
	for _, doc := range documents {
		for _, m := range namedTest.FindAllStringSubmatch(readDoc(t, doc), -1) {
			if name := path.Join(m[1], m[2]); !tests[name] {
				t.Errorf("%s names the test %s, which does not exist", doc, name)
			}
		}
	}
}

// functionName returns f's name as documents write it: New, Cache.Get.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	recv := f.Recv.List[0].Type
	for {
		switch r := recv.(type) {
		case *ast.StarExpr:
			recv = r.X
		case *ast.IndexExpr: // one type parameter
			recv = r.X
		case *ast.IndexListExpr:
			recv = r.X
		case *ast.Ident:
			return r.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)

// Relative links of the documents lead to files of the repository.
func TestLinksResolve(t *testing.T) {
	for _, doc := range append([]string{"CHANGELOG.md", "SECURITY.md"}, documents...) {
		for _, m := range link.FindAllStringSubmatch(readDoc(t, doc), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := path.Join(path.Dir(doc), m[1])
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s, which is not there", doc, m[1])
			}
		}
	}
}

var citation = regexp.MustCompile(`docs/[a-z]+\.md|ARCHITECTURE\.md`)

// Comments cite documents, sections of docs/design.md and rules of docs/protocol.md that exist.
func TestCitedDocumentsExist(t *testing.T) {
	section := regexp.MustCompile(`docs/design\.md,? section (\d+)`)
	rule := regexp.MustCompile(`\bR[0-9]+b?\b`)
	design, protocol := readDoc(t, "docs/design.md"), readDoc(t, "docs/protocol.md")
	for _, s := range sources(t) {
		for _, group := range s.file.Comments {
			text := strings.Join(strings.Fields(group.Text()), " ")
			for _, doc := range citation.FindAllString(text, -1) {
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(doc))); err != nil {
					t.Errorf("%s cites %s, which is not there", s.at(group.Pos()), doc)
				}
			}
			for _, m := range section.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(design, "\n## "+m[1]+". ") {
					t.Errorf("%s cites section %s of docs/design.md, which is not there", s.at(group.Pos()), m[1])
				}
			}
			for _, name := range rule.FindAllString(text, -1) {
				if !strings.Contains(protocol, "\n**"+name+" ") {
					t.Errorf("%s cites rule %s of docs/protocol.md, which is not there", s.at(group.Pos()), name)
				}
			}
		}
	}
}

// The README's program is example/hello, so that what readers copy is what is compiled and run.
func TestReadmeProgram(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(root, "example", "hello", "main.go"))
	if err != nil {
		t.Fatalf("reading the README's program: %v", err)
	}
	_, program, ok := strings.Cut(string(src), "package main")
	if !ok {
		t.Fatal("example/hello/main.go has no package clause")
	}
	if !strings.Contains(readDoc(t, "README.md"), "```go\npackage main"+program+"```") {
		t.Error("README.md does not show example/hello/main.go from its package clause to its end")
	}
}
