package transport

import "sync"

// maxOrphans is how many leases may wait for being given back.
const maxOrphans = 1 << 10

// orphans hands leases that nobody waits for to the handler, on one goroutine that runs only while there are any.
type orphans struct {
	handler Handler

	// mu guards the fields below. It is a leaf.
	mu      sync.Mutex
	list    []orphan
	running bool
	closed  bool

	wg sync.WaitGroup // Add under mu while not closed
}

type orphan struct {
	peer *Peer
	req  Request
	rep  Reply
}

// add queues a lease, or drops it when there are too many.
func (o *orphans) add(p *Peer, req Request, rep Reply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.list) == maxOrphans {
		return
	}
	o.list = append(o.list, orphan{p, req, rep})
	if !o.running {
		o.running = true
		o.wg.Add(1)
		go o.run()
	}
}

func (o *orphans) run() {
	defer o.wg.Done()
	for {
		o.mu.Lock()
		if len(o.list) == 0 || o.closed {
			o.running = false
			o.mu.Unlock()
			return
		}
		list := o.list
		o.list = nil
		o.mu.Unlock()
		for i := range list {
			o.handler.Orphan(list[i].peer, &list[i].req, &list[i].rep)
		}
	}
}

// close drops what is queued and waits for the handler.
func (o *orphans) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.wg.Wait()
}
