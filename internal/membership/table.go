// Package membership turns what discovery reports into the member list that a node works with: spellings made one, doubles
// removed, the node itself on it, and a ring to go with it. It is passive: no goroutine, clock or I/O.
package membership

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearcache/nearcache/peers"
	"github.com/nearcache/nearcache/ring"
)

// maxNameBytes bounds IDs and zones, which travel in frames.
const maxNameBytes = 255

// View is an immutable snapshot of the cluster as one node sees it.
type View struct {
	Members []peers.Member // sorted by ID; all have an ID and an Addr that peers.CanonicalAddr returned
	Self    int            // index of this node
	Listed  bool           // discovery reports this node; false: the node has added itself
	Ring    *ring.Ring     // its members have the same indexes
	Others  uint64         // the fingerprint of a ring of the others
	byAddr  map[string]int // indexes
	// ListedAt is the address that discovery has for this node's ID, as a rule its own. Another one lags behind, or is that of another
	// process with the same ID. Empty: discovery does not know the ID.
	ListedAt string

	// Past are the rings of the last Pace.Window, the oldest first. blurred is until when there may have been more of them.
	Past    []Past
	blurred int64
}

// Me returns this node as the others see it. Its ID is the one that the ring uses: see Table.Update.
func (v *View) Me() peers.Member { return v.Members[v.Self] }

// Resolve returns the index of the member that says it has this ID and this address, -1 when there is none: by ID, or by
// address where discovery does not know the ID or the member has none of its own.
func (v *View) Resolve(id, addr string) int {
	if i := v.Ring.Index(id); i >= 0 {
		return i
	}
	canonical, err := peers.CanonicalAddr(addr)
	if err != nil {
		return -1
	}
	if i, ok := v.byAddr[canonical]; ok && (!named(v.Members[i]) || id == canonical) {
		return i
	}
	return -1
}

// Pace is how hasty a Table is. The zero Pace believes every list at once and remembers no other.
type Pace struct {
	// Hold is how long a list has to stand that lost more than half of the members at once, or all others: an answer that failed
	// looks like it.
	Hold time.Duration
	// Settle is how long a change waits for the ones that come with it: all changes of this time are one.
	Settle time.Duration
	// Grace is how long a list has to stand that lost members which did not say that they stop: they may be back in the next one, with all
	// that they hold.
	Grace time.Duration
	// Space is the least time between two changes.
	Space time.Duration
	// Window is how long a ring is remembered that is in use no more: W of docs/protocol.md.
	Window time.Duration
}

// Table follows discovery. It is not safe for concurrent use; the Views that it hands out are.
type Table struct {
	self    peers.Member
	pace    Pace
	view    *View
	started bool  // discovery has answered
	changed int64 // when view last did
	// next is the last list, which is not in use yet; nil: view is. due is when it will be, 0 for never.
	next *View
	due  int64
	held bool // next waits for Hold
}

// New returns a table whose view is this node alone. self.Addr is the address that others dial, self.ID its configured ID,
// empty or the address when there is none. A node that nobody dials has an ID and no Addr.
func New(self peers.Member, pace Pace) (*Table, error) {
	if self.Addr != "" || self.ID == "" {
		var err error
		if self, err = normalize(self); err != nil {
			return nil, err
		}
	}
	var err error
	t := &Table{self: self, pace: pace}
	t.view, err = t.build(nil)
	return t, err
}

// View returns the current view.
func (t *Table) View() *View { return t.view }

