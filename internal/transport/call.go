package transport

import (
	"context"
	"sync/atomic"
)

// Call is one request to a peer and its answer.
//
// A caller gets it from Transport.NewCall, sets Request, and passes it to Peer.Start. Then the call belongs to the transport until
// Done delivers, which it does exactly once; then Reply and Err belong to the caller, who may Free it. Request must not be changed
// in between, and its Value never. Instead of waiting the caller may Abandon it.
type Call struct {
	Request Request
	// Reply is the answer if Err is nil: never StatusWaiting or StatusLarge. Its memory is the caller's own.
	Reply Reply
	// Err is nil, or one of ErrDown, ErrBusy, ErrTimeout, ErrRequest.
	Err error

	t      *Transport
	batch  *Batch
	done   chan struct{} // capacity 1; of this call only, for its whole life
	state  atomic.Uint32
	parcel Token // of the large answer that is kept for it
	probe  *lane // of the transport's own, to find out whether the peer answers on that lane: nobody waits for it
	began  int64 // of a probe
}

// States of a call: who owns it.
const (
	callPending   uint32 = iota // the transport; the caller waits
	callDone                    // the caller; Reply and Err are set
	callAbandoned               // the transport; nobody waits
)

// NewCall returns an empty call, perhaps a reused one.
func (t *Transport) NewCall() *Call {
	if c, ok := t.calls.Get().(*Call); ok {
		return c
	}
	return &Call{t: t, done: make(chan struct{}, 1)}
}

// Done delivers one value when the call is complete. A call of a batch delivers nothing, unless it is Detached: see Batch.Done.
func (c *Call) Done() <-chan struct{} { return c.done }

// Abandon gives the call up because its caller stops waiting. It returns true if the call was not complete yet: then it is the
// transport's for good. A lease that comes for it goes to Handler.Orphan. It returns false if the call is complete: Reply and Err
// are set and the caller owns the call as if it had waited. If it is not in a batch (Detached), Done delivers: it is received from before Free.
func (c *Call) Abandon() bool {
	return c.state.CompareAndSwap(callPending, callAbandoned)
}

// Detached tells whether the call's own Done delivers. It may be asked after the Done of the batch that the call was started in, or after
// Abandon returned false. After the former it means that the call has left the batch because the peer told it to wait.
func (c *Call) Detached() bool { return c.batch == nil }

// Free gives a complete call back for reuse: the caller has received from Done (or its batch's) and keeps no pointer to it. What
// Reply points to stays valid.
func (c *Call) Free() {
	c.Request, c.Reply = Request{}, Reply{}
	c.Err, c.batch, c.parcel, c.probe, c.began = nil, nil, Token{}, nil, 0
	c.state.Store(callPending)
	c.t.calls.Put(c)
}

// complete hands a call with its Reply or Err set back to its caller, or to nobody if it was abandoned. Whoever calls it was the call's only holder.
func (c *Call) complete(p *Peer) {
	if c.probe != nil {
		c.drop()
		return
	}
	batch := c.batch // a caller that abandons its calls owns this one as soon as it is done
	if !c.state.CompareAndSwap(callPending, callDone) {
		if c.Err == nil && c.Reply.Status == StatusLease {
			p.t.orphans.add(p, c.Request, c.Reply)
		}
		c.drop()
		return
	}
	if batch != nil {
		batch.one()
		return
	}
	c.done <- struct{}{}
}

// drop ends a call that nobody waits for.
func (c *Call) drop() {
	if l := c.probe; l != nil {
		l.probed(c.began, c.Err == nil)
	}
	c.Free()
}

// fail completes the call without an answer.
func (c *Call) fail(p *Peer, err error) {
	c.Reply, c.Err = Reply{}, err
	if c.probe == nil {
		p.errors.Add(1)
	}
	c.complete(p)
}

// Batch is one wake-up for many calls, which may go to several peers. Create it with NewBatch for the number of calls that
// will be started with it.
type Batch struct {
	left atomic.Int64
	done chan struct{}
}

// NewBatch returns a batch of n calls; n is at least 1.
func NewBatch(n int) *Batch {
	b := &Batch{done: make(chan struct{}, 1)}
	b.left.Store(int64(n))
	return b
}

// Done delivers one value when every call is complete or has been told to wait. One that was told to wait has left the batch (see
// Call.Detached): it goes on by itself, so that it does not hold up the others. A caller that stops waiting before that abandons
// each call, and does not wait for Done again: the calls that Abandon refuses are complete.
func (b *Batch) Done() <-chan struct{} { return b.done }

func (b *Batch) one() {
	if b.left.Add(-1) == 0 {
		b.done <- struct{}{}
	}
}

// Do sends a copy of req and waits for the answer. The error is ctx's when that ends first; the call is abandoned then.
func (p *Peer) Do(ctx context.Context, req *Request) (Reply, error) {
	c := p.t.NewCall()
	c.Request = *req
	p.Start(c)
	select {
	case <-c.done:
	default:
		select {
		case <-c.done:
		case <-ctx.Done():
			if c.Abandon() {
				return Reply{}, ctx.Err()
			}
			<-c.done
		}
	}
	rep, err := c.Reply, c.Err
	c.Free()
	return rep, err
}
