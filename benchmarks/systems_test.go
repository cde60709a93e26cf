package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/golang/groupcache"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

// remote is a way to get values that the owner process holds. get and getMany return the number of bytes they got.
type remote struct {
	name    string
	get     func(ctx context.Context, key string) (int, error)
	getMany func(ctx context.Context, keys []string) (int, error)
}

// remotes starts the owner and connects every system to it. The first one is nearcache.
func remotes(b *testing.B) ([]remote, *owner) {
	b.Helper()
	n, list := clientNode(b)
	o := startOwner(b, n.Addr())
	joinOwner(b, n, list, o)
	var out []remote
	for _, r := range []remote{nearcacheRemote(b, n), groupcacheRemote(o), grpcRemote(b, o)} {
		if chosen(r.name) {
			out = append(out, r)
		}
	}
	if len(out) == 0 {
		b.Fatalf("-only=%s: no such system", *only)
	}
	return out, o
}

const (
	keyspace     = "remote"
	nearKeyspace = "near"
)

func loadValue(_ context.Context, key string) ([]byte, error) { return newValue(key), nil }

var errLoaded = errors.New("the client loaded a value: it should be resident at the owner")

func loadNothing(context.Context, string) ([]byte, error) { return nil, errLoaded }

// remoteConfig is a keyspace without near copies.
func remoteConfig(load func(context.Context, string) ([]byte, error)) nearcache.Config[[]byte] {
	return nearcache.Config[[]byte]{Load: load, TTL: time.Hour, NearTTL: -1}
}

// nearConfig is one whose near copies live for the whole run.
func nearConfig(load func(context.Context, string) ([]byte, error)) nearcache.Config[[]byte] {
	return nearcache.Config[[]byte]{Load: load, TTL: time.Hour, NearTTL: time.Hour, Jitter: -1}
}

// ownNearcache makes the owner's node, which owns every key: the client has no weight.
func ownNearcache(ctx context.Context, client string) (string, error) {
	n, err := nearcache.Start(ctx, nearcache.NodeConfig{
		Listen:      "127.0.0.1:0",
		Discovery:   peers.NewList(peers.Member{Addr: client, Weight: -1}),
		PeerTimeout: time.Second, // a busy machine is no sick peer
		MaxBytes:    1 << 30,
	})
	if err != nil {
		return "", err
	}
	if err := ownLarge(ctx, n); err != nil {
		return "", err
	}
	for name, cfg := range map[string]nearcache.Config[[]byte]{keyspace: remoteConfig(loadValue), nearKeyspace: nearConfig(loadValue)} {
		c, err := nearcache.New(n, name, cfg)
		if err != nil {
			return "", err
		}
		for i := range ownedKeys {
			if _, err := c.Get(ctx, ownedKey(i)); err != nil {
				return "", err
			}
		}
	}
	return n.Addr(), nil
}

// clientNode starts a node that owns nothing.
func clientNode(b *testing.B) (*nearcache.Node, *peers.List) {
	b.Helper()
	list := peers.NewList()
	n, err := nearcache.Start(b.Context(), nearcache.NodeConfig{
		Listen: "127.0.0.1:0", Discovery: list, Weight: -1, PeerTimeout: time.Second,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			b.Error(err)
		}
	})
	return n, list
}

// joinOwner waits until the client's node is connected to the owner's.
func joinOwner(b *testing.B, n *nearcache.Node, list *peers.List, o *owner) {
	b.Helper()
	list.Set(peers.Member{Addr: o.Nearcache})
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	for {
		if err := n.Ready(ctx); err != nil {
			b.Fatal(err)
		}
		if n.Owner(keyspace, ownedKey(0)).Addr == o.Nearcache {
			return
		}
		select {
		case <-ctx.Done():
			b.Fatal("the client does not see the owner:", n.Members())
		case <-time.After(time.Millisecond):
		}
	}
}

func nearcacheRemote(b *testing.B, n *nearcache.Node) remote {
	b.Helper()
	c, err := nearcache.New(n, keyspace, remoteConfig(loadNothing))
	if err != nil {
		b.Fatal(err)
	}
	return remote{
		name: "nearcache",
		get: func(ctx context.Context, key string) (int, error) {
			v, err := c.Get(ctx, key)
			return len(v), err
		},
		getMany: func(ctx context.Context, keys []string) (int, error) {
			vs, err := c.GetMany(ctx, keys)
			sum := 0
			for _, v := range vs {
				sum += len(v)
			}
			return sum, err
		},
	}
}

func listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", "127.0.0.1:0")
}

// groupcache allows one pool and one group of a name per process.

func ownGroupcache(ctx context.Context) (string, error) {
	l, err := listen(ctx)
	if err != nil {
		return "", err
	}
	self := "http://" + l.Addr().String()
	pool := groupcache.NewHTTPPoolOpts(self, nil)
	pool.Set(self)
	g := groupcache.NewGroup(keyspace, 1<<30, groupcache.GetterFunc(func(_ context.Context, key string, dest groupcache.Sink) error {
		return dest.SetBytes(newValue(key))
	}))
	for i := range ownedKeys {
		var v []byte
		if err := g.Get(ctx, ownedKey(i), groupcache.AllocatingByteSliceSink(&v)); err != nil {
			return "", err
		}
	}
	go func() { _ = http.Serve(l, pool) }() // until the process ends
	return self, nil
}

// groupcacheClient makes the process' pool, with connections enough for every caller, and its group, which keeps nothing.
var groupcacheClient = sync.OnceValues(func() (*groupcache.HTTPPool, *groupcache.Group) {
	pool := groupcache.NewHTTPPoolOpts("http://client", nil)
	tr := &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 2048, DisableCompression: true}
	pool.Transport = func(context.Context) http.RoundTripper { return tr }
	g := groupcache.NewGroup(keyspace, 0, groupcache.GetterFunc(func(context.Context, string, groupcache.Sink) error { return errLoaded }))
	return pool, g
})

func groupcacheRemote(o *owner) remote {
	pool, g := groupcacheClient()
	pool.Set(o.Groupcache)
	get := func(ctx context.Context, key string) (int, error) {
		var v []byte
		err := g.Get(ctx, key, groupcache.AllocatingByteSliceSink(&v))
		return len(v), err
	}
	return remote{name: "groupcache", get: get, getMany: atOnce(get)}
}

const unaryMethod = "/benchmarks.Values/Get"

func ownGRPC(ctx context.Context) (string, error) {
	l, err := listen(ctx)
	if err != nil {
		return "", err
	}
	values := make(map[string]*wrapperspb.BytesValue, ownedKeys)
	for i := range ownedKeys {
		values[ownedKey(i)] = wrapperspb.Bytes(newValue(ownedKey(i)))
	}
	handler := func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		key := new(wrapperspb.StringValue)
		if err := dec(key); err != nil {
			return nil, err
		}
		if v := values[key.GetValue()]; v != nil {
			return v, nil
		}
		return nil, errLoaded
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "benchmarks.Values",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Get", Handler: handler}},
	}, nil)
	go func() { _ = s.Serve(l) }() // until the process ends
	return l.Addr().String(), nil
}

func grpcRemote(b *testing.B, o *owner) remote {
	b.Helper()
	conn, err := grpc.NewClient("passthrough:///"+o.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	get := func(ctx context.Context, key string) (int, error) {
		v := new(wrapperspb.BytesValue)
		err := conn.Invoke(ctx, unaryMethod, wrapperspb.String(key), v)
		return len(v.GetValue()), err
	}
	return remote{name: "grpc", get: get, getMany: atOnce(get)}
}

// atOnce gets many keys with one goroutine for each, as callers of a library without a batch get do.
func atOnce(get func(context.Context, string) (int, error)) func(context.Context, []string) (int, error) {
	return func(ctx context.Context, keys []string) (int, error) {
		lens, errs := make([]int, len(keys)), make([]error, len(keys))
		var wg sync.WaitGroup
		for i, k := range keys {
			wg.Go(func() { lens[i], errs[i] = get(ctx, k) })
		}
		wg.Wait()
		sum := 0
		for _, n := range lens {
			sum += n
		}
		return sum, errors.Join(errs...)
	}
}

// check tells whether a call brought what it should.
func check(got, want int, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("got %d bytes, want %d", got, want)
	}
	return err
}
