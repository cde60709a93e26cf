package nearcache_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// misbehaviour is what a function of the application does to node n1 of a cluster, while it is on.
type misbehaviour struct {
	on      atomic.Bool
	calls   atomic.Int64 // while on
	do      func()
	release chan struct{} // ends what hangs
}

func (m *misbehaviour) run() {
	if m.on.Load() {
		m.calls.Add(1)
		m.do()
	}
}

type misCodec struct{ m *misbehaviour }

func (c misCodec) Append(dst []byte, v string) ([]byte, error) {
	c.m.run()
	return append(dst, v...), nil
}
func (c misCodec) Decode(b []byte) (string, error) { c.m.run(); return string(b), nil }

type misLog struct {
	slog.Handler
	m *misbehaviour
}

func (l misLog) Handle(context.Context, slog.Record) error { l.m.run(); return nil }

func (l misLog) Enabled(context.Context, slog.Level) bool { return true }

type misListener struct {
	net.Listener
	m *misbehaviour
}

func (l misListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.m.run()
	return c, err
}

// What each function of the application may do, and what comes of it. Whatever it does, the process lives, other members and other
// keyspaces work, and Close returns.
//
//	function        panic                  Goexit                 hang
//	Watch           logged, tried again    as a panic             the last list stays; Close gives up on it
//	Load, LoadMany  *PanicError            *PanicError            ErrLoadTimeout
//	TTLOf, VersionOf, Codec.Append: as the loader
//	SizeOf          counts as nothing      *PanicError            the callers that share the flight wait, for their contexts
//	Codec.Decode    a miss                 *PanicError            as SizeOf
//	Dial            the peer is away       the peer is away       the peer is away
//	Accept          nobody connects        nobody connects        nobody connects
//	Logger          the record is lost     not contained          not contained
func TestFunctionsThatMisbehave(t *testing.T) {
	type set func(m *misbehaviour, node *nearcache.NodeConfig, cfg *nearcache.Config[string])
	sets := map[string]set{
		"Watch": func(m *misbehaviour, node *nearcache.NodeConfig, _ *nearcache.Config[string]) {
			good := node.Discovery
			node.Discovery = peers.Func(func(ctx context.Context, update func([]peers.Member)) error {
				ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				_ = good.Watch(ctx, update)
				m.run()
				return ctx.Err()
			})
		},
		"Load": func(m *misbehaviour, _ *nearcache.NodeConfig, cfg *nearcache.Config[string]) {
			cfg.Load = func(_ context.Context, key string) (string, error) { m.run(); return "v" + key, nil }
		},
		"LoadMany": func(m *misbehaviour, _ *nearcache.NodeConfig, cfg *nearcache.Config[string]) {
			cfg.Load = nil
			cfg.LoadMany = func(_ context.Context, keys []string) (map[string]string, error) {
				m.run()
				return map[string]string{keys[0]: "v" + keys[0]}, nil
			}
		},
		"TTLOf": func(m *misbehaviour, _ *nearcache.NodeConfig, cfg *nearcache.Config[string]) {
			cfg.TTLOf = func(string, string) time.Duration { m.run(); return 0 }
		},
		"VersionOf": func(m *misbehaviour, _ *nearcache.NodeConfig, cfg *nearcache.Config[string]) {
			cfg.VersionOf = func(string) uint64 { m.run(); return 1 }
		},
		"SizeOf": func(m *misbehaviour, _ *nearcache.NodeConfig, cfg *nearcache.Config[string]) {
			cfg.SizeOf = func(string) int { m.run(); return 1 }
		},
		"Codec": func(m *misbehaviour, _ *nearcache.NodeConfig, cfg *nearcache.Config[string]) { cfg.Codec = misCodec{m} },
		"Dial": func(m *misbehaviour, node *nearcache.NodeConfig, _ *nearcache.Config[string]) {
			good := node.Dial
			node.Dial = func(ctx context.Context, addr string) (net.Conn, error) { m.run(); return good(ctx, addr) }
		},
		"Accept": func(m *misbehaviour, node *nearcache.NodeConfig, _ *nearcache.Config[string]) {
			node.Listener = misListener{node.Listener, m}
		},
		"Logger": func(m *misbehaviour, node *nearcache.NodeConfig, _ *nearcache.Config[string]) {
			node.Logger = slog.New(misLog{slog.DiscardHandler, m})
		},
	}
	for name, set := range sets {
		for how, do := range map[string]func(m *misbehaviour){
			"panic":  func(*misbehaviour) { panic("boom") },
			"goexit": func(*misbehaviour) { runtime.Goexit() },
			"hang":   func(m *misbehaviour) { <-m.release },
		} {
			if name == "Logger" && how != "panic" {
				continue
			}
			t.Run(name+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := &misbehaviour{release: make(chan struct{})}
					m.do = func() { do(m) }
					cfg := nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) { return "v" + key, nil }, LoadTimeout: time.Second}
					misbehaving(t, m, cfg, func(node *nearcache.NodeConfig, cfg *nearcache.Config[string]) { set(m, node, cfg) })
				})
			})
		}
	}
}

// misbehaving runs a cluster whose node n1 is spoilt, and checks what holds whatever its functions do.
func misbehaving(t *testing.T, m *misbehaviour, cfg nearcache.Config[string], spoil func(*nearcache.NodeConfig, *nearcache.Config[string])) {
	good := cfg
	c := testcluster.Bubble(t, 3, func(i int, node *nearcache.NodeConfig) {
		if i == 1 {
			spoil(node, &cfg)
		}
	})
	var caches []*nearcache.Cache[string]
	for i, n := range c.Nodes {
		own := good
		if i == 1 {
			own = cfg
		}
		cache, err := nearcache.New(n, "ks", own)
		if err != nil {
			t.Fatal(err)
		}
		caches = append(caches, cache)
	}
	other, err := nearcache.New(c.Nodes[1], "other", good)
	if err != nil {
		t.Fatal(err)
	}
	m.on.Store(true)
	c.Network.Reset(testcluster.Host(0), testcluster.Host(1)) // for Dial, Accept and the log
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for i := range 20 {
		go func() { _, _ = caches[1].Get(ctx, fmt.Sprint("spoilt", i)) }() // Goexit in a codec ends its caller
	}
	time.Sleep(5 * time.Second)
	if m.calls.Load() == 0 {
		t.Error("it was not called")
	}
	for i := range 20 {
		for _, cache := range []*nearcache.Cache[string]{caches[0], caches[2], other} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			key := fmt.Sprint("good", i)
			if v, err := cache.Get(ctx, key); v != "v"+key || err != nil {
				t.Errorf("others: got %q, %v, want the value", v, err)
			}
			cancel()
		}
	}
	began := time.Now()
	if err := c.Nodes[1].Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	m.on.Store(false)
	close(m.release)
	time.Sleep(time.Minute) // what hung ends
}

// A discovery that panics is reported like one that fails: the last list stays, and it is tried again.
func TestADiscoveryThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		host := c.Network.Host(testcluster.Host(9))
		l, err := host.Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		tries := 0
		n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{
			ID: "x", Listener: l, Dial: host.Dial, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Discovery: peers.Func(func(_ context.Context, update func([]peers.Member)) error {
				if tries++; tries == 1 {
					update(c.Members())
				}
				panic("no such table")
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5500 * time.Millisecond)
		if err := n.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if len(n.Members()) != 3 || tries != 6 || strings.Count(log.String(), "no such table") != 1 {
			t.Errorf("got %d members, %d tries, log:\n%s\nwant 3 members, 6 tries, one line", len(n.Members()), tries, log.String())
		}
	})
}