// Update takes a list from discovery and reports whether the view has changed. The first list takes effect at once, later ones as
// the Pace says; until then Tick has to be called. Whatever comes meanwhile, the last list counts. A list that makes no sense
// changes nothing and is an error that names all that is wrong: addresses that nobody can dial, one ID at two addresses, one
// address under two IDs, and what ring.New refuses.
//
// leaving tells which members have said themselves that they stop: that these vanish is no reason to hold a list back. Nil: none.
//
// This node's entry is the one with its ID, or else the one at its address. The view takes the entry as it stands: the others
// see the same entry, and only when all place keys by the same IDs, zones and weights do they agree about owners. So a
// configured ID does not count where discovery knows this node by its address only, or not at all and the others by theirs.
// A node configured to own nothing owns nothing all the same.
func (t *Table) Update(list []peers.Member, leaving func(id string) bool, now int64) (changed bool, err error) {
	view, err := t.build(list)
	if err != nil {
		return false, err
	}
	switch {
	case !t.started || view.equal(t.view):
		return t.accept(view, now), nil
	case t.view.shrinks(view, leaving):
		if t.next == nil || !t.held {
			t.held, t.due = true, now+int64(t.pace.Hold)
		}
	case t.next == nil || t.held:
		t.held, t.due = false, max(now+int64(t.pace.Settle), t.changed+int64(t.pace.Space))
	}
	if !t.held && t.view.loses(view, leaving) && (t.next == nil || !t.view.loses(t.next, leaving)) {
		t.due = max(t.due, now+int64(t.pace.Grace))
	}
	t.next = view
	return t.Tick(now), nil
}

// Tick lets the last list take effect when its time has come, and reports whether the view has changed.
func (t *Table) Tick(now int64) (changed bool) {
	if t.next == nil || now < t.due {
		return false
	}
	return t.accept(t.next, now)
}

// Held returns the list that has lost too many members to be believed yet; nil: there is none.
func (t *Table) Held() *View {
	if !t.held {
		return nil
	}
	return t.next
}

func (t *Table) accept(view *View, now int64) (changed bool) {
	first := !t.started
	t.next, t.due, t.held, t.started = nil, 0, false, true
	if view.equal(t.view) {
		return false
	}
	last := t.view.Ring
	if first || !t.view.Listed { // the others went by a ring without this node, as far as it can know
		last = t.view.Without(t.view.Me().ID)
		if owning(last) == 0 {
			last = view.Without(view.Me().ID)
		}
	}
	t.view.remember(view, last, t.pace.Window, now)
	t.view, t.changed = view, now
	return true
}

func (v *View) equal(w *View) bool {
	return slices.Equal(v.Members, w.Members) && v.Self == w.Self && v.Listed == w.Listed && v.ListedAt == w.ListedAt
}

// shrinks tells whether fewer than half of the listed members, or none of the others, are left in w; those that are leaving do not
// count. What counts is the list and not who is on it: so all nodes judge it alike, even one that has vanished from it.
func (v *View) shrinks(w *View, leaving func(id string) bool) bool {
	gone := 0
	for i, m := range v.Members {
		if i != v.Self && leaving != nil && w.Ring.Index(m.ID) < 0 && leaving(m.ID) {
			gone++
		}
	}
	alone := len(w.Members) == 1 && len(v.Members)-gone > 1
	return alone || 2*w.listed() < v.listed()-gone
}

// loses tells whether a member is not in w that did not say that it stops.
func (v *View) loses(w *View, leaving func(id string) bool) bool {
	return slices.ContainsFunc(v.Members, func(m peers.Member) bool {
		return w.Ring.Index(m.ID) < 0 && (leaving == nil || !leaving(m.ID))
	})
}

// listed returns how many members discovery reported.
func (v *View) listed() int {
	if v.Listed {
		return len(v.Members)
	}
	return len(v.Members) - 1
}

