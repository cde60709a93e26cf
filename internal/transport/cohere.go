package transport

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// maxRenewals is how many renewals may be unanswered before their send times are forgotten.
const maxRenewals = 64

// runCohere opens the coherence stream of a peer's log and follows it until it ends.
func (p *Peer) runCohere() error {
	ctx, cancel := context.WithCancel(p.ctx)
	st, err := p.open(ctx, cohereDesc(), cohereMethod)
	if err != nil {
		cancel()
		return err
	}
	first := &cohereDown{}
	up := &cohereUp{Hello: p.t.hello(), View: p.t.cfg.View()}
	if err := p.shake(st, cancel, up, first, func() *hello { return first.Hello }); err != nil {
		cancel()
		return err
	}
	incarnation := first.Hello.Incarnation
	p.said(first.Hello)
	p.t.cfg.Handler.Connected(p, incarnation)
	defer p.t.cfg.Handler.Disconnected(p)

	r := &renewals{}
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	sender.Go(func() {
		defer cancel()
		r.send(ctx, p.t, st)
	})
	for {
		m := &cohereDown{}
		if err := st.RecvMsg(m); err != nil {
			return err
		}
		p.view.Store(m.View)
		p.inView.Store(m.InView)
		var sent time.Time
		if m.Renewed {
			sent = r.answered(m.Nonce)
		}
		p.t.cfg.Handler.Received(p, incarnation, &m.Down, sent)
	}
}

// renewals keeps when each renewal was sent.
type renewals struct {
	// mu guards the fields below. It is a leaf.
	mu    sync.Mutex
	nonce uint64      // of the last one
	sent  []time.Time // of the last ones, the newest last
}

// send sends a renewal at once and then in every interval.
func (r *renewals) send(ctx context.Context, t *Transport, st grpc.ClientStream) {
	tick := time.NewTicker(t.cfg.RenewEvery)
	defer tick.Stop()
	for {
		if st.SendMsg(&cohereUp{View: t.cfg.View(), Nonce: r.next()}) != nil {
			return // the receiver gets the reason
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// next returns the nonce of a renewal that is about to be sent. The time that counts is from before it is sent.
func (r *renewals) next() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sent) == maxRenewals {
		r.sent = r.sent[:copy(r.sent, r.sent[1:])]
	}
	r.sent = append(r.sent, time.Now())
	r.nonce++
	return r.nonce
}

// answered returns when a renewal was sent; the zero Time if that is not known (any more).
func (r *renewals) answered(nonce uint64) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	back := r.nonce - nonce
	if nonce == 0 || nonce > r.nonce || back >= uint64(len(r.sent)) {
		return time.Time{}
	}
	return r.sent[len(r.sent)-1-int(back)]
}
