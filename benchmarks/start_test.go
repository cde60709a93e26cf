package benchmarks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/peers"
)

// BenchmarkStart starts a node, opens a keyspace, gets one value and closes the node: alone, and as the tenth of a cluster, where the first value
// comes from a peer.
func BenchmarkStart(b *testing.B) {
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			startAndGet(b, nearcache.NodeConfig{Listen: "127.0.0.1:0"})
		}
	})
	b.Run("tenth", func(b *testing.B) {
		c := testcluster.Loopback(b, 9)
		for _, n := range c.Nodes {
			openCache(b, n, keyspace, remoteConfig())
		}
		for b.Loop() {
			startAndGet(b, nearcache.NodeConfig{ID: "tenth", Listen: "127.0.0.1:0", Weight: -1, Discovery: peers.NewList(c.Members()...)})
		}
	})
}

func startAndGet(b *testing.B, cfg nearcache.NodeConfig) {
	b.Helper()
	n, err := nearcache.Start(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := n.Ready(b.Context()); err != nil {
		b.Fatal(err)
	}
	c := openCache(b, n, keyspace, remoteConfig())
	if _, err := c.Get(b.Context(), valueKey(valueBytes, 1)); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkWeight builds a program that does nothing but refer to a library, and looks at its size and at the packages in it that are not of the
// standard library. "nothing" is an empty one.
func BenchmarkWeight(b *testing.B) {
	programs := []struct{ name, imports, uses string }{
		{"nothing", "", ""},
		{"nearcache", "github.com/nearcache/nearcache", "Start"},
		{"groupcache", "github.com/golang/groupcache", "NewHTTPPool"},
		{"grpc", "google.golang.org/grpc", "NewServer"},
		{"rueidis", "github.com/redis/rueidis", "NewClient"},
		{"go-redis", "github.com/redis/go-redis/v9", "NewClient"},
		{"otter", "github.com/maypok86/otter/v2", "NewCoarseClock"},
	}
	once(b, func() {
		for _, p := range programs {
			size, packages := weigh(b, p.imports, p.uses)
			b.ReportMetric(size, p.name+"-MiB")
			b.ReportMetric(packages, p.name+"-packages")
		}
	})
}

// weigh builds a program in a package that is there for the go command only, by an overlay.
func weigh(b *testing.B, imports, uses string) (mib, packages float64) {
	b.Helper()
	dir, err := os.Getwd()
	if err != nil {
		b.Fatal(err)
	}
	tmp := b.TempDir()
	text := "package main\n\nfunc main() {}\n"
	if imports != "" {
		text = fmt.Sprintf("package main\n\nimport lib %q\n\nvar Used any = lib.%s\n\nfunc main() {}\n", imports, uses)
	}
	source, overlay, out := filepath.Join(tmp, "main.go"), filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "program")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, "weighed", "main.go"): source}})
	if err != nil {
		b.Fatal(err)
	}
	for name, content := range map[string][]byte{source: []byte(text), overlay: replace} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	run := func(args ...string) []byte {
		cmd := exec.CommandContext(b.Context(), "go", args...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			b.Fatalf("go %v: %v", args, err)
		}
		return out
	}
	run("build", "-overlay", overlay, "-ldflags=-s -w", "-o", out, "./weighed")
	fi, err := os.Stat(out)
	if err != nil {
		b.Fatal(err)
	}
	listed := run("list", "-overlay", overlay, "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./weighed")
	return float64(fi.Size()) / (1 << 20), float64(bytes.Count(listed, []byte("\n")) - 1) // without itself
}
