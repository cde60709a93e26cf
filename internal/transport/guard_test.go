package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache/internal/foreign"
)

// A callback of the TLS configuration that panics, leaves its goroutine or hangs fails its handshake, and nothing else.
func TestTLSCallbacksThatMisbehave(t *testing.T) {
	isPanic := func(err error) bool { _, ok := errors.AsType[*foreign.PanicError](err); return ok }
	for how, tt := range map[string]struct {
		do func()
		is func(error) bool
	}{
		"panic":  {func() { panic("boom") }, isPanic},
		"goexit": {runtime.Goexit, isPanic},
		"hang":   {func() { time.Sleep(time.Hour) }, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := mutual(&tls.Config{
					GetCertificate:        func(*tls.ClientHelloInfo) (*tls.Certificate, error) { tt.do(); return nil, nil },
					GetClientCertificate:  func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { tt.do(); return nil, nil },
					GetConfigForClient:    func(*tls.ClientHelloInfo) (*tls.Config, error) { tt.do(); return nil, nil },
					VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { tt.do(); return nil },
					VerifyConnection:      func(tls.ConnectionState) error { tt.do(); return nil },
				})
				for name, call := range map[string]func() error{
					"GetCertificate":        func() error { _, err := cfg.GetCertificate(nil); return err },
					"GetClientCertificate":  func() error { _, err := cfg.GetClientCertificate(nil); return err },
					"GetConfigForClient":    func() error { _, err := cfg.GetConfigForClient(nil); return err },
					"VerifyPeerCertificate": func() error { return cfg.VerifyPeerCertificate(nil, nil) },
					"VerifyConnection":      func() error { return cfg.VerifyConnection(tls.ConnectionState{}) },
				} {
					if err := call(); !tt.is(err) {
						t.Errorf("%s: got %v", name, err)
					}
				}
				time.Sleep(2 * time.Hour) // what hung ends
			})
		})
	}
}
