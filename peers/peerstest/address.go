package peerstest

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// errCut: the way was cut between two looks at it. Never leaves the package.
var errCut = errors.New("nearcache: peerstest: the way is cut")

// address is host:port as net.Addr.
type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

func joinAddress(host string, port int) address {
	return address(net.JoinHostPort(host, strconv.Itoa(port)))
}

// parseAddress splits host:port and returns it in the spelling that listeners are kept under.
func parseAddress(addr string) (at address, host string, err error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return "", "", err
	}
	host = canonicalHost(host)
	return joinAddress(host, int(port)), host, nil
}

// canonicalHost gives one spelling to each IP address, and lower case to names.
func canonicalHost(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.ToLower(host)
}

func opError(op string, local, remote net.Addr, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: local, Addr: remote, Err: err}
}
