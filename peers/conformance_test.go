package peers_test

import (
	"context"
	"net"
	"testing"

	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/peers/discoverytest"
)

func TestStaticConforms(t *testing.T) {
	discoverytest.Run(t, func(*testing.T) discoverytest.Source {
		return discoverytest.Source{
			Discovery: peers.Static("a:1", "B:01", "a:1"),
			Members:   []peers.Member{{Addr: "a:1"}, {Addr: "b:1"}},
		}
	})
}

func TestListConforms(t *testing.T) {
	discoverytest.Run(t, func(*testing.T) discoverytest.Source {
		l := peers.NewList()
		return discoverytest.Source{
			Discovery: l, Set: l.Set,
			Members: []peers.Member{{ID: "a", Addr: "a:1", Zone: "z"}, {ID: "b", Addr: "b:1", Weight: 2}, {Addr: "c:1"}},
		}
	})
}

func TestFuncConforms(t *testing.T) {
	discoverytest.Run(t, func(*testing.T) discoverytest.Source {
		l := peers.NewList()
		return discoverytest.Source{
			Discovery: peers.Func(func(ctx context.Context, update func([]peers.Member)) error { return l.Watch(ctx, update) }),
			Set:       l.Set,
		}
	})
}

// Case discovery-1. A, AAAA and SRV records over a socket.
func TestDNSConforms(t *testing.T) {
	hosts := func(members []peers.Member) (hosts []string) {
		for _, m := range members {
			host, _, err := net.SplitHostPort(m.Addr)
			if err != nil {
				panic(err)
			}
			hosts = append(hosts, host)
		}
		return hosts
	}
	const name, service = "cache.test.", "_cache._tcp.cache.test."
	for kind, addrs := range map[string][]string{
		"A":    {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"},
		"AAAA": {"[2001:db8::1]:1", "[2001:db8::2]:1"},
		"SRV":  {"pod-0.test:1", "pod-1.test:1", "pod-2.test:1"},
	} {
		t.Run(kind, func(t *testing.T) {
			discoverytest.Run(t, func(t *testing.T) discoverytest.Source {
				server := peers.StartDNS(t)
				s := discoverytest.Source{Discovery: server.Discovery(name + ":1"), Break: server.Fail}
				s.Set = func(members ...peers.Member) { server.SetAddrs(name, hosts(members)...) }
				if kind == "SRV" {
					s.Discovery = server.Discovery(service)
					s.Set = func(members ...peers.Member) {
						targets := hosts(members)
						for i := range targets {
							targets[i] += "."
						}
						server.SetTargets(service, 1, targets...)
					}
				}
				for _, addr := range addrs {
					s.Members = append(s.Members, peers.Member{Addr: addr})
				}
				return s
			})
		})
	}
}
