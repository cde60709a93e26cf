package archtest

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/cases.md has a row for each case: `| id | failure | tests | remark |`. The tests column is written by
//
//	go test ./internal/archtest -run TestCases -update
//
// from the comments "Case ring-3." or "Cases L1-1, L1-2 and L1-4." above or inside tests; the remarks are written by hand,
// but that -update sets and removes "open".
var update = flag.Bool("update", false, "rewrite the tests column of docs/cases.md from the comments above the tests")

const casesDoc = "docs/cases.md"

// areas is how many cases each area has; they count from 1 without a gap.
var areas = map[string]int{
	"L1": 20, "singleflight": 8, "L2": 16, "lease": 6, "invalidation": 9, "ring": 8,
	"transport": 17, "discovery": 5, "stats": 5, "API": 5,
}

const caseID = `(?:L1|singleflight|L2|lease|invalidation|ring|transport|discovery|stats|API)-[0-9]+`

var (
	caseRow     = regexp.MustCompile(`^\| (` + caseID + `) \| (.*) \| (.*) \| (.*) \|$`)
	caseComment = regexp.MustCompile(`\bCases? ` + caseID + `(?:(?:,| and|, and) ` + caseID + `)*`)
	caseName    = regexp.MustCompile(caseID)
)

// Every case stands in docs/cases.md exactly once, with the tests that name it and no others, and what no test answers
// has a remark that says where it is answered, or what it waits for.
func TestCases(t *testing.T) {
	named := testsByCase(t)
	for id, tests := range named {
		if !known(id) {
			t.Errorf("%s names case %s, which does not exist", strings.Join(tests, ", "), id)
		}
	}
	doc := readDoc(t, casesDoc)
	if *update {
		doc = rewriteCases(t, doc, named)
	}
	rows := map[string]int{}
	for line := range strings.SplitSeq(doc, "\n") {
		m := caseRow.FindStringSubmatch(line)
		if m == nil {
			if caseName.MatchString(line) && strings.HasPrefix(line, "| ") {
				t.Errorf("%s: this is no row of four columns: %s", casesDoc, line)
			}
			continue
		}
		id, failure, tests, remark := m[1], m[2], m[3], m[4]
		rows[id]++
		if want := testColumn(named[id]); tests != want {
			t.Errorf("%s: case %s has the tests %s, the code's comments say %s (-update rewrites the column)", casesDoc, id, tests, want)
		}
		if failure == "-" || remark != remarkColumn(tests, remark) {
			t.Errorf("%s: case %s has the tests %s and the remark %q (-update mends it)", casesDoc, id, tests, remark)
		}
	}
	for _, area := range slices.Sorted(maps.Keys(areas)) {
		for n := 1; n <= areas[area]; n++ {
			if id := fmt.Sprintf("%s-%d", area, n); rows[id] != 1 {
				t.Errorf("%s: case %s stands there %d times, want once", casesDoc, id, rows[id])
			}
		}
	}
	if len(rows) != 99 {
		t.Errorf("%s has %d cases, want 99", casesDoc, len(rows))
	}
}

// testsByCase returns, for each case that a comment above a test names, the tests as `dir.TestName`.
func testsByCase(t *testing.T) map[string][]string {
	t.Helper()
	named := map[string][]string{}
	for _, s := range sources(t) {
		if !s.test || s.dir == "internal/archtest" {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !isTest(f.Name.Name) {
				continue
			}
			test := path.Join(s.dir, f.Name.Name)
			text := commentsOf(s.file, f)
			for _, mention := range caseComment.FindAllString(text, -1) {
				for _, id := range caseName.FindAllString(mention, -1) {
					if !slices.Contains(named[id], test) {
						named[id] = append(named[id], test)
					}
				}
			}
		}
	}
	for _, tests := range named {
		slices.SortFunc(tests, func(a, b string) int {
			return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
		})
	}
	return named
}

// commentsOf returns the text of f's doc comment and of all comments inside f.
func commentsOf(file *ast.File, f *ast.FuncDecl) string {
	var text []string
	for _, group := range file.Comments {
		if group == f.Doc || (group.Pos() >= f.Pos() && group.End() <= f.End()) {
			text = append(text, strings.Fields(group.Text())...)
		}
	}
	return strings.Join(text, " ")
}

func isTest(name string) bool {
	return slices.ContainsFunc([]string{"Test", "Fuzz", "Benchmark", "Example"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

func testColumn(tests []string) string {
	if len(tests) == 0 {
		return "-"
	}
	return "`" + strings.Join(tests, "`, `") + "`"
}

// remarkColumn returns remark, but that a case without any answer is "open", and one with a test is not.
func remarkColumn(tests, remark string) string {
	switch {
	case tests == "-" && remark == "-":
		return "open"
	case tests != "-" && remark == "open":
		return "-"
	}
	return remark
}

func known(id string) bool {
	var n int
	i := strings.LastIndexByte(id, '-')
	if _, err := fmt.Sscan(id[i+1:], &n); err != nil {
		return false
	}
	return n >= 1 && n <= areas[id[:i]]
}

func rewriteCases(t *testing.T, doc string, named map[string][]string) string {
	t.Helper()
	lines := strings.Split(doc, "\n")
	for i, line := range lines {
		if m := caseRow.FindStringSubmatch(line); m != nil {
			tests := testColumn(named[m[1]])
			lines[i] = fmt.Sprintf("| %s | %s | %s | %s |", m[1], m[2], tests, remarkColumn(tests, m[4]))
		}
	}
	doc = strings.Join(lines, "\n")
	if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(casesDoc)), []byte(doc), 0o644); err != nil {
		t.Fatal(err)
	}
	return doc
}
