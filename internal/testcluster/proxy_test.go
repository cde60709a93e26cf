package testcluster

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// echo answers every connection with what comes on it. It returns its address, and the ends of connections that it accepts.
func echo(t *testing.T) (addr string, ended <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ends := make(chan error, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, err := io.Copy(c, c)
				c.Close()
				ends <- err
			}()
		}
	}()
	return l.Addr().String(), ends
}

// through returns a proxy to an echo and a connection through it that works.
func through(t *testing.T) (*Proxy, net.Conn, <-chan error) {
	t.Helper()
	p := NewProxy(t)
	addr, ended := echo(t)
	p.To(addr)
	c := dial(t, p)
	if got, _, err := ask(c, "works", soon); got != "works" || err != nil { // dialled is not yet accepted by the proxy
		t.Fatalf("got %q, %v", got, err)
	}
	return p, c, ended
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends text and returns what came back within d, and how long that took.
func ask(c net.Conn, text string, d time.Duration) (string, time.Duration, error) {
	began := time.Now()
	if _, err := io.WriteString(c, text); err != nil {
		return "", 0, err
	}
	return hear(c, len(text), began, d)
}

func hear(c net.Conn, n int, began time.Time, d time.Duration) (string, time.Duration, error) {
	_ = c.SetReadDeadline(began.Add(d))
	b := make([]byte, n)
	n, err := io.ReadFull(c, b)
	return string(b[:n]), time.Since(began), err
}

const (
	soon = 10 * time.Second       // on a machine that does much else
	long = 100 * time.Millisecond // without an answer
)

func TestProxyPassesOn(t *testing.T) {
	p, c, ended := through(t)
	if got, _, err := ask(c, "hello", soon); got != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	p.Flow(Flow{Delay: long}, Flow{Delay: long})
	if got, took, err := ask(c, "late", soon); got != "late" || err != nil || took < 2*long {
		t.Errorf("got %q after %v, %v, want it after the delay of both directions", got, took, err)
	}
	p.Flow(Flow{Rate: 64 << 10}, Flow{})
	if got, took, err := ask(c, strings.Repeat("x", 16<<10), soon); len(got) != 16<<10 || err != nil || took < 2*long {
		t.Errorf("got %d bytes after %v, %v, want 16 KiB at 64 KiB/s", len(got), took, err)
	}
	p.Heal()
	c.Close()
	if err := <-ended; err != nil {
		t.Errorf("the node's end: got %v, want that it closed", err)
	}
}

func TestProxyHoldsBack(t *testing.T) {
	hold := Flow{Hold: true}
	for name, flows := range map[string][2]Flow{"both": {hold, hold}, "in": {hold, {}}, "out": {{}, hold}} {
		t.Run(name, func(t *testing.T) {
			p, c, _ := through(t)
			p.Flow(flows[0], flows[1])
			began := time.Now()
			if got, _, err := ask(c, "hello", long); got != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %q, %v, want nothing", got, err)
			}
			other := dial(t, p) // accepted, and silent
			if got, _, err := ask(other, "hello", long); got != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("on a new connection: got %q, %v, want nothing", got, err)
			}
			p.Heal()
			for _, c := range []net.Conn{c, other} {
				if got, _, err := hear(c, 5, began, soon); got != "hello" || err != nil {
					t.Errorf("afterwards: got %q, %v, want what was held back", got, err)
				}
			}
		})
	}
}

func TestProxyBreaks(t *testing.T) {
	p, c, _ := through(t)
	reset := func(c net.Conn) {
		t.Helper()
		if _, _, err := ask(c, "hello", soon); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want a broken connection", err)
		}
	}
	p.Reset()
	reset(c)
	c = dial(t, p)
	if got, _, err := ask(c, "hello", soon); got != "hello" || err != nil {
		t.Errorf("a new connection: got %q, %v", got, err)
	}
	p.Cut()
	reset(c)
	if c, err := net.Dial("tcp", p.Addr()); err == nil { // else it was reset that fast
		reset(c)
		c.Close()
	}
	p.Heal()
	if got, _, err := ask(dial(t, p), "hello", soon); got != "hello" || err != nil {
		t.Errorf("after Heal: got %q, %v", got, err)
	}
}

func TestProxyHalfOpen(t *testing.T) {
	p, c, ended := through(t)
	if _, _, err := ask(c, "hello", soon); err != nil {
		t.Fatal(err)
	}
	p.HalfOpen()
	if err := <-ended; err == nil {
		t.Error("the node was told that the connection closed, want a reset")
	}
	for range 2 {
		if got, _, err := ask(c, "hello", long); got != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the peer got %q, %v, want nothing", got, err)
		}
	}
	if got, _, err := ask(dial(t, p), "hello", soon); got != "hello" || err != nil {
		t.Errorf("a new connection: got %q, %v", got, err)
	}
}

func TestValuesDescribeThemselves(t *testing.T) {
	v := Value("a|b", 7)
	if got, err := Version("a|b", v); got != 7 || err != nil {
		t.Errorf("got %d, %v, want 7", got, err)
	}
	for _, bad := range []string{"", v + "x", v[1:], Value("a|c", 7), "7|a|b"} {
		if got, err := Version("a|b", bad); err == nil {
			t.Errorf("%q is version %d, want an error", bad, got)
		}
	}
}
