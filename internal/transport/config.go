package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/nearcache/nearcache/internal/foreign"
)

// ProtocolVersion is the version of peer.proto's meaning. Members of different versions refuse each other; fields that an older
// member skips do not raise it.
const ProtocolVersion = 1

// Errors of a Call. All of them tell that the peer gave no answer, not that there is none: the caller asks somebody else.
var (
	ErrDown    = errors.New("nearcache: peer is not reachable")      // no lane, or it broke; also a peer that drains, or that the breaker passes over
	ErrBusy    = errors.New("nearcache: too many calls to the peer") // refused here, before it was sent
	ErrTimeout = errors.New("nearcache: peer did not answer in time")
	ErrRequest = errors.New("nearcache: request exceeds a limit of the wire") // the caller's fault; never the peer's
)

// Self is what a member tells its peers about itself.
type Self struct {
	ID          string
	Addr        string // as the peers dial it
	Cluster     string
	Incarnation uint64 // its start time, new at every start; not higher where the clock was set back
	Replicas    int    // members that keep a key, its owner included; 0: 1
}

// PeerAddr is a member to be connected to, and whom it must say it is. Where ID and Addr are the same, only the latter is known.
type PeerAddr struct {
	ID   string
	Addr string
}

// Config is what a Transport needs. View, InView and Handler are called concurrently, often, and must not block.
type Config struct {
	Self    Self
	View    func() uint64                  // fingerprint of this member's ring: sent in every frame
	InView  func(member, addr string) bool // is who calls itself that in this member's ring: told to it in every answer
	Handler Handler

	// Dial opens a connection; nil: TCP, and never through a proxy.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// TLS is used in both directions, on top of Dial and Serve's listeners; nil: plain text. Members have to show certificates, and speak
	// TLS 1.3, whatever it says.
	TLS *tls.Config
	// VerifyMember, with TLS, is asked at the start of every stream, at both of its ends, whether the certificate at the other one is that of
	// the member it is said to be; an error refuses it. Nil: every accepted certificate may be any member's. It must not block.
	VerifyMember func(id, addr string, state tls.ConnectionState) error
	// MaxAge is how old a connection becomes before another one takes its place, so that certificates that were replaced go out of use.
	// 0: an hour with TLS, and no limit without. This member's server cuts those of peers that do not do so after twice that time.
	MaxAge time.Duration

	// PeerTimeout is how long a peer may take from a request's sending to its answer or to StatusWaiting. Longer without any sign of
	// life opens its breaker. 0: 250 ms. Shorter: more false alarms (a pause of the peer's process); longer: a frozen peer
	// costs its callers more, once.
	PeerTimeout time.Duration
	// RenewEvery is the interval of renewals on the coherence streams, H/4 of docs/protocol.md. 0: 250 ms.
	RenewEvery time.Duration
	// Lanes per peer. 0: 2. The second one takes over when the first one is busy: more of them help on many cores only.
	Lanes int
	// Logger hears of refused handshakes; nil: nobody does.
	Logger *slog.Logger
}

// Handler is the node behind a Transport. All of its methods may be called concurrently, unless said otherwise.
type Handler interface {
	// Serve answers req into rep, which is zero, and returns true. Or it keeps (s, id) and returns false: then the asker is told to
	// wait, and s.Answer(id, rep) has to follow exactly once; it may come from another goroutine before Serve has returned.
	//
	// Serve runs on the stream's receiving goroutine and never blocks. req and all it points to, but Value, are valid until it
	// returns, and so is rep; req.Value may be kept. StatusWaiting and StatusLarge are not Serve's to give, and OpPing never reaches it.
	Serve(s *Session, id uint32, req *Request, rep *Reply) bool
	// Gone tells that the session ended: nobody hears the answers that are still missing. They may be left out, or given in vain.
	// It is called once per session, after its last Serve, but not for a bulk request that was answered. A member has several sessions: this does not mean that the member is gone.
	Gone(s *Session)
	// Subscribe tells that a member opened its coherence stream; a member's stream that it replaces is closed soon after, or was before.
	// nil refuses it.
	Subscribe(s *Session) Subscription

	// Connected, Received and Disconnected tell the fate of the coherence stream from p: in this order, from one goroutine per
	// peer, and each Connected is followed by one Disconnected. They may take a lock but not wait for the peer.
	Connected(p *Peer, incarnation uint64)
	// Received passes a message of the stream. With d.Renewed, sent is when the renewal that it answers was sent, else it is the zero Time.
	// d is the handler's.
	Received(p *Peer, incarnation uint64, d *Down, sent time.Time)
	Disconnected(p *Peer)

	// Opened tells that a lane to p is open: of the leases that it gave over an earlier one p does not know which arrived. It must not block.
	Opened(p *Peer)
	// Orphan passes a lease that came after its call had timed out or was abandoned: nobody loads, so it has to be given back.
	// req has no Value. It is called on a goroutine of its own, one at a time, and may block. Orphans beyond a bound are dropped; then the lease
	// ends by itself.
	Orphan(p *Peer, req *Request, rep *Reply)
}

// Subscription is the source of one coherence stream, at the member whose log it carries.
type Subscription interface {
	// Next waits for the next message. Only one goroutine calls it. The message is the transport's until the next call. An error, as when ctx
	// ends, ends the stream.
	Next(ctx context.Context) (*Down, error)
	// Renew asks for an answer to a renewal: it comes out of Next, in its place in the order. It may be called after Close.
	Renew(nonce uint64)
	// Close is called once, when Next is not running and will not be called again.
	Close()
}

const (
	defaultPeerTimeout = 250 * time.Millisecond
	defaultRenewEvery  = 250 * time.Millisecond
	defaultLanes       = 2
)

// withDefaults returns cfg with its zero fields set.
func (cfg Config) withDefaults() Config {
	if cfg.PeerTimeout <= 0 {
		cfg.PeerTimeout = defaultPeerTimeout
	}
	if cfg.RenewEvery <= 0 {
		cfg.RenewEvery = defaultRenewEvery
	}
	if cfg.MaxAge <= 0 && cfg.TLS != nil {
		cfg.MaxAge = defaultMaxAge
	}
	if cfg.Lanes <= 0 {
		cfg.Lanes = defaultLanes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if dial := cfg.Dial; dial != nil {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return foreign.Call(ctx, "Dial", func() (net.Conn, error) { return dial(ctx, addr) }, closeLate)
		}
	} else {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	return cfg
}

// closeLate closes a connection that nobody waits for any more.
func closeLate(c net.Conn) {
	if c != nil {
		_ = c.Close() // nobody is left to tell
	}
}
