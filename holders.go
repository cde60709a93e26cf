package nearcache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// holders are the lives of members that follow this node's log, and thus may hold its leases. A lease ends a second after its holder was
// last heard (docs/design.md section 8): a member whose host is gone or that hangs closes no stream, but its renewals stay away.
type holders struct {
	mu   sync.Mutex // guards byID and what it points to, but for renewed and view. Lock order: mu, then a shard lock
	byID map[string]*life
}

// life is one holder, as holderOf names it.
type life struct {
	holder       string
	member, addr string
	incarnation  uint64
	streams      int // it may have two for a while, when it reconnects; 0: it has a second to come back
	silent       bool
	renewed      atomic.Int64  // when it last renewed, or lost a stream
	view         atomic.Uint64 // fingerprint of the ring that it then went by
}

// silenceGrace is what a silent holder is given before its leases end: it may have been this process that paused, and all that it missed
// is there to be read.
const silenceGrace = 2 * tick

// add notes that a holder has opened a stream.
func (h *holders) add(s *transport.Session, now int64) *life {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lifeLocked(s)
	l.streams++
	l.renewed.Store(now)
	return l
}

// remove notes that one of its streams has ended.
func (h *holders) remove(l *life, now int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.streams--; l.streams == 0 {
		l.renewed.Store(now)
	}
}

// lost notes that a lane of a holder has ended. If it has no stream, and opens none within a second, it is silent.
func (h *holders) lost(s *transport.Session, now int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lifeLocked(s); l.streams == 0 {
		l.renewed.Store(now)
	}
}

func (h *holders) lifeLocked(s *transport.Session) *life {
	holder := holderOf(s)
	l := h.byID[holder]
	if l == nil {
		l = &life{holder: holder, member: s.Member, addr: s.Addr, incarnation: s.Incarnation}
		if h.byID == nil {
			h.byID = make(map[string]*life)
		}
		h.byID[holder] = l
	}
	return l
}

// tickHolders lets the leases of silent holders end, those included that pass to them meanwhile. If one is heard again in time its leases
// live as long as granted.
func (n *Node) tickHolders(now int64) {
	m := n.members.Load()
	n.holders.mu.Lock()
	defer n.holders.mu.Unlock()
	for _, l := range n.holders.byID {
		was := l.silent
		l.silent = l.isSilent(m, now, int64(n.bound))
		if was && l.silent && l.streams == 0 {
			delete(n.holders.byID, l.holder) // with its leases; it is a new life if it comes after all
		}
		if !was && !l.silent {
			continue
		}
		for _, ks := range *n.keyspaces.Load() {
			if l.silent {
				ks.shard.HolderGone(l.holder, now+int64(silenceGrace))
			} else {
				ks.shard.HolderBack(l.holder)
			}
		}
	}
}

// isSilent tells that the holder has not renewed for a Bound, has had no stream for a second, or has not answered this node's renewals for one: then it hears nothing from
// here and takes this node for dead, so that the end of its load may never be sent.
func (l *life) isSilent(m *members, now, bound int64) bool {
	if l.streams == 0 {
		bound = int64(time.Second)
	}
	if now-l.renewed.Load() >= bound {
		return true
	}
	i := m.Resolve(l.member, l.addr)
	if i < 0 || m.peers[i] == nil {
		return false
	}
	src := m.peers[i].source
	until := src.LeaseUntil.Load()
	return until != 0 && now >= until && src.Incarnation.Load() == l.incarnation
}

// differ tells whether a member that renewed within a Bound goes by another ring than m.
func (h *holders) differ(m *members, now, bound int64) bool {
	view := m.Ring.Fingerprint()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.byID {
		seen := l.view.Load()
		if seen != 0 && seen != view && now-l.renewed.Load() < bound && m.Resolve(l.member, l.addr) >= 0 {
			return true
		}
	}
	return false
}
