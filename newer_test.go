package nearcache_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/peers"
)

// newer is a member of a later version: it answers with what this version has no name for.
type newer struct{}

const newerKind = 200 // no operation, answer or failure of this version

func (newer) Serve(_ *transport.Session, _ uint32, req *transport.Request, rep *transport.Reply) bool {
	rep.Status = newerKind
	if strings.HasPrefix(req.Key, "f") {
		rep.Status, rep.Failure = transport.StatusFailed, transport.Failure{Kind: newerKind, Text: "later", Member: "n1"}
	}
	return true
}

func (newer) Gone(*transport.Session)                                      {}
func (newer) Subscribe(*transport.Session) transport.Subscription          { return nil }
func (newer) Connected(*transport.Peer, uint64)                            {}
func (newer) Received(*transport.Peer, uint64, *transport.Down, time.Time) {}
func (newer) Disconnected(*transport.Peer)                                 {}
func (newer) Opened(*transport.Peer)                                       {}
func (newer) Orphan(*transport.Peer, *transport.Request, *transport.Reply) {}

// A member of a later version asks for what this one cannot do and is told so, on a lane that stays; what it answers and this one does
// not know costs a load, or is a loader's error, and is nobody's value.
func TestANewerMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 1)
		node := c.Nodes[0]
		cache, err := nearcache.New(node, "ks", nearcache.Config[string]{
			Load: func(_ context.Context, key string) (string, error) { return testcluster.Value(key, 0), nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		host := c.Network.Host(testcluster.Host(1))
		l, err := host.Listen(":7946")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		n1 := transport.New(transport.Config{
			Self: transport.Self{ID: "n1", Addr: addr, Cluster: "nearcache", Incarnation: 1}, Handler: newer{}, Dial: host.Dial,
			View: func() uint64 { return 1 }, InView: func(string, string) bool { return true },
		})
		n1.Serve(l)
		defer func() { _ = n1.Close(t.Context()) }()
		c.List.Set(append(c.Members(), peers.Member{ID: "n1", Addr: addr})...)
		n1.SetPeers([]transport.PeerAddr{{ID: node.ID(), Addr: node.Addr()}})
		time.Sleep(5 * time.Second)

		p := n1.Peer(node.ID())
		mine := testcluster.Key(node, "ks", node.ID(), 0)
		for range 3 {
			for op, want := range map[transport.Op]transport.Status{newerKind: transport.StatusBusy, transport.OpPeek: transport.StatusMiss} {
				req := &transport.Request{Op: op, Flags: 1 << 31, Keyspace: "ks", Key: mine, Budget: time.Second}
				if rep, err := p.Do(t.Context(), req); err != nil || rep.Status != want {
					t.Errorf("operation %d: got status %d, %v, want %d", op, rep.Status, err, want)
				}
			}
		}
		theirs := testcluster.Key(node, "ks", "n1", 0)
		if v, err := cache.Get(t.Context(), theirs); err != nil || v != testcluster.Value(theirs, 0) {
			t.Errorf("an answer of an unknown kind: got %q, %v, want the value", v, err)
		}
		var load *nearcache.LoadError
		failed := keyWith(c, "f", "n1")
		if v, err := cache.Get(t.Context(), failed); !errors.As(err, &load) || load.Member != "n1" || load.Err.Error() != "later" {
			t.Errorf("a failure of an unknown kind: got %q, %v, want a LoadError of n1", v, err)
		}
		for _, s := range node.Stats().Members {
			if !s.Connected || s.Breaker != "closed" {
				t.Errorf("got %+v", s)
			}
		}
	})
}