// build returns the view of a list.
func (t *Table) build(list []peers.Member) (*View, error) {
	members, err := clean(list)
	if err != nil {
		return nil, err
	}
	listedAt := ""
	if i := slices.IndexFunc(members, func(m peers.Member) bool { return m.ID == t.self.ID }); i >= 0 {
		listedAt = members[i].Addr
	}
	members, me, listed := t.place(members)
	slices.SortFunc(members, func(a, b peers.Member) int { return cmp.Compare(a.ID, b.ID) })
	onRing := make([]ring.Member, len(members))
	for i, m := range members {
		onRing[i] = ring.Member{ID: m.ID, Weight: m.Weight, Zone: m.Zone}
	}
	r, err := ring.New(onRing)
	if err != nil {
		return nil, err
	}
	byAddr := make(map[string]int, len(members))
	for i, m := range members {
		byAddr[m.Addr] = i
	}
	self := r.Index(me)
	others := ring.Fingerprint(slices.Delete(onRing, self, self+1))
	return &View{Members: slices.Clip(members), Self: self, Listed: listed, ListedAt: listedAt, Ring: r, Others: others, byAddr: byAddr}, nil
}

// clean returns the list in canonical form, without doubles and without order.
func clean(list []peers.Member) ([]peers.Member, error) {
	var problems []error
	normal := make([]peers.Member, 0, len(list))
	for _, m := range list {
		m, err := normalize(m)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		normal = append(normal, m)
	}
	// Entries that have an ID come first: one without, at the same address, is the same member.
	slices.SortStableFunc(normal, func(a, b peers.Member) int {
		return cmp.Compare(btoi(!named(a)), btoi(!named(b)))
	})
	byAddr, byID := make(map[string]peers.Member), make(map[string]peers.Member)
	members := make([]peers.Member, 0, len(normal))
	for _, m := range normal {
		other, ok := byAddr[m.Addr]
		if !ok {
			other, ok = byID[m.ID]
		}
		switch {
		case !ok:
			byAddr[m.Addr], byID[m.ID] = m, m
			members = append(members, m)
		case m == other, !named(m) && m.Addr == other.Addr && named(other):
		default:
			problems = append(problems, fmt.Errorf("nearcache: membership: %s and %s cannot both be members", describe(other), describe(m)))
		}
	}
	return members, errors.Join(problems...)
}

// place finds this node on the list, or adds it, and returns the list, the node's ID on it and whether it was there.
func (t *Table) place(members []peers.Member) (_ []peers.Member, id string, listed bool) {
	me := slices.IndexFunc(members, func(m peers.Member) bool { return m.ID == t.self.ID })
	at := slices.IndexFunc(members, func(m peers.Member) bool { return m.Addr == t.self.Addr })
	switch {
	case me < 0 && at < 0:
		self := t.self
		if len(members) > 0 && !slices.ContainsFunc(members, named) {
			self.ID = self.Addr // the others go by their addresses: so do they call this node
		}
		return append(members, self), self.ID, false
	case me < 0:
		me = at
	}
	m := &members[me]
	m.Addr = t.self.Addr // nobody here dials it, and the listed one may lag behind
	if t.self.Weight < 0 {
		m.Weight = t.self.Weight
	}
	id = m.ID
	if at >= 0 && at != me {
		members = slices.Delete(members, at, at+1) // a former process at this address: to dial it would be to dial oneself
	}
	return members, id, true
}

// named reports whether discovery knows the member's ID, or knows it by its address only.
func named(m peers.Member) bool { return m.ID != m.Addr }

// normalize returns m with a canonical address, which stands for a missing ID too.
func normalize(m peers.Member) (peers.Member, error) {
	addr, err := peers.CanonicalAddr(m.Addr)
	if err != nil {
		return m, err
	}
	if m.ID == "" || m.ID == m.Addr {
		m.ID = addr
	}
	m.Addr = addr
	if len(m.ID) > maxNameBytes || len(m.Zone) > maxNameBytes {
		return m, fmt.Errorf("nearcache: membership: the ID or Zone of %s is longer than %d bytes", describe(m), maxNameBytes)
	}
	if m.Weight == 0 {
		m.Weight = 1
	}
	m.Weight = max(m.Weight, -1)
	return m, nil
}

func describe(m peers.Member) string {
	if !named(m) {
		return fmt.Sprintf("%.80q", m.Addr)
	}
	return fmt.Sprintf("%.64q at %.80q", m.ID, m.Addr)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
