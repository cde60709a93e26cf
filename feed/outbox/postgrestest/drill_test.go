package postgrestest

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// The drill against a real database: the stream of changes is the outbox. With the protection on nothing old is read after the stream is back.
func TestDrill(t *testing.T) {
	s := start(t)
	cmd := exec.CommandContext(t.Context(), "go", "run", "./example/drill", "-break", "4", "-speed", "3", "-db", "host="+s.dir+" user=test database=postgres")
	cmd.Dir = "../../.."
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	var rows []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "on ") || strings.HasPrefix(line, "off ") {
			rows = append(rows, line)
		}
	}
	t.Logf("\n%s", out)
	if len(rows) != 2 || !strings.HasSuffix(rows[0], " never\n") || strings.HasSuffix(rows[1], " never\n") {
		t.Errorf("want that readers never see the changes with the protection off, and do with it on")
	}
}
