package benchmarks

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// serverRemotes starts Redis and memcached, where they are installed, and connects to them.
func serverRemotes(b *testing.B, spec *ownerSpec) (out []remote) {
	b.Helper()
	if !chosen("rueidis") && !chosen("go-redis") && !chosen("gomemcache") {
		return nil // no noise in a profile
	}
	if addr, used := startServer(b, "redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"); addr != "" {
		for _, r := range []remote{rueidisRemote(b, addr, spec), goRedisRemote(b, addr)} {
			r.usage = used
			out = append(out, r)
		}
	}
	if addr, used := startServer(b, "memcached", "-u", "nobody", "-l", "127.0.0.1", "-m", "1024", "-c", "4096", "-p"); addr != "" {
		r := memcacheRemote(b, addr, spec)
		r.usage = used
		out = append(out, r)
	}
	return out
}

// startServer runs a program of the system, whose last argument is the port, until the benchmark ends. An empty address: it is not installed.
func startServer(b *testing.B, name string, args ...string) (addr string, used func(*testing.B) usage) {
	b.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		b.Logf("%s is not installed: its clients are left out", name)
		return "", nil
	}
	l, err := listen(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	addr = l.Addr().String()
	l.Close()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), path, append(args, port)...)
	cmd.Dir = b.TempDir()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var d net.Dialer
	for begin := time.Now(); ; {
		conn, err := d.DialContext(b.Context(), "tcp", addr)
		if err == nil {
			conn.Close()
			break
		}
		if time.Since(begin) > 10*time.Second {
			b.Fatal(name, " does not answer: ", err)
		}
		<-time.After(10 * time.Millisecond)
	}
	return addr, func(b *testing.B) usage {
		b.Helper()
		return usage{CPU: processCPU(cmd.Process.Pid)}
	}
}

// processCPU is the processor time, in ns, that a process has used so far; 0 where there is no /proc as Linux has it.
func processCPU(pid int) (ns int64) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, t := range threads {
		text, err := os.ReadFile(t)
		first, _, _ := strings.Cut(string(text), " ")
		if n, errParse := strconv.ParseInt(first, 10, 64); err == nil && errParse == nil {
			ns += n
		}
	}
	return ns
}

// rueidisRemote pipelines over one connection, always, as nearcache does. It sets the values.
func rueidisRemote(b *testing.B, addr string, spec *ownerSpec) remote {
	b.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, AlwaysPipelining: true, PipelineMultiplex: -1,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	if err := spec.keys(func(key string) error {
		return c.Do(b.Context(), c.B().Set().Key(key).Value(rueidis.BinaryString(newValue(key))).Build()).Error()
	}); err != nil {
		b.Fatal(err)
	}
	return remote{
		name: "rueidis",
		get: func(ctx context.Context, key string) (int, error) {
			v, err := c.Do(ctx, c.B().Get().Key(key).Build()).AsBytes()
			return len(v), err
		},
		getMany: func(ctx context.Context, keys []string) (int, error) {
			vs, err := c.Do(ctx, c.B().Mget().Key(keys...).Build()).AsStrSlice()
			return totalLen(vs), err
		},
	}
}

func totalLen(vs []string) (n int) {
	for _, v := range vs {
		n += len(v)
	}
	return n
}

// goRedisRemote has a connection for every caller.
func goRedisRemote(b *testing.B, addr string) remote {
	b.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1024, PoolTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second})
	b.Cleanup(func() { _ = c.Close() })
	return remote{
		name: "go-redis",
		get: func(ctx context.Context, key string) (int, error) {
			v, err := c.Get(ctx, key).Bytes()
			return len(v), err
		},
		getMany: func(ctx context.Context, keys []string) (int, error) {
			vs, err := c.MGet(ctx, keys...).Result()
			n := 0
			for _, v := range vs {
				s, ok := v.(string)
				if !ok {
					return 0, errMissing
				}
				n += len(s)
			}
			return n, err
		},
	}
}

// memcacheRemote has a connection for every caller. It sets the values.
func memcacheRemote(b *testing.B, addr string, spec *ownerSpec) remote {
	b.Helper()
	c := memcache.New(addr)
	c.MaxIdleConns, c.Timeout = 1024, 10*time.Second
	b.Cleanup(func() { _ = c.Close() })
	if err := spec.keys(func(key string) error { return c.Set(&memcache.Item{Key: key, Value: newValue(key)}) }); err != nil {
		b.Fatal(err)
	}
	return remote{
		name: "gomemcache",
		get: func(_ context.Context, key string) (int, error) {
			it, err := c.Get(key)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", key, err)
			}
			return len(it.Value), nil
		},
		getMany: func(_ context.Context, keys []string) (int, error) {
			its, err := c.GetMulti(keys)
			n := 0
			for _, it := range its {
				n += len(it.Value)
			}
			return n, err
		},
	}
}
