package nearcache_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

// silentDiscovery never answers.
type silentDiscovery struct{}

func (silentDiscovery) Watch(ctx context.Context, _ func([]peers.Member)) error {
	<-ctx.Done()
	return ctx.Err()
}

// A node that is closed before discovery has answered, by several at once and with calls under way, leaves nothing: its port is free,
// and everybody who waits for it gets ErrClosed.
func TestCloseBeforeTheMembersAreKnown(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel) // in the middle of Start
	n, err := nearcache.Start(ctx, nearcache.NodeConfig{Listen: "127.0.0.1:0", Discovery: silentDiscovery{}, PeerTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c, err := nearcache.New(n, "ks", nearcache.Config[string]{Load: func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Ready(context.Background()); !errors.Is(err, nearcache.ErrClosed) {
			t.Errorf("Ready: got %v, want %v", err, nearcache.ErrClosed)
		}
	})
	for range 10 {
		wg.Go(func() {
			if _, err := c.Get(context.Background(), "k"); !errors.Is(err, nearcache.ErrClosed) {
				t.Errorf("Get: got %v, want %v", err, nearcache.ErrClosed)
			}
		})
	}
	for c.Stats().Flights == 0 {
		time.Sleep(time.Millisecond)
	}
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	for range 4 {
		wg.Go(func() {
			if err := n.Close(short); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
	if err := n.Close(context.Background()); err != nil {
		t.Errorf("Close again: %v", err)
	}
	l, err := net.Listen("tcp", n.Addr())
	if err != nil {
		t.Fatalf("the port is not free: %v", err)
	}
	_ = l.Close()
}

// Plaintext is refused where others could listen, unless it is asked for, before anything is served.
func TestPlaintextIsRefused(t *testing.T) {
	for addr, refused := range map[string]bool{"0.0.0.0:0": true, "127.0.0.1:0": false} {
		for _, allowed := range []bool{false, true} {
			n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{Listen: addr, Advertise: "127.0.0.1:7946", Plaintext: allowed})
			var config *nearcache.ConfigError
			if got := errors.As(err, &config); got != (refused && !allowed) || err != nil && !got {
				t.Errorf("%s, allowed %v: got %v", addr, allowed, err)
			}
			if n != nil {
				if err := n.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// closeCounter is a listener that counts its closes.
type closeCounter struct {
	net.Listener
	addr   net.Addr
	closes atomic.Int64
}

func (l *closeCounter) Addr() net.Addr { return l.addr }

func (l *closeCounter) Close() error {
	l.closes.Add(1)
	return nil
}

// The listener belongs to Start, whatever it returns: every failure closes it, so that its port is free again.
func TestStartClosesTheListenerWhenItFails(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7946}
	for name, tt := range map[string]struct {
		ctx  context.Context
		addr net.Addr
		cfg  nearcache.NodeConfig
	}{
		"configuration":     {t.Context(), loopback, nearcache.NodeConfig{Replicas: 9}},
		"two listeners":     {t.Context(), loopback, nearcache.NodeConfig{Listen: "127.0.0.1:0"}},
		"context":           {ended, loopback, nearcache.NodeConfig{}},
		"cannot be dialled": {t.Context(), &net.TCPAddr{IP: net.IPv4zero, Port: 7946}, nearcache.NodeConfig{}},
		"plaintext":         {t.Context(), &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7946}, nearcache.NodeConfig{}},
		"long name":         {t.Context(), loopback, nearcache.NodeConfig{ID: strings.Repeat("x", 256)}},
	} {
		l := &closeCounter{addr: tt.addr}
		tt.cfg.Listener = l
		n, err := nearcache.Start(tt.ctx, tt.cfg)
		if n != nil || err == nil {
			t.Errorf("%s: got %v, %v, want an error", name, n, err)
		}
		if got := l.closes.Load(); got != 1 {
			t.Errorf("%s: closed %d times, want once", name, got)
		}
	}
}
