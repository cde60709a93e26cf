package transport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// mutualTLS returns the configuration of a member whose certificate, and those of its peers, is signed by itself.
func mutualTLS(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool,
	}
}

// bare is a configuration that trusts a server and shows no certificate.
func bare(c *tls.Config) *tls.Config { return &tls.Config{RootCAs: c.RootCAs} }

// Members with certificates of the same authority talk; others, those without a certificate, and those without TLS do not get in,
// although nothing in the configuration asks clients for certificates.
func TestTLS(t *testing.T) {
	trusted := mutualTLS(t)
	for name, server := range map[string]*tls.Config{
		"fixed":  trusted,
		"chosen": {RootCAs: trusted.RootCAs, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return trusted, nil }},
	} {
		t.Run(name, func(t *testing.T) { testTLS(t, trusted, server) })
	}
}

func testTLS(t *testing.T, trusted, server *tls.Config) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	member := func(id, self string, c *tls.Config) *Transport {
		cfg := testConfig(newMemory(), id, &node{})
		cfg.Dial, cfg.Self.Addr, cfg.TLS = nil, self, c
		cfg.PeerTimeout = 5 * time.Second
		m := New(cfg)
		m.SetPeers([]PeerAddr{{ID: "b", Addr: addr}})
		return m
	}
	b := member("b", addr, server)
	b.Serve(l)
	a, stranger, plain := member("a", "a", trusted), member("c", "c", mutualTLS(t)), member("d", "d", nil)
	nameless := member("e", "e", bare(trusted))
	await(t, "peer is ready", a.Peer("b").Ready)
	if rep, err := a.Peer("b").Do(t.Context(), get("k")); err != nil || string(rep.Value) != "k" {
		t.Errorf("got %+v, %v", rep, err)
	}
	large := &Request{Op: OpSet, Keyspace: "ks", Key: "k", Value: make([]byte, 1<<20), HasValue: true, Budget: time.Second}
	if _, err := a.Peer("b").Do(t.Context(), large); err != nil {
		t.Error(err)
	}
	for _, m := range []*Transport{stranger, plain, nameless} {
		if s := m.Peer("b").Status(); s.Connected {
			t.Errorf("%s got in: %+v", m.cfg.Self.ID, s)
		}
	}
	shut(t, a, stranger, plain, nameless, b)
}

// With VerifyMember nobody can be a member that its certificate does not name, at either end, and without it anybody can.
func TestVerifyMember(t *testing.T) {
	a := newAuthority(t)
	member := func(name, id, addr string, verify bool) *Transport {
		cfg := testConfig(newMemory(), id, &node{})
		cfg.Dial, cfg.Self.Addr, cfg.PeerTimeout = nil, addr, 5*time.Second
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{*a.leaf(t, 1, name)}, RootCAs: pool(a)}
		if verify {
			cfg.VerifyMember = func(id, _ string, s tls.ConnectionState) error { return s.PeerCertificates[0].VerifyHostname(id) }
		}
		return New(cfg)
	}
	serve := func(name, id string, verify bool) (*Transport, string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		x := member(name, id, l.Addr().String(), verify)
		x.Serve(l)
		return x, l.Addr().String()
	}
	strict, at := serve("b", "b", true)
	open, openAt := serve("b", "b", false)
	liar, liarAt := serve("thief", "c", false) // a server that says it is c
	cases := []struct {
		name, cert, id string
		verify         bool
		to             PeerAddr
		want           string // why not; empty: connected
	}{
		{"named", "a", "a", true, PeerAddr{ID: "b", Addr: at}, ""},
		{"another member's ID", "thief", "a", false, PeerAddr{ID: "b", Addr: at}, "certificate is not that of member \"a\""},
		{"the server's own ID", "thief", "b", false, PeerAddr{ID: at, Addr: at}, "certificate is not that of member \"b\""},
		{"a server that lies", "a", "a", true, PeerAddr{ID: "c", Addr: liarAt}, "certificate is not that of member \"c\""},
		{"nobody asks", "thief", "a", false, PeerAddr{ID: "b", Addr: openAt}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			x := member(c.cert, c.id, "x", c.verify)
			x.SetPeers([]PeerAddr{c.to})
			p := x.Peer(c.to.ID)
			await(t, "an outcome", func() bool { s := p.Status(); return s.Connected || strings.Contains(s.Reason, "nearcache: ") })
			s := p.Status()
			if s.Connected != (c.want == "") || !strings.Contains(s.Reason, c.want) {
				t.Errorf("got %+v, want the reason %q", s, c.want)
			}
			large := &Request{Op: OpSet, Keyspace: "ks", Key: "k", Value: make([]byte, 1<<20), HasValue: true, Budget: time.Second}
			if _, err := p.Do(t.Context(), large); (err == nil) != (c.want == "") {
				t.Errorf("a large value: got %v", err)
			}
			shut(t, x)
		})
	}
	if strict.Contested() {
		t.Error("a thief has made a member give way")
	}
	shut(t, strict, open, liar)
}
