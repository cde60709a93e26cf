package peerstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// connect returns both ends of a connection between two hosts.
func connect(t *testing.T, n *Network, from, to string) (near, far net.Conn) {
	t.Helper()
	l, err := n.Host(to).Listen(":0")
	if err != nil {
		t.Fatal(err)
	}
	near, err = n.Host(from).Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if n, err := c.Write([]byte(text)); err != nil || n != len(text) {
		t.Fatalf("Write(%q): got %d, %v", text, n, err)
	}
}

// expect reads text within a virtual second.
func expect(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("Read: got %q, %v, want %q", got[:n], err, text)
	}
}

// expectNothing checks that no byte and no error comes within a virtual minute.
func expectNothing(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Read: got %d bytes, %v, want nothing until the deadline", n, err)
	}
}

// expectError checks that a read fails with want within a virtual second.
func expectError(t *testing.T, c net.Conn, want error) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, want) {
		t.Fatalf("Read: got %d bytes, %v, want %v", n, err, want)
	}
}

// dialError checks how a dial ends that may take a virtual minute.
func dialError(t *testing.T, h *Host, addr string, want error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := h.Dial(ctx, addr)
	if !errors.Is(err, want) {
		t.Errorf("dial %s from %s: got %v, want %v", addr, h.Name(), err, want)
	}
	if err == nil {
		_ = c.Close() // fresh
	}
}

// TestConnIsANetConn runs the checks of x/net for every net.Conn: deadlines, blocking, concurrent use. It runs on the real
// clock, as they need it.
func TestConnIsANetConn(t *testing.T) {
	for _, latency := range []time.Duration{0, 100 * time.Microsecond} {
		t.Run(fmt.Sprint("latency=", latency), func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				n := NewNetwork()
				n.SetLatency(latency)
				l, err := n.Listen("b:1")
				if err != nil {
					return nil, nil, nil, err
				}
				if c1, err = n.Host("a").Dial(context.Background(), "b:1"); err != nil {
					return nil, nil, nil, err
				}
				if c2, err = l.Accept(); err != nil {
					return nil, nil, nil, err
				}
				return c1, c2, func() { _, _, _ = c1.Close(), c2.Close(), l.Close() }, nil
			})
		})
	}
}

func TestAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		l, err := n.Host("::1").Listen("[0:0:0:0:0:0:0:1]:7946")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := l.Addr().String(), "[::1]:7946"; got != want {
			t.Errorf("Addr: got %s, want %s", got, want)
		}
		c, err := n.Host("A").Dial(t.Context(), "[0:0::1]:7946")
		if err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if c.RemoteAddr() != far.LocalAddr() || c.LocalAddr() != far.RemoteAddr() || c.RemoteAddr().String() != "[::1]:7946" {
			t.Errorf("the ends have addresses %v to %v and %v to %v", c.LocalAddr(), c.RemoteAddr(), far.LocalAddr(), far.RemoteAddr())
		}
		if host, _, err := net.SplitHostPort(c.LocalAddr().String()); err != nil || host != "a" {
			t.Errorf("the dialling end is at %v, want a port of host a", c.LocalAddr())
		}
		if n.Host("a") != n.Host("A") {
			t.Error("a and A are two hosts, want one")
		}

		for addr, want := range map[string]error{
			"[::1]:7946": syscall.EADDRINUSE, "other:1": syscall.EADDRNOTAVAIL, "bad": nil, ":http": nil, ":65536": nil,
		} {
			if _, err := n.Host("::1").Listen(addr); err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("Listen(%q): got %v, want %v", addr, err, want)
			}
		}
		for addr, want := range map[string]error{"[::1]:1": syscall.ECONNREFUSED, "nobody:1": syscall.ECONNREFUSED} {
			dialError(t, n.Host("a"), addr, want)
		}
		if _, err := n.Dial(t.Context(), "bad"); err == nil {
			t.Error("Dial(bad): want an error")
		}
		first, err1 := n.Listen("b:0")
		second, err2 := n.Host("b").Listen(":0")
		if err1 != nil || err2 != nil || first.Addr().String() == second.Addr().String() {
			t.Errorf("Listen at port 0: got %v, %v and %v, %v", first, err1, second, err2)
		}
	})
}

func TestListenerCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		l, err := n.Listen("b:1")
		if err != nil {
			t.Fatal(err)
		}
		a := n.Host("a")
		waiting, err := a.Dial(t.Context(), "b:1")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		expectError(t, waiting, syscall.ECONNRESET)
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: got %v", err)
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second Close: got %v", err)
		}
		dialError(t, a, "b:1", syscall.ECONNREFUSED)

		if l, err = n.Listen("b:1"); err != nil {
			t.Fatalf("Listen again: %v", err)
		}
		done := make(chan error)
		go func() {
			_, err := l.Accept()
			done <- err
		}()
		synctest.Wait()
		_ = l.Close() // checked above
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept when Close comes: got %v", err)
		}

		if l, err = n.Listen("b:1"); err != nil {
			t.Fatal(err)
		}
		for range backlog {
			if _, err := a.Dial(t.Context(), "b:1"); err != nil {
				t.Fatalf("Dial into the backlog: %v", err)
			}
		}
		dialError(t, a, "b:1", syscall.ECONNREFUSED)
		_ = l.Close()
	})
}

func TestBuffersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := connect(t, NewNetwork(), "a", "b")
		if err := near.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		big := bytes.Repeat([]byte("0123456789"), 10_000)
		sent, err := near.Write(big)
		if sent != bufferedBytes || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write of %d bytes that nobody reads: got %d, %v, want %d until the deadline", len(big), sent, err, bufferedBytes)
		}
		if err := near.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := near.Write(big[sent:])
			done <- errors.Join(err, near.Close())
		}()
		got, err := io.ReadAll(far)
		if err != nil || !bytes.Equal(got, big) {
			t.Errorf("ReadAll: got %d bytes, %v, want all %d in order", len(got), err, len(big))
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := far.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write to an end that has closed: got %v, want %v", err, syscall.EPIPE)
		}
	})
}

func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		n.SetLatency(30 * time.Millisecond)
		n.Delay("b", "a", 10*time.Millisecond)
		began := time.Now()
		near, far := connect(t, n, "a", "b")
		if got, want := time.Since(began), 40*time.Millisecond; got != want {
			t.Errorf("dial took %v, want %v", got, want)
		}
		arrives := func(from, to net.Conn, text string, want time.Duration) {
			t.Helper()
			began := time.Now()
			send(t, from, text)
			expect(t, to, text)
			if got := time.Since(began); got != want {
				t.Errorf("%q took %v, want %v", text, got, want)
			}
		}
		arrives(near, far, "there", 30*time.Millisecond)
		arrives(far, near, "back", 10*time.Millisecond)

		send(t, near, "slow ")
		n.Delay("a", "b", 0)
		arrives(near, far, "slow ", 30*time.Millisecond) // "slow " twice: the second does not overtake the first
		expect(t, far, "slow ")
		arrives(near, far, "fast", 0)

		n.SetLatency(0)
		n.Delay("a", "b", 50*time.Millisecond)
		send(t, near, "bye")
		_ = near.Close() // fresh
		expect(t, far, "bye")
		expectError(t, far, io.EOF)

		self, me := connect(t, n, "c", "c")
		n.SetLatency(time.Second)
		arrives(self, me, "local", 0)
	})
}

func TestCutHoldsEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		near, far := connect(t, n, "a", "b")
		addr := far.LocalAddr().String()
		send(t, near, "one ")
		n.Cut("b", "a")
		send(t, near, "two ")
		send(t, far, "answer")
		expectNothing(t, far)
		expectNothing(t, near)
		dialError(t, n.Host("a"), addr, context.DeadlineExceeded)
		if got := n.Dials("a", "b"); got != 1 {
			t.Errorf("Dials: got %d, want 1, as the second did not get through", got)
		}
		var dialled sync.WaitGroup
		dialled.Go(func() { // hangs until the way is free
			c, err := n.Host("a").Dial(t.Context(), addr)
			if err != nil {
				t.Errorf("dial that outlasts the cut: %v", err)
				return
			}
			_ = c.Close()
		})
		var read sync.WaitGroup
		read.Go(func() { // as a server does: without a deadline, and there before the bytes are
			if err := far.SetReadDeadline(time.Time{}); err != nil {
				t.Error(err)
			}
			got := make([]byte, 4)
			if _, err := io.ReadFull(far, got); err != nil || string(got) != "one " {
				t.Errorf("Read that outlasts the cut: got %q, %v", got, err)
			}
		})
		synctest.Wait()
		n.Heal("a", "b")
		dialled.Wait()
		read.Wait()
		send(t, near, "three")
		expect(t, far, "two three")
		expect(t, near, "answer")

		n.Cut("a", "b")
		_ = near.Close() // nobody hears it
		send(t, far, "into the void")
		expectNothing(t, far)
		n.HealAll()
		expectError(t, far, io.EOF)
		if _, err := far.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write after the end has come through: got %v", err)
		}
	})
}

func TestCutOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		near, far := connect(t, n, "a", "b")
		n.CutOneWay("a", "b")
		send(t, near, "request")
		send(t, far, "answer")
		expect(t, near, "answer")
		expectNothing(t, far)
		dialError(t, n.Host("a"), far.LocalAddr().String(), context.DeadlineExceeded)
		n.Heal("b", "a")
		expect(t, far, "request")
	})
}

func TestIsolate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		near, far := connect(t, n, "a", "b")
		self, me := connect(t, n, "a", "a")
		other, another := connect(t, n, "b", "c")
		n.Isolate("a")
		send(t, near, "out")
		expectNothing(t, far)
		send(t, self, "home")
		expect(t, me, "home")
		send(t, other, "elsewhere")
		expect(t, another, "elsewhere")
		dialError(t, n.Host("new"), near.LocalAddr().String(), context.DeadlineExceeded)
		n.Heal("a", "b") // another fault
		expectNothing(t, far)
		n.Rejoin("a")
		expect(t, far, "out")
	})
}

func TestRefuseAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		near, far := connect(t, n, "a", "b")
		bystander, _ := connect(t, n, "a", "c")
		addr := far.LocalAddr().String()
		n.Refuse("a", "b")
		dialError(t, n.Host("a"), addr, syscall.ECONNREFUSED)
		dialError(t, n.Host("c"), addr, nil)
		send(t, near, "still open")
		expect(t, far, "still open")
		if got := n.Dials("a", "b"); got != 2 {
			t.Errorf("Dials: got %d, want 2", got)
		}

		send(t, near, "lost")
		if got := n.Conns("a", "b"); got != 1 {
			t.Errorf("Conns: got %d, want 1", got)
		}
		n.Reset("b", "a")
		expectError(t, near, syscall.ECONNRESET)
		expectError(t, far, syscall.ECONNRESET)
		if _, err := near.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Write after Reset: got %v", err)
		}
		if got := n.Conns("a", "b"); got != 0 {
			t.Errorf("Conns after Reset: got %d, want 0", got)
		}
		expectNothing(t, bystander)
		n.Heal("a", "b")
		dialError(t, n.Host("a"), addr, nil)
	})
}

func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		near, far := connect(t, n, "a", "b")
		addr := far.LocalAddr().String()
		dead := n.Host("b")
		n.Cut("a", "b")
		dead.Crash()
		dead.Crash()
		expectError(t, far, syscall.ECONNRESET)
		expectNothing(t, near) // cut off: nobody tells it
		n.Heal("a", "b")
		expectError(t, near, syscall.ECONNRESET)
		dialError(t, n.Host("a"), addr, syscall.ECONNREFUSED)

		reborn := n.Host("b")
		if reborn == dead {
			t.Fatal("Host returns the dead host")
		}
		l, err := reborn.Listen(addr)
		if err != nil {
			t.Fatalf("Listen at the old address: %v", err)
		}
		dialError(t, n.Host("a"), addr, nil)
		dialError(t, dead, addr, syscall.ENETDOWN)
		if _, err := dead.Listen(":0"); !errors.Is(err, syscall.ENETDOWN) {
			t.Errorf("Listen of a dead host: got %v", err)
		}
		_ = l.Close()
	})
}

// Both directions of a connection end at the same time, whatever the delays: gRPC opens a stream over and over, without a pause, on a
// connection that cannot be written but does not end, and virtual time would stand still.
func TestBothDirectionsEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
			n := NewNetwork()
			near, far := connect(t, n, "a", "b")
			n.SetLatency(100 * time.Millisecond)
			send(t, far, "under way")
			n.SetLatency(after) // what is under way arrives later than the end would
			read := make(chan time.Time, 1)
			go func() {
				_, _ = io.Copy(io.Discard, near)
				read <- time.Now()
			}()
			n.Host("b").Crash()
			for {
				if _, err := near.Write([]byte("x")); err != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			wrote := time.Now()
			if got := <-read; got.Sub(wrote).Abs() > time.Millisecond {
				t.Errorf("delay %v: reading ended %v after writing, want both at once", after, got.Sub(wrote))
			}
			near.Close()
		}
	})
}
