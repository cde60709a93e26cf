package transport

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
)

// gRPC's settings, all in this file: several of them are marked experimental. docs/design.md section 12 has the reasons.
const (
	bufferSize     = 64 << 10
	streamWindow   = 1 << 20
	connWindow     = 4 << 20
	bulkWindow     = 4 << 20
	maxMessage     = MaxValueBytes + 1<<20 // the value, and at most a MiB of keys around it
	maxHeaderBytes = 16 << 10

	maxStreams = 16 // of a connection that a peer opened: two lanes and a coherence stream, or bulk requests. Each may hold a message

	keepaliveTime    = 10 * time.Second // the shortest that gRPC allows
	keepaliveTimeout = time.Second      // also the kernel's limit for unacknowledged data
	keepaliveMin     = 5 * time.Second  // what a client may do
	maxIdle          = time.Minute      // a connection without streams is closed
	bulkIdle         = maxIdle / 2      // a bulk connection is closed by its owner before that
	connectTimeout   = time.Second      // no call waits for it: calls go to lanes that are up
	acceptTimeout    = 5 * time.Second  // for TLS and HTTP/2 preface of a new connection
)

// dialer opens what a connection runs over.
type dialer func(ctx context.Context, addr string) (net.Conn, error)

// dial returns a connection to addr, which is made when it is first used.
func (t *Transport) dial(addr string) (*grpc.ClientConn, error) {
	return t.dialBy(t.cfg.Dial, addr, streamWindow)
}

func (t *Transport) dialBy(d dialer, addr string, window int32) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if t.cfg.TLS != nil {
		creds = credentials.NewTLS(modern(t.cfg.TLS))
	}
	return grpc.NewClient("passthrough:///"+url.PathEscape(addr), // an IPv6 zone begins with a percent sign
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(d),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		experimental.WithBufferPool(t.buffers),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(t.codec),
			grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	)
}

// modern returns cfg with at least TLS 1.3: members are never older than that. Its callbacks cannot harm more than their handshake.
func modern(cfg *tls.Config) *tls.Config {
	cfg = guarded(cfg)
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS13)
	return cfg
}

// mutual returns the configuration of the server's side: whatever cfg says of clients, they have to show a certificate that one of
// ClientCAs, or else of RootCAs, has signed. That holds for what GetConfigForClient returns too.
func mutual(cfg *tls.Config) *tls.Config {
	cfg = modern(cfg)
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	if cfg.ClientCAs == nil {
		cfg.ClientCAs = cfg.RootCAs
	}
	if choose := cfg.GetConfigForClient; choose != nil {
		cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if chosen == nil || err != nil {
				return nil, err
			}
			chosen = chosen.Clone()
			chosen.GetConfigForClient = nil // it is not asked again
			return mutual(chosen), nil
		}
	}
	return cfg
}

// newServer returns the server of all listeners.
func (t *Transport) newServer() *grpc.Server {
	creds := insecure.NewCredentials()
	if t.cfg.TLS != nil {
		creds = credentials.NewTLS(mutual(t.cfg.TLS))
	}
	alive := keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: keepaliveTime, Timeout: keepaliveTimeout}
	if t.cfg.MaxAge > 0 {
		alive.MaxConnectionAge, alive.MaxConnectionAgeGrace = 2*t.cfg.MaxAge, maxBulkTime
	}
	s := grpc.NewServer(
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(t.codec),
		experimental.BufferPool(t.buffers),
		grpc.ReadBufferSize(bufferSize),
		grpc.WriteBufferSize(bufferSize),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(acceptTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
		grpc.KeepaliveParams(alive),
		grpc.WaitForHandlers(true),
	)
	s.RegisterService(serviceDesc(), t)
	return s
}
