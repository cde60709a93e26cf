package page_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium, spoken to in its DevTools protocol over a pair of pipes: JSON, each message ended by a zero byte.
type browser struct {
	t       *testing.T
	in      io.Writer
	session string

	mu      sync.Mutex // guards what follows
	last    int
	answers map[int]chan message
	loads   int      // pages that were loaded
	errors  []string // that the console showed
}

type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
	Session string `json:"sessionId,omitempty"`
}

// startBrowser starts Chromium, or skips the test where there is none: scripts/ci.sh browser installs it.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Skip("there is no Chromium (Debian: apt-get install chromium): nobody looks at the page")
	}
	theirIn, ourIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourOut, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
		"--disable-background-networking", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // its file descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, in: ourIn, answers: make(map[int]chan message)}
	var ended sync.WaitGroup
	ended.Go(func() { b.listen(ourOut) })
	t.Cleanup(func() {
		b.call("Browser.close", nil, nil)
		ourIn.Close()
		_ = cmd.Wait() // it was told to end
		ended.Wait()
		ourOut.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// listen hands out answers and notes events until the browser ends.
func (b *browser) listen(out io.Reader) {
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0:
			if to := b.answers[m.ID]; to != nil {
				to <- m
				delete(b.answers, m.ID)
			}
		case m.Method == "Page.loadEventFired":
			b.loads++
		case m.Method == "Runtime.exceptionThrown", m.Method == "Runtime.consoleAPICalled", m.Method == "Log.entryAdded":
			b.errors = append(b.errors, m.Method+" "+string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call calls a method of the protocol and waits for its answer.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	p, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	m := message{ID: b.last, Method: method, Params: p, Session: b.session}
	b.answers[m.ID] = answer
	b.mu.Unlock()
	if params == nil {
		m.Params = nil
	}
	if method == "Browser.close" {
		m.Session = ""
	}
	line, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(line, 0)); err != nil {
		b.t.Fatalf("%s: the browser is gone: %v", method, err)
	}
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	select {
	case got := <-answer:
		if got.Error != nil {
			b.t.Fatalf("%s: %s", method, got.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(got.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-patience.C:
		b.t.Fatalf("%s: no answer of the browser", method)
	}
}

// loaded returns how many pages were loaded so far, and what the console showed.
func (b *browser) loaded() (int, []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loads, b.errors
}

// eval evaluates an expression on the page. A page that is being replaced has no result: then it returns false.
func (b *browser) eval(expression string, result any) bool {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil || r.Result.Value == nil {
		return false
	}
	return json.Unmarshal(r.Result.Value, result) == nil
}

// look sets the window's width and the colour scheme.
func (b *browser) look(width int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// screenshot keeps a picture of the whole page, for people, where NEARCACHE_SCREENSHOTS names a folder.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("NEARCACHE_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.png", name)), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
