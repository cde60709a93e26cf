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

// remote is a way to get values that another process holds. get and getMany return the number of bytes they got.
type remote struct {
	name    string
	get     func(ctx context.Context, key string) (int, error)
	getMany func(ctx context.Context, keys []string) (int, error)
	usage   func(b *testing.B) usage // of the processes that hold the values
	loads   func() uint64            // values that were not there; nil: that would be an error
}

// loaded is the number of values that were not there.
func (r *remote) loaded() float64 {
	if r.loads == nil {
		return 0
	}
	return float64(r.loads())
}

// remotes starts the owner process and the servers that are installed, and connects every system to its own. The first one is nearcache.
func remotes(b *testing.B, vs ...values) []remote {
	b.Helper()
	n, list := clientNode(b, nil)
	spec := ownerSpec{Keyspaces: []string{keyspace}, Values: vs, Opponents: true}
	o := joinOwners(b, n, list, spec)[0]
	all := []remote{
		nearcacheRemote(b, n), groupcacheRemote(b, o, "groupcache"), groupcacheRemote(b, o, "groupcache-as-shipped"), grpcRemote(b, o), rawRemote(b, o),
	}
	for i := range all {
		all[i].usage = o.usage
	}
	return chosenRemotes(b, append(all, serverRemotes(b, &spec)...))
}

func chosenRemotes(b *testing.B, all []remote) (out []remote) {
	b.Helper()
	for _, r := range all {
		if chosen(r.name) {
			out = append(out, r)
		}
	}
	if len(out) == 0 {
		b.Fatalf("-only=%s: no such system", *only)
	}
	return out
}

const (
	keyspace     = "remote"
	nearKeyspace = "near"
)

func loadValue(_ context.Context, key string) ([]byte, error) { return newValue(key), nil }

var errMissing = errors.New("a value is not there")

// remoteConfig is a keyspace without near copies.
func remoteConfig() nearcache.Config[[]byte] {
	return nearcache.Config[[]byte]{Load: loadValue, TTL: lifetime, NearTTL: -1, MaxValueBytes: -1}
}

// nearConfig is one whose near copies live for the whole run.
func nearConfig() nearcache.Config[[]byte] {
	return nearcache.Config[[]byte]{Load: loadValue, TTL: lifetime, NearTTL: lifetime, Jitter: -1}
}

// clientNode starts a node that owns nothing. It is alone until joinOwners.
func clientNode(b *testing.B, change func(*nearcache.NodeConfig)) (*nearcache.Node, *peers.List) {
	b.Helper()
	list := peers.NewList()
	cfg := nearcache.NodeConfig{Listen: "127.0.0.1:0", Discovery: list, Weight: -1, PeerTimeout: time.Second}
	if change != nil {
		change(&cfg)
	}
	n, err := nearcache.Start(b.Context(), cfg)
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

func openCache(b *testing.B, n *nearcache.Node, name string, cfg nearcache.Config[[]byte]) *nearcache.Cache[[]byte] {
	b.Helper()
	c, err := nearcache.New(n, name, cfg)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func nearcacheRemote(b *testing.B, n *nearcache.Node) remote {
	b.Helper()
	c := openCache(b, n, keyspace, remoteConfig())
	return remote{
		name:  "nearcache",
		loads: func() uint64 { return c.Stats().Loads },
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

// ownOpponents makes the owner process hold and serve the values in the other ways, too.
func ownOpponents(ctx context.Context, spec *ownerSpec, a *addresses) error {
	held := make(map[string][]byte)
	if err := spec.keys(func(key string) error { held[key] = newValue(key); return nil }); err != nil {
		return err
	}
	for _, s := range []struct {
		addr *string
		own  func(context.Context, map[string][]byte) (string, error)
	}{{&a.Groupcache, ownGroupcache}, {&a.GRPC, ownGRPC}, {&a.Raw, ownRaw}} {
		var err error
		if *s.addr, err = s.own(ctx, held); err != nil {
			return err
		}
	}
	return nil
}

// groupcache allows one pool and one group of a name per process.

func ownGroupcache(ctx context.Context, held map[string][]byte) (string, error) {
	l, err := listen(ctx)
	if err != nil {
		return "", err
	}
	self := "http://" + l.Addr().String()
	pool := groupcache.NewHTTPPoolOpts(self, nil)
	pool.Set(self)
	g := groupcache.NewGroup(keyspace, 1<<30, groupcache.GetterFunc(func(_ context.Context, key string, dest groupcache.Sink) error {
		return dest.SetBytes(held[key])
	}))
	for key := range held {
		var v []byte
		if err := g.Get(ctx, key, groupcache.AllocatingByteSliceSink(&v)); err != nil {
			return "", err
		}
	}
	go func() { _ = http.Serve(l, pool) }() // until the process ends
	return self, nil
}

// asShipped marks the context of a get that groupcache's default transport is to serve.
type asShipped struct{}

// groupcacheClient makes the process' pool, with connections enough for every caller, and its group, which keeps nothing.
var groupcacheClient = sync.OnceValues(func() (*groupcache.HTTPPool, *groupcache.Group) {
	pool := groupcache.NewHTTPPoolOpts("http://client", nil)
	tuned := &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 2048, DisableCompression: true}
	pool.Transport = func(ctx context.Context) http.RoundTripper {
		if ctx.Value(asShipped{}) != nil {
			return http.DefaultTransport // as without this function
		}
		return tuned
	}
	g := groupcache.NewGroup(keyspace, 0, groupcache.GetterFunc(func(context.Context, string, groupcache.Sink) error { return errMissing }))
	return pool, g
})

func groupcacheRemote(b *testing.B, o *owner, name string) remote {
	b.Helper()
	pool, g := groupcacheClient()
	pool.Set(o.Groupcache)
	get := func(ctx context.Context, key string) (int, error) {
		if name == "groupcache-as-shipped" {
			ctx = context.WithValue(ctx, asShipped{}, true)
		}
		var v []byte
		err := g.Get(ctx, key, groupcache.AllocatingByteSliceSink(&v))
		return len(v), err
	}
	return remote{name: name, get: get, getMany: atOnce(get)}
}

const unaryMethod = "/benchmarks.Values/Get"

func ownGRPC(ctx context.Context, held map[string][]byte) (string, error) {
	l, err := listen(ctx)
	if err != nil {
		return "", err
	}
	messages := make(map[string]*wrapperspb.BytesValue, len(held))
	for k, v := range held {
		messages[k] = wrapperspb.Bytes(v)
	}
	handler := func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		key := new(wrapperspb.StringValue)
		if err := dec(key); err != nil {
			return nil, err
		}
		if v := messages[key.GetValue()]; v != nil {
			return v, nil
		}
		return nil, errMissing
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
