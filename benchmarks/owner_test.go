package benchmarks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/pprof"
	"testing"
)

const (
	ownerEnv   = "NEARCACHE_BENCHMARKS_OWNER"   // set: this process is the owner, of a client at that address
	profileEnv = "NEARCACHE_BENCHMARKS_PROFILE" // file for the owner's CPU profile

	valueBytes = 1024
	ownedKeys  = 16 << 10
)

// ownedKey is a key that the owner holds.
func ownedKey(i int) string { return fmt.Sprintf("catalog:product:%08d", i) }

// newValue makes the value of a key.
func newValue(key string) []byte {
	v := make([]byte, valueBytes)
	copy(v, key)
	return v
}

// addresses tell a client where the owner serves.
type addresses struct {
	Nearcache, Groupcache, GRPC string
}

// runOwner is the owner process: it holds the values of all keys in each system and serves them until its input ends. For every
// line of input it writes what it has used so far.
func runOwner() int {
	if err := serveOwner(os.Getenv(ownerEnv), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "owner:", err)
		return 1
	}
	return 0
}

func serveOwner(client string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var a addresses
	var err error
	if a.Nearcache, err = ownNearcache(ctx, client); err != nil {
		return err
	}
	if a.Groupcache, err = ownGroupcache(ctx); err != nil {
		return err
	}
	if a.GRPC, err = ownGRPC(ctx); err != nil {
		return err
	}
	if name := os.Getenv(profileEnv); name != "" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer f.Close()
		defer pprof.StopCPUProfile()
	}
	enc := json.NewEncoder(out)
	if err := enc.Encode(a); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if err := enc.Encode(usageNow()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// owner is the client's view of the owner process.
type owner struct {
	addresses
	cmd *exec.Cmd
	in  io.WriteCloser
	dec *json.Decoder
}

// startOwner starts the owner process of a client that its nearcache node finds at the address client. It ends with the benchmark.
func startOwner(b *testing.B, client string) *owner {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	o := &owner{cmd: exec.CommandContext(context.WithoutCancel(b.Context()), exe)} // it ends when its input does
	o.cmd.Env = append(os.Environ(), ownerEnv+"="+client, profileEnv+"="+*ownerProfile)
	o.cmd.Stderr = os.Stderr
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	stdout, err := o.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	o.dec = json.NewDecoder(stdout)
	if err := o.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(o.in.Close(), o.cmd.Wait()); err != nil {
			b.Error("owner:", err)
		}
	})
	if err := o.dec.Decode(&o.addresses); err != nil {
		b.Fatal("owner:", err)
	}
	return o
}

// usage asks the owner what it has used so far.
func (o *owner) usage(b *testing.B) usage {
	b.Helper()
	if _, err := io.WriteString(o.in, "\n"); err != nil {
		b.Fatal("owner:", err)
	}
	var u usage
	if err := o.dec.Decode(&u); err != nil {
		b.Fatal("owner:", err)
	}
	return u
}
