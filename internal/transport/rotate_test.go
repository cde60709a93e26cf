package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// authority signs certificates for members.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return &authority{cert, key}
}

// leaf returns a member's certificate, which may name it.
func (a *authority) leaf(tb testing.TB, serial int64, names ...string) *tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func pool(as ...*authority) *x509.CertPool {
	p := x509.NewCertPool()
	for _, a := range as {
		p.AddCert(a.cert)
	}
	return p
}

// identity is a member's certificate and whom it trusts: both may be replaced at any time.
type identity struct {
	cert  atomic.Pointer[tls.Certificate]
	roots atomic.Pointer[x509.CertPool]

	mu   sync.Mutex
	seen map[string]int // serials of the peers' certificates, in handshakes since clear
}

// config is what docs/design.md section 12 tells an application to configure.
func (id *identity) config() *tls.Config {
	get := func() (*tls.Certificate, error) { return id.cert.Load(), nil }
	c := &tls.Config{
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return get() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return get() },
		InsecureSkipVerify:   true, // VerifyConnection does it, with the roots of today
		VerifyConnection: func(s tls.ConnectionState) error {
			opts := x509.VerifyOptions{Roots: id.roots.Load(), DNSName: s.ServerName, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			_, err := s.PeerCertificates[0].Verify(opts)
			if err == nil {
				id.note(s.PeerCertificates[0].SerialNumber.String())
			}
			return err
		},
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{
			GetCertificate: c.GetCertificate, ClientCAs: id.roots.Load(),
			VerifyConnection: func(s tls.ConnectionState) error {
				id.note(s.PeerCertificates[0].SerialNumber.String())
				return nil
			},
		}, nil
	}
	return c
}

func (id *identity) note(serial string) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.seen == nil {
		id.seen = make(map[string]int)
	}
	id.seen[serial]++
}

func (id *identity) clear() {
	id.mu.Lock()
	defer id.mu.Unlock()
	clear(id.seen)
}

func (id *identity) count(serial string) int {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.seen[serial]
}

// New certificates and a new authority are taken into use during load, without an error, and the old authority is of no use
// afterwards.
func TestRotation(t *testing.T) {
	one, two := newAuthority(t), newAuthority(t)
	ids := map[string]*identity{"a": {}, "b": {}}
	members := map[string]*Transport{}
	serial := int64(10)
	deal := func(a *authority) {
		for _, id := range ids {
			serial++
			id.cert.Store(a.leaf(t, serial))
		}
	}
	trust := func(as ...*authority) {
		for _, id := range ids {
			id.roots.Store(pool(as...))
		}
	}
	trust(one)
	deal(one)
	for name, id := range ids {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(newMemory(), name, &node{serve: func(_ *Session, _ uint32, req *Request, rep *Reply) bool {
			rep.Status, rep.HasValue, rep.Value = StatusHit, true, []byte(req.Key)
			if strings.HasPrefix(req.Key, "large") {
				rep.Value = make([]byte, InlineValueBytes+1)
			}
			return true
		}})
		cfg.Dial, cfg.Self.Addr, cfg.PeerTimeout = nil, l.Addr().String(), 5*time.Second
		cfg.TLS, cfg.MaxAge = id.config(), 200*time.Millisecond
		members[name] = New(cfg)
		members[name].Serve(l)
	}
	a, b := members["a"], members["b"]
	a.SetPeers([]PeerAddr{{ID: "b", Addr: b.cfg.Self.Addr}})
	p := a.Peer("b")
	await(t, "ready", p.Ready)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var calls atomic.Int64
	for g := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint("k", i)
				if g == 0 && i%50 == 0 {
					key = fmt.Sprint("large", i)
				}
				rep, err := p.Do(t.Context(), get(key))
				if err != nil || g > 0 && string(rep.Value) != key {
					t.Errorf("%s: got %d bytes, %v", key, len(rep.Value), err)
					return
				}
				calls.Add(1)
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	renewed := func(what string) {
		t.Helper()
		mine := fmt.Sprint(leafSerial(t, ids["b"]))
		await(t, what, func() bool { return ids["a"].count(mine) > 1 })
	}
	deal(one)
	renewed("the new leaf is in use")
	trust(one, two)
	deal(two)
	renewed("a leaf of the new authority is in use")
	trust(two)
	ids["a"].clear()
	renewed("the old authority is not trusted any more")
	close(stop)
	wg.Wait()
	t.Logf("%d calls", calls.Load())

	late := &identity{}
	late.roots.Store(pool(one, two))
	late.cert.Store(one.leaf(t, 99))
	cfg := testConfig(newMemory(), "c", &node{})
	cfg.Dial, cfg.TLS = nil, late.config()
	c := New(cfg)
	c.SetPeers([]PeerAddr{{ID: "b", Addr: b.cfg.Self.Addr}})
	await(t, "a certificate of the old authority is refused", func() bool { return late.count(fmt.Sprint(leafSerial(t, ids["b"]))) > 1 })
	if c.Peer("b").Ready() {
		t.Error("a certificate of the old authority got in")
	}
	shut(t, a, b, c)
}

func leafSerial(tb testing.TB, id *identity) *big.Int {
	tb.Helper()
	c, err := x509.ParseCertificate(id.cert.Load().Certificate[0])
	if err != nil {
		tb.Fatal(err)
	}
	return c.SerialNumber
}

// A connection that cannot be renewed stays, and calls do not notice.
func TestRenewalFails(t *testing.T) {
	m := newMemory()
	var refuse atomic.Bool
	cfg := testConfig(m, "a", &node{})
	cfg.MaxAge = 20 * time.Millisecond
	cfg.PeerTimeout = 5 * time.Second
	var refused atomic.Int64
	cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		if refuse.Load() {
			refused.Add(1)
			return nil, errors.New("no route")
		}
		return m.dial(ctx, addr)
	}
	a, b := New(cfg), start(m, "b", &node{})
	p := connect(t, a)
	refuse.Store(true)
	await(t, "renewals", func() bool {
		if _, err := p.Do(t.Context(), get("k")); err != nil {
			t.Fatal(err)
		}
		return refused.Load() > 3
	})
	shut(t, a, b)
}

// What the environment says about proxies is for the web, not for members.
func TestNoProxy(t *testing.T) {
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"} {
		t.Setenv(v, "http://127.0.0.1:1")
	}
	t.Setenv("NO_PROXY", "")
	t.Setenv("no_proxy", "")
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		const addr = "10.1.2.3:7946" // not a loopback address: those have no proxy anyway
		cfg := testConfig(m, "b", &node{})
		cfg.Self.Addr = addr
		b := New(cfg)
		b.Serve(m.listen(addr))
		cfg = testConfig(m, "a", &node{})
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			if to != addr {
				t.Errorf("dialled %s, want %s", to, addr)
			}
			return m.dial(ctx, to)
		}
		a := New(cfg)
		a.SetPeers([]PeerAddr{{ID: "b", Addr: addr}})
		await(t, "ready", a.Peer("b").Ready)
		shut(t, a, b)
	})
}
