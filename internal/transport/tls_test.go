package transport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
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
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
}

// Members with certificates of the same authority talk; others, and those without TLS, do not get in.
func TestTLS(t *testing.T) {
	trusted := mutualTLS(t)
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
	b := member("b", addr, trusted)
	b.Serve(l)
	a, stranger, plain := member("a", "a", trusted), member("c", "c", mutualTLS(t)), member("d", "d", nil)
	await(t, "peer is ready", a.Peer("b").Ready)
	if rep, err := a.Peer("b").Do(t.Context(), get("k")); err != nil || string(rep.Value) != "k" {
		t.Errorf("got %+v, %v", rep, err)
	}
	large := &Request{Op: OpSet, Keyspace: "ks", Key: "k", Value: make([]byte, 1<<20), HasValue: true, Budget: time.Second}
	if _, err := a.Peer("b").Do(t.Context(), large); err != nil {
		t.Error(err)
	}
	for _, m := range []*Transport{stranger, plain} {
		if s := m.Peer("b").Status(); s.Connected {
			t.Errorf("%s got in: %+v", m.cfg.Self.ID, s)
		}
	}
	shut(t, a, stranger, plain, b)
}
