package peers

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// DNSServer is a name server on loopback for the tests outside of the package.
type DNSServer struct {
	server   *dnsServer
	resolver *net.Resolver
}

// StartDNS starts one. It ends with the test.
func StartDNS(t *testing.T) *DNSServer {
	t.Helper()
	server, resolver := startDNS(t)
	return &DNSServer{server, resolver}
}

// Discovery asks the server for hostport, every few milliseconds.
func (s *DNSServer) Discovery(hostport string) Discovery {
	lookup, err := newLookup(hostport, s.resolver)
	return &dns{lookup: lookup, interval: 5 * time.Millisecond, err: err}
}

// SetAddrs gives a name these IP addresses.
func (s *DNSServer) SetAddrs(name string, ips ...string) {
	var records []dnsmessage.ResourceBody
	for _, addr := range ips {
		records = append(records, ip(addr))
	}
	s.server.set(name, records...)
}

// SetTargets gives a service these targets, all with one port and a weight of 1.
func (s *DNSServer) SetTargets(name string, port uint16, hosts ...string) {
	var records []dnsmessage.ResourceBody
	for _, host := range hosts {
		records = append(records, srv(host, port, 1))
	}
	s.server.set(name, records...)
}

// Fail makes the server answer every question with a failure.
func (s *DNSServer) Fail(failing bool) {
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeSRV} {
		s.server.fail(kind, failing)
	}
}
