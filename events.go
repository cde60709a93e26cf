package nearcache

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearcache/nearcache/invalidation"
)

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	EventStart         EventKind = "start"          // the node was started
	EventJoin          EventKind = "join"           // members were added to the list
	EventLeave         EventKind = "leave"          // members are no more on the list
	EventRestart       EventKind = "restart"        // a member was started anew
	EventRing          EventKind = "ring"           // keys have other owners now
	EventGap           EventKind = "gap"            // an invalidation of a member was missed: all near copies from it were dropped
	EventReset         EventKind = "reset"          // a member said that its near copies are to go, as after a change of its ring, or that invalidations were missed
	EventDisconnected  EventKind = "disconnected"   // the connection with a member was lost
	EventConnected     EventKind = "connected"      // it is back
	EventBreakerOpen   EventKind = "breaker open"   // a member does not answer: it is asked for nothing
	EventBreakerClosed EventKind = "breaker closed" // it answers again
	EventDoubt         EventKind = "doubt"          // Stats.Doubt began
	EventSure          EventKind = "sure"           // Stats.Doubt ended
	EventFeedGap       EventKind = "feed gap"       // a feed lost changes: what is cached is loaded anew
)

// Event is something that happened to a node, or that it noticed of others.
type Event struct {
	At     time.Time
	Kind   EventKind
	Member string // the members it is about, for people to read; empty: the node itself
	Text   string // more, for people to read
}

// maxEvents is how many events a node remembers.
const maxEvents = 128

// events are the last events of a node.
type events struct {
	mu   sync.Mutex // guards list. It is a leaf
	list []Event    // the oldest first
}

func (es *events) add(kind EventKind, member, text string) {
	e := Event{At: time.Now(), Kind: kind, Member: member, Text: text}
	es.mu.Lock()
	defer es.mu.Unlock()
	if len(es.list) == maxEvents {
		es.list = append(es.list[:0], es.list[1:]...)
	}
	es.list = append(es.list, e)
}

// recent returns the events, the newest first.
func (es *events) recent() []Event {
	es.mu.Lock()
	defer es.mu.Unlock()
	list := slices.Clone(es.list)
	slices.Reverse(list)
	return list
}

// noteChange notes what is another in m than it was in old, which may be nil.
func (n *Node) noteChange(old, m *members) {
	if old == nil {
		n.events.add(EventStart, "", "")
		return
	}
	if joined := old.lacks(m); joined != "" {
		n.events.add(EventJoin, joined, "")
	}
	if left := m.lacks(old); left != "" {
		n.events.add(EventLeave, left, "")
	}
	if view := m.Ring.Fingerprint(); view != old.Ring.Fingerprint() {
		n.events.add(EventRing, "", fmt.Sprintf("members: %d, ring %016x", len(m.Members), view))
	}
}

// lacks names the members of o that are none of m.
func (m *members) lacks(o *members) string {
	const most = 8
	var ids []string
	for _, e := range o.Members {
		if m.Ring.Index(e.ID) < 0 {
			ids = append(ids, e.ID)
		}
	}
	if more := len(ids) - most; more > 0 {
		ids = append(ids[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(ids, ", ")
}

// noteKill notes why near copies from a member were dropped.
func (n *Node) noteKill(f *followed, cause invalidation.Cause) {
	switch cause {
	case invalidation.CauseRestart:
		f.restarts.Add(1)
		n.events.add(EventRestart, f.id, "")
	case invalidation.CauseHole:
		f.gaps.Add(1)
		n.events.add(EventGap, f.id, "")
	case invalidation.CauseReset:
		f.resets.Add(1)
		n.events.add(EventReset, f.id, "")
	case invalidation.CauseNone, invalidation.CauseFirst:
	}
}

// noteHealth notes what has changed since it was called last. It is of the goroutine tick only.
func (n *Node) noteHealth() {
	for _, p := range n.members.Load().peers {
		if p == nil {
			continue
		}
		st := p.Status()
		if lost := !st.Connected; lost && p.met && !p.lost {
			n.events.add(EventDisconnected, p.id, st.Reason)
			p.lost = true
		} else if !lost && p.lost {
			n.events.add(EventConnected, p.id, "")
			p.lost = false
		}
		p.met = p.met || st.Connected
		if st.Opened > p.opened {
			n.events.add(EventBreakerOpen, p.id, "")
			p.broken = true
		}
		if p.opened = st.Opened; p.broken && st.Breaker == "closed" {
			n.events.add(EventBreakerClosed, p.id, "")
			p.broken = false
		}
	}
	if doubt := n.doubtful(); doubt != n.doubted {
		kind := EventSure
		if doubt {
			kind = EventDoubt
		}
		n.events.add(kind, "", "")
		n.doubted = doubt
	}
}
