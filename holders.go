package nearcache

import (
	"sync"
	"time"
)

// holders are the lives of members that follow this node's log, and thus may hold its leases. A lease ends a second after its holder was
// last heard (docs/design.md section 8): a member whose host is gone or that hangs closes no stream, but its renewals stay away.
type holders struct {
	mu   sync.Mutex // guards byID and what it points to. Lock order: mu, then a shard lock
	byID map[string]*life
}

// life is one holder, as holderOf names it.
type life struct {
	holder  string
	streams int // it may have two for a while, when it reconnects
	renewed int64
	silent  bool
}

// silenceGrace is what a silent holder is given before its leases end: it may have been this process that paused, and the renewals are
// there to be read.
const silenceGrace = 2 * tick

// add notes that a holder has opened a stream.
func (h *holders) add(holder string, now int64) *life {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.byID[holder]
	if l == nil {
		l = &life{holder: holder}
		if h.byID == nil {
			h.byID = make(map[string]*life)
		}
		h.byID[holder] = l
	}
	l.streams++
	l.renewed = now
	return l
}

// remove notes that one of its streams has ended. Its leases are looked after by Node.Gone from then on.
func (h *holders) remove(l *life) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.streams--; l.streams == 0 {
		delete(h.byID, l.holder)
	}
}

// renewed notes that a holder was heard. If it had been silent its leases live as long as granted again.
func (n *Node) renewed(l *life, now int64) {
	n.holders.mu.Lock()
	defer n.holders.mu.Unlock()
	l.renewed = now
	if !l.silent {
		return
	}
	l.silent = false
	for _, ks := range *n.keyspaces.Load() {
		ks.shard.HolderBack(l.holder)
	}
}

// tickHolders lets the leases of silent holders end, those included that pass to them meanwhile.
func (n *Node) tickHolders(now int64) {
	n.holders.mu.Lock()
	defer n.holders.mu.Unlock()
	for _, l := range n.holders.byID {
		if time.Duration(now-l.renewed) < n.cfg.Bound {
			continue
		}
		l.silent = true
		for _, ks := range *n.keyspaces.Load() {
			ks.shard.HolderGone(l.holder, now+int64(silenceGrace))
		}
	}
}
