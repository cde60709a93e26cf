package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"github.com/nearcache/nearcache/internal/foreign"
)

// guarded returns a copy of cfg whose callbacks fail their handshake when they panic, leave their goroutine, or take longer than a
// handshake may: gRPC calls them on goroutines that it waits for.
func guarded(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	if f := cfg.GetCertificate; f != nil {
		cfg.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return inTime("TLS.GetCertificate", func() (*tls.Certificate, error) { return f(h) })
		}
	}
	if f := cfg.GetClientCertificate; f != nil {
		cfg.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return inTime("TLS.GetClientCertificate", func() (*tls.Certificate, error) { return f(r) })
		}
	}
	if f := cfg.GetConfigForClient; f != nil {
		cfg.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			return inTime("TLS.GetConfigForClient", func() (*tls.Config, error) { return f(h) })
		}
	}
	if f := cfg.VerifyPeerCertificate; f != nil {
		cfg.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
			_, err := inTime("TLS.VerifyPeerCertificate", func() (struct{}, error) { return struct{}{}, f(raw, chains) })
			return err
		}
	}
	if f := cfg.VerifyConnection; f != nil {
		cfg.VerifyConnection = func(s tls.ConnectionState) error {
			_, err := inTime("TLS.VerifyConnection", func() (struct{}, error) { return struct{}{}, f(s) })
			return err
		}
	}
	return cfg
}

// inTime runs a callback of a handshake.
func inTime[V any](what string, f func() (V, error)) (V, error) {
	ctx, cancel := context.WithTimeout(context.Background(), acceptTimeout)
	defer cancel()
	return foreign.Call(ctx, what, f, nil)
}
