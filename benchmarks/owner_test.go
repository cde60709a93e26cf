package benchmarks

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"strconv"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

const (
	ownerEnv   = "NEARCACHE_BENCHMARKS_OWNER"   // set: this process is an owner, and that is its ownerSpec as JSON
	profileEnv = "NEARCACHE_BENCHMARKS_PROFILE" // file for the owner's CPU profile

	valueBytes = 1024 // where a benchmark is not about sizes
)

// values are N keys whose values have Size bytes.
type values struct{ Size, N int }

// valueKey is the 24-byte key number i of the values of a size.
func valueKey(size, i int) string { return fmt.Sprintf("value:%08d:k%08d", size, i) }

// newValue makes the value of a key.
func newValue(key string) []byte {
	size, err := strconv.Atoi(key[6:14])
	if err != nil {
		panic(err) // no valueKey
	}
	v := make([]byte, size)
	copy(v, key)
	return v
}

// keysOf returns n keys of values of a size.
func keysOf(size, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = valueKey(size, i)
	}
	return keys
}

// ownerSpec says what an owner process holds and serves.
type ownerSpec struct {
	Client    string   // address of the client's node
	Nodes     int      // of nearcache; 0 means 1
	Keyspaces []string // of nearcache
	Values    []values
	Opponents bool   // groupcache, gRPC and raw hold the values, too
	TLS       string // directory of writeCertificates; empty: plaintext
}

// keys calls yield for every key.
func (s *ownerSpec) keys(yield func(key string) error) error {
	for _, v := range s.Values {
		for i := range v.N {
			if err := yield(valueKey(v.Size, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// addresses tell a client where an owner process serves.
type addresses struct {
	Nearcache             []string
	Groupcache, GRPC, Raw string
}

// runOwner is the owner process. It writes its addresses, reads those of all nodes of the cluster, fills what it owns, and writes for that and
// for every further line what it has used so far, until its input ends.
func runOwner() int {
	if err := serveOwner(os.Getenv(ownerEnv), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "owner:", err)
		return 1
	}
	return 0
}

func serveOwner(settings string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var spec ownerSpec
	if err := json.Unmarshal([]byte(settings), &spec); err != nil {
		return err
	}
	var a addresses
	own := &ownNodes{spec: &spec}
	if err := own.start(ctx, &a); err != nil {
		return err
	}
	if spec.Opponents {
		if err := ownOpponents(ctx, &spec, &a); err != nil {
			return err
		}
	}
	enc, lines := json.NewEncoder(out), bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	if err := enc.Encode(a); err != nil {
		return err
	}
	for first := true; lines.Scan(); first = false {
		if first {
			var all []string
			if err := json.Unmarshal(lines.Bytes(), &all); err != nil {
				return err
			}
			if err := own.join(ctx, all); err != nil {
				return err
			}
			stop, err := profile(os.Getenv(profileEnv))
			if err != nil {
				return err
			}
			defer stop()
		}
		if err := enc.Encode(usageNow()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// profile writes a CPU profile of this process to a file until stop. An empty name: it does not.
func profile(name string) (stop func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, pprof.StartCPUProfile(f)
}

// ownNodes are the nodes of an owner process.
type ownNodes struct {
	spec  *ownerSpec
	nodes []*nearcache.Node
	list  *peers.List
}

func (o *ownNodes) start(ctx context.Context, a *addresses) error {
	o.list = peers.NewList()
	tls, err := readCertificates(o.spec.TLS)
	if err != nil {
		return err
	}
	for range max(1, o.spec.Nodes) {
		n, err := nearcache.Start(ctx, nearcache.NodeConfig{
			Listen:      "127.0.0.1:0",
			Discovery:   o.list,
			PeerTimeout: time.Second, // a busy machine is no sick peer
			MaxBytes:    8 << 30,
			TLS:         tls,
		})
		if err != nil {
			return err
		}
		o.nodes = append(o.nodes, n)
		a.Nearcache = append(a.Nearcache, n.Addr())
	}
	return nil
}

// join makes the nodes of all processes, and the client's, which owns nothing, one cluster, and fills what is this process'.
func (o *ownNodes) join(ctx context.Context, all []string) error {
	members := []peers.Member{{Addr: o.spec.Client, Weight: -1}}
	for _, addr := range all {
		members = append(members, peers.Member{Addr: addr})
	}
	o.list.Set(members...)
	for _, n := range o.nodes {
		if err := n.ReadyWarm(ctx); err != nil { // what is filled before lives a Bound at most
			return err
		}
		for _, name := range o.spec.Keyspaces {
			cfg := remoteConfig()
			if name == nearKeyspace {
				cfg = nearConfig()
			}
			c, err := nearcache.New(n, name, cfg)
			if err != nil {
				return err
			}
			if err := o.spec.keys(func(key string) error {
				if n.Owner(name, key).Addr != n.Addr() {
					return nil
				}
				_, err := c.Get(ctx, key)
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// owner is the client's view of an owner process.
type owner struct {
	*child
	addresses
}

// joinOwners starts owner processes and waits until they hold their values and the client's node is connected to them. They end with the
// benchmark.
func joinOwners(b *testing.B, n *nearcache.Node, list *peers.List, specs ...ownerSpec) (owners []*owner) {
	b.Helper()
	var all []string
	for _, s := range specs {
		s.Client = n.Addr()
		o := startOwner(b, s)
		owners = append(owners, o)
		all = append(all, o.Nearcache...)
	}
	var members []peers.Member
	for _, addr := range all {
		members = append(members, peers.Member{Addr: addr})
	}
	list.Set(members...)
	for _, o := range owners {
		o.write(b, all)
	}
	for _, o := range owners {
		o.read(b, new(usage))
	}
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		b.Fatal("the owners are not ready: ", err)
	}
	return owners
}

func startOwner(b *testing.B, spec ownerSpec) *owner {
	b.Helper()
	settings, err := json.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	o := &owner{child: startChild(b, ownerEnv+"="+string(settings), profileEnv+"="+*ownerProfile)}
	o.read(b, &o.addresses)
	return o
}

// usage asks the owner what it has used so far.
func (o *owner) usage(b *testing.B) (u usage) {
	b.Helper()
	o.write(b, nil)
	o.read(b, &u)
	return u
}
