package sim

import (
	"slices"
	"time"
)

// holders are the lives of members that follow this node's log, as the root's.
type holders struct{ lives []*life }

type life struct {
	holder, member string
	incarnation    uint64
	streams        int
	silent         bool
	renewed        int64
	view           uint64 // of its last renewal
}

const silenceGrace = 2 * tick

func (h *holders) add(from *node, now int64) *life {
	l := h.of(from)
	l.streams++
	l.renewed = now
	return l
}

func (h *holders) of(from *node) *life {
	holder := holderOf(from)
	i := slices.IndexFunc(h.lives, func(l *life) bool { return l.holder == holder })
	if i < 0 {
		i = len(h.lives)
		h.lives = append(h.lives, &life{holder: holder, member: from.id, incarnation: from.incarnation})
	}
	return h.lives[i]
}

// remove notes that a stream has ended.
func (h *holders) remove(l *life, now int64) {
	if l.streams--; l.streams == 0 {
		l.renewed = now
	}
}

// lost notes that a lane has ended.
func (h *holders) lost(from *node, now int64) {
	if l := h.of(from); l.streams == 0 {
		l.renewed = now
	}
}

// tickHolders lets the leases of silent holders end (Node.tickHolders).
func (n *node) tickHolders(now int64) {
	for _, l := range slices.Clone(n.holders.lives) {
		was := l.silent
		l.silent = l.isSilent(n.members, now, int64(n.w.cfg.Bound))
		if was && l.silent && l.streams == 0 {
			n.holders.lives = slices.DeleteFunc(n.holders.lives, func(o *life) bool { return o == l })
		}
		switch {
		case l.silent:
			n.shard.HolderGone(l.holder, now+int64(silenceGrace))
		case was:
			n.shard.HolderBack(l.holder)
		}
	}
}

func (l *life) isSilent(m *members, now, bound int64) bool {
	if l.streams == 0 {
		bound = int64(time.Second)
	}
	if now-l.renewed >= bound {
		return true
	}
	i := m.Ring.Index(l.member)
	if i < 0 || m.peers[i] == nil {
		return false
	}
	src := m.peers[i].source
	until := src.LeaseUntil.Load()
	return until != 0 && now >= until && src.Incarnation.Load() == l.incarnation
}

// contests tells whether another process has the member's ID and is still heard: transport.claim refuses the newcomer until then.
func (n *node) contests(from *node) bool {
	for _, l := range n.holders.lives {
		if l.member == from.id && l.incarnation != from.incarnation && l.streams > 0 && n.exact()-l.renewed < int64(time.Second) {
			return true
		}
	}
	return false
}
