package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/peers"
)

// member is what one of the members of a test's cluster tells.
func member(id string, gets uint64, top ...nearcache.KeyStats) nearcache.Stats {
	return nearcache.Stats{
		Node: id, Members: []nearcache.MemberStats{{Member: peers.Member{ID: id}, Share: 0.25}},
		Keyspaces: map[string]nearcache.KeyspaceStats{"ks": {Gets: gets, NearHits: gets / 2, OwnerHits: gets / 4, Loads: gets / 10, Top: top}},
	}
}

// Differences between two snapshots become rates, members that one node cannot reach come from another one, and names cannot
// steer the terminal.
func TestShowsACluster(t *testing.T) {
	var asked atomic.Uint64
	serve := func(silent string, ids ...string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/debug/nearcache/stats.json" || r.URL.RawQuery != "scope=cluster" {
				t.Errorf("asked for %s", r.URL)
			}
			c := nearcache.ClusterStats{Members: map[string]nearcache.Stats{}, Silent: map[string]string{silent: "why"}}
			for _, id := range ids {
				c.Members[id] = member(id, 1000*asked.Add(1), nearcache.KeyStats{Key: "hot \x1b[31m" + id, Rate: 4000, Owner: "n0"}, nearcache.KeyStats{Key: "shared", Rate: 50})
			}
			c.Keyspaces = nearcache.SumKeyspaces(c.Members)
			if err := json.NewEncoder(w).Encode(c); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(s.Close)
		return s
	}
	one, two := serve("n2", "n0", "n1"), serve("n1", "n0", "n2")
	var out strings.Builder
	err := run(t.Context(), []string{"-once", "-every", "100ms", "-n", "4", "127.0.0.1:1", strings.TrimPrefix(one.URL, "http://"), two.URL + "/debug/nearcache"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{"3 members", "n0", "n1", "n2", "50.0 %", "25.0 %", "ks hot ?[31mn0", "ks shared", " 150 ", "4000"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") || strings.Contains(got, "no answer of") {
		t.Errorf("got\n%s\nwant no escape of a key's, and all members", got)
	}
}

// A node that is asked the way people do.
func TestAsksANode(t *testing.T) {
	n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.WithoutCancel(t.Context()))
	c, err := nearcache.New(n, "product", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), "8812"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/debug/nearcache", n.Handler()))
	defer s.Close()
	got, err := newAsker([]string{s.URL + "/debug/nearcache/"}).ask(t.Context())
	if err != nil || got.Members["local"].Node != "local" || got.Keyspaces["product"].Gets != 1 {
		t.Errorf("got %+v, %v, want the node's one get", got, err)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"-h"}, {"-n", "0", "a"}, {"-every", "1ms", "a"}, {"http://"}, {"-x"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q: want an error", args)
		}
	}
	if _, err := parse(nil); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v without arguments, want flag.ErrHelp", err)
	}
	c, err := parse([]string{"-every", "2s", "a:1", "https://b/x", "[::1]:80/"})
	if err != nil || c.every != 2*time.Second || c.addrs[0] != "http://a:1/debug/nearcache/" || c.addrs[1] != "https://b/x/" || c.addrs[2] != "http://[::1]:80/debug/nearcache/" {
		t.Errorf("got %+v, %v", c, err)
	}
	if err := run(t.Context(), []string{"127.0.0.1:1"}, new(strings.Builder)); err == nil {
		t.Error("nobody answers: want an error")
	}
}
