package nearcache

import (
	"context"
	"sync"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// holding is a lease of a peer for which a load is under way here.
type holding struct {
	member string
	token  transport.Token
}

// holdings are the leases of peers that a keyspace has: when a lane breaks its peer has to hear which of its leases arrived.
type holdings struct {
	mu  sync.Mutex         // guards key. It is a leaf
	key map[holding]string // of the lease
}

// add notes that a load with a lease begins. remove follows.
func (h *holdings) add(l holding, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.key == nil {
		h.key = make(map[holding]string)
	}
	h.key[l] = key
}

func (h *holdings) remove(l holding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.key, l)
}

// of returns requests that tell member which of its leases are in use.
func (h *holdings) of(member, keyspace string) (holds []*transport.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l, key := range h.key {
		if l.member == member {
			holds = append(holds, &transport.Request{Op: transport.OpHold, Keyspace: keyspace, Key: key, Token: l.token})
		}
	}
	return holds
}

// holding is the lease that a flight loads with.
func (x *fetch[V]) holding() holding { return holding{member: x.a.member(), token: x.token} }

// hold notes the lease of a flight that is going to load. deliver ends it.
func (x *fetch[V]) hold() {
	if x.a.m.peers[x.a.target] != nil {
		x.c.holdings.add(x.holding(), x.f.Key)
	}
}

// Opened tells a member to which there is a new lane which of its leases are in use here, and then that these are all: it ends the others
// that earlier lanes brought. If it hears nothing it ends all of those a second after their lane. It implements transport.Handler.
func (n *Node) Opened(p *transport.Peer) {
	id := p.ID()
	n.run("hold", func() {
		ctx, cancel := context.WithTimeout(n.ctx, time.Second)
		defer cancel()
		p := n.await(ctx, id)
		if p == nil {
			return
		}
		var calls []*transport.Call
		for name, ks := range *n.keyspaces.Load() {
			for _, hold := range ks.holdings.of(id, name) {
				c := n.transport.NewCall()
				c.Request = *hold
				calls = append(calls, c)
			}
		}
		if len(calls) > 0 {
			b := transport.NewBatch(len(calls))
			p.StartBatch(calls, b)
			<-b.Done()
			for _, c := range calls {
				c.Free() // a lease whose owner did not hear of it is loaded by somebody else too
			}
		}
		_, _ = p.Do(ctx, &transport.Request{Op: transport.OpHold}) // see above
	})
}

// await waits until the member of this ID can be reached, which may be another peer by then; nil when ctx ends first.
func (n *Node) await(ctx context.Context, id string) *transport.Peer {
	const step = 5 * time.Millisecond
	for {
		if p := n.transport.Peer(id); p != nil && p.Ready() {
			return p
		}
		if !sleep(ctx, step) {
			return nil
		}
	}
}
