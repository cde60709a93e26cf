package peers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	maxHostBytes  = 253 // RFC 1035 with the text form's dots
	maxLabelBytes = 63
)

// CanonicalAddr returns the one spelling of an address that other members can dial, host:port: surrounding spaces and the
// host's final dot go, names are in lower case, IP addresses in the form of RFC 5952 and IPv4 in IPv6 as IPv4, the port
// without leading zeros, and localhost is 127.0.0.1. So two spellings of one address are one member.
//
// An error says what is wrong with an address that nobody can dial (no host, an unspecified host like 0.0.0.0, port 0, no
// port) or that can be read in two ways (an IPv6 address without brackets, an IPv4 address with a number missing). Names are
// not resolved: a name and its address stay different.
func CanonicalAddr(addr string) (string, error) {
	host, portText, err := net.SplitHostPort(strings.TrimSpace(addr))
	if err != nil {
		return "", addrError(addr, errors.New("want host:port, with an IPv6 host in brackets"))
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return "", addrError(addr, errors.New("want a port between 1 and 65535"))
	}
	if host, err = canonicalHost(host); err != nil {
		return "", addrError(addr, err)
	}
	return net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
}

func addrError(addr string, err error) error {
	return fmt.Errorf("nearcache: peers: address %.80q: %w", addr, err)
}

func canonicalHost(host string) (string, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip = ip.Unmap(); ip.IsUnspecified() || ip.IsMulticast() {
			return "", errors.New("others cannot dial this host")
		}
		return ip.String(), nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if err := checkName(name); err != nil {
		return "", err
	}
	if name == "localhost" {
		return "127.0.0.1", nil // RFC 6761, section 6.3; the first choice of net.Listen too
	}
	return name, nil
}

// checkName lets through what can stand in DNS, underscores included.
func checkName(name string) error {
	if name == "" {
		return errors.New("the host is missing")
	}
	if len(name) > maxHostBytes {
		return errors.New("the host is too long")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabelBytes || strings.ContainsFunc(label, notInName) {
			return errors.New("the host is neither an IP address nor a name")
		}
		last = label
	}
	if strings.Trim(last, "0123456789") == "" {
		return errors.New("the host is neither a whole IP address nor a name") // 10.1, 10.0.0.256
	}
	return nil
}

func notInName(c rune) bool {
	return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_'
}
