package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// build compiles the program and returns its path.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "catalog.exe")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// TestProgram runs the built program for a short while, as processes, and wants all its verdicts to pass.
func TestProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes for several seconds: runs without -short")
	}
	program := build(t)
	for _, c := range []struct {
		name string
		args string
	}{
		{"steady", "-duration 4s -rate 2000 -ttl 2s"},
		{"kill", "-duration 6s -rate 2000 -kill"},
		{"one node, other trace", "-duration 2s -rate 1000 -nodes 1 -trace domains_mail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // as documented
			defer cancel()
			var out, progress bytes.Buffer
			cmd := exec.CommandContext(ctx, program, append(strings.Fields(c.args), "-json")...)
			cmd.Stdout, cmd.Stderr = &out, &progress
			err := cmd.Run()
			var s summary
			if jsonErr := json.Unmarshal(out.Bytes(), &s); jsonErr != nil {
				t.Fatalf("%v, output: %v\n%s\n%s", err, jsonErr, out.Bytes(), progress.Bytes())
			}
			for _, v := range s.Verdicts {
				if !v.Pass {
					t.Errorf("failed verdict: %s: %s", v.What, v.Detail)
				}
			}
			if err != nil || !s.Pass || len(s.Verdicts) == 0 {
				t.Errorf("got %v, pass %t, %d verdicts; want exit code 0 and verdicts that pass", err, s.Pass, len(s.Verdicts))
			}
			if kill := strings.Contains(c.args, "-kill"); kill != (s.Killed != nil) {
				t.Errorf("got killed %+v, want one: %t", s.Killed, kill)
			}
			if !strings.Contains(progress.String(), "reads/s") {
				t.Errorf("got no progress on standard error:\n%s", progress.Bytes())
			}
		})
	}
}

// TestProgramInterrupted lets the program run, looks at a statistics page, interrupts it, and wants the table and nothing left behind.
func TestProgramInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes for several seconds: runs without -short")
	}
	program, temp := build(t), t.TempDir()
	cmd := exec.CommandContext(t.Context(), program, "-keep", "-rate", "500")
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	var out syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	urls := waitFor(t, &out, regexp.MustCompile(`statistics: (http://\S+)`), 3)
	waitFor(t, &out, regexp.MustCompile(`(?m)^ +[0-9.]+ s .*%`), 2)
	for _, url := range urls {
		checkPage(t, url)
		checkPage(t, url+"stats.json")
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Skipf("cannot interrupt here: %v", err)
	}
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != exitFail) {
		t.Errorf("got %v, want an exit by itself", err)
	}
	if !strings.Contains(out.String(), "Verdicts") {
		t.Errorf("got no table after the interrupt:\n%s", out.String())
	}
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("got %v left in the temporary directory, want nothing", left)
	}
	for _, url := range urls {
		if statusOf(t, url) == http.StatusOK {
			t.Errorf("%s still answers: the node runs on", url)
		}
	}
}

// TestChildEndsWithItsInput: whatever ends the parent, no node stays.
func TestChildEndsWithItsInput(t *testing.T) {
	var out bytes.Buffer
	in, err := json.Marshal(settings{Nodes: 1, Trace: "domains_mail", Rate: 1, TTL: time.Second, MaxLoads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if code := runChild(bytes.NewReader(in), &out); code == 0 || !strings.Contains(out.String(), "the parent is gone") {
		t.Errorf("got exit code %d, output %s", code, out.String())
	}
}

// waitFor returns the first n matches of re's group, or its whole, in out.
func waitFor(t *testing.T, out *syncBuffer, re *regexp.Regexp, n int) (found []string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if all := re.FindAllStringSubmatch(out.String(), -1); len(all) >= n {
			for _, m := range all {
				found = append(found, m[len(m)-1])
			}
			return found
		}
		<-time.After(20 * time.Millisecond) // the program is another process: no bubble
	}
	t.Fatalf("got no %d matches of %s in\n%s", n, re, out.String())
	return nil
}

func checkPage(t *testing.T, url string) {
	t.Helper()
	if status := statusOf(t, url); status != http.StatusOK {
		t.Errorf("%s: got status %d, want 200", url, status)
	}
}

// statusOf returns the status of url, 0 if nobody answers.
func statusOf(t *testing.T, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
