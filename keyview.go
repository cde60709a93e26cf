package nearcache

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// KeyView is what a node can tell about one key without asking anybody.
type KeyView struct {
	Keyspace string
	Key      string // as Handler shows it
	Owner    string // by this node's ring
	Here     bool   // this node is the owner
	Near     *CopyView
	Shard    *CopyView
	Lease    *LeaseView // given out by this node
	Flight   bool       // a get or load of it is under way in this process
}

// CopyView is one copy of a key.
type CopyView struct {
	Absent  bool
	Age     time.Duration // since its load began
	Left    time.Duration // of its lifetime
	Version uint64
	Bytes   int // of the encoded value; of a near copy what it counts of the budget
}

// LeaseView is a lease that is given out: somebody loads the key.
type LeaseView struct {
	Holder  string // the member's ID, and its incarnation if it is another one
	Age     time.Duration
	Left    time.Duration // until it passes on to another one
	Waiters int           // requests that wait for its end
}

// ClusterKeyView is what the members of a cluster tell about one key.
type ClusterKeyView struct {
	Members map[string]KeyView // by ID: this node, and those that answered in time
	Silent  map[string]string  // by ID: the others, and why
}

func (h *handler) serveKey(w http.ResponseWriter, r *http.Request, whole bool) {
	q := r.URL.Query()
	page := strings.Contains(r.Header.Get("Accept"), "text/html")
	w.Header().Set("Vary", "Accept")
	name, key := q.Get("keyspace"), q.Get("key")
	if page && name == "" && key == "" {
		h.renderKey(w, r, &keyPage{Whole: whole})
		return
	}
	ks := h.node.keyspace(name)
	if ks == nil {
		http.Error(w, "no such keyspace", http.StatusNotFound)
		return
	}
	if key == "" || len(key) > transport.MaxKeyBytes {
		http.Error(w, "key must have 1 to 65535 bytes", http.StatusBadRequest)
		return
	}
	all := ClusterKeyView{Members: make(map[string]KeyView)}
	if whole {
		all.Members, all.Silent = askAll[KeyView](r.Context(), h.node, transport.Request{Op: transport.OpStats, Keyspace: name, Key: key})
	}
	all.Members[h.node.ID()] = ks.view(key)
	for id, v := range all.Members {
		v.Key = h.node.showKey(r, key)
		all.Members[id] = v
	}
	own := all.Members[h.node.ID()]
	switch {
	case page:
		h.renderKey(w, r, &keyPage{Whole: whole, Keyspace: name, Key: key, View: &own, all: all})
	case whole:
		serveJSON(w, r, all)
	default:
		serveJSON(w, r, own)
	}
}

// keyPage is one key's page.
type keyPage struct {
	Node      string
	Whole     bool
	Keyspaces []string
	Keyspace  string
	Key       string
	View      *KeyView // this node's; nil: no key is asked for
	Silent    []silent
	Copies    []copyRow

	all ClusterKeyView
}

// silent is a member that did not answer.
type silent struct{ ID, Why string }

// copyRow is one copy of a key.
type copyRow struct {
	Member, What string
	CopyView
}

// Title, Refresh and the methods below are for the page.
func (p *keyPage) Title() string { return "nearcache " + p.Node + ": one key" }

// Refresh returns the seconds until the page is loaded anew: never.
func (p *keyPage) Refresh() int { return 0 }

// Back links to the overview.
func (p *keyPage) Back() string {
	if p.Whole {
		return "./?scope=cluster"
	}
	return "./"
}

// Here links to what this member knows.
func (p *keyPage) Here() string { return keyLink(p.Keyspace, p.Key, false) }

// Everywhere links to what all members know.
func (p *keyPage) Everywhere() string { return keyLink(p.Keyspace, p.Key, true) }

// keyLink links to the page of a key.
func keyLink(keyspace, key string, whole bool) string {
	q := url.Values{}
	if keyspace != "" {
		q.Set("keyspace", keyspace)
		q.Set("key", key)
	}
	if whole {
		q.Set("scope", "cluster")
	}
	if len(q) == 0 {
		return "key"
	}
	return "key?" + q.Encode()
}

func (h *handler) renderKey(w http.ResponseWriter, r *http.Request, p *keyPage) {
	p.Node = h.node.ID()
	for name := range *h.node.keyspaces.Load() {
		p.Keyspaces = append(p.Keyspaces, name)
	}
	slices.Sort(p.Keyspaces)
	p.Silent = silentRows(p.all.Silent)
	for id, v := range p.all.Members {
		p.Copies = append(p.Copies, v.copies(id)...)
	}
	slices.SortStableFunc(p.Copies, func(a, b copyRow) int { return cmp.Compare(a.Member, b.Member) })
	h.render(w, r, "key", p)
}

// copies lists what a member has of the key.
func (v *KeyView) copies(member string) (rows []copyRow) {
	add := func(what string, c *CopyView) {
		if c == nil {
			return
		}
		if c.Absent {
			what += ": does not exist"
		}
		rows = append(rows, copyRow{member, what, *c})
	}
	add("entry", v.Shard)
	add("near copy", v.Near)
	if l := v.Lease; l != nil {
		add("lease of "+l.Holder, &CopyView{Age: l.Age, Left: l.Left})
	}
	if v.Flight {
		add("get under way", &CopyView{})
	}
	return rows
}

// silentRows sorts the members that did not answer.
func silentRows(why map[string]string) (rows []silent) {
	for id, text := range why {
		rows = append(rows, silent{id, strings.TrimPrefix(text, "nearcache: ")})
	}
	slices.SortFunc(rows, func(a, b silent) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}
