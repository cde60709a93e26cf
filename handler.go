package nearcache

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nearcache/nearcache/internal/transport"
)

//go:embed handler.html
var page string

// Handler serves what the node knows, to be mounted under any prefix with http.StripPrefix:
//
//	/            a page for people, which refreshes itself unless asked with ?refresh=off
//	/stats.json  Stats as JSON, durations in nanoseconds
//	/key         one key's place: ?keyspace=...&key=..., as JSON
//
// It answers GET and HEAD only and changes nothing. It is open to whoever the application lets in: mount it behind the
// application's own authentication. Whole keys are shown to those NodeConfig.ShowKeys names (by default requests from
// this host to this host); others see a prefix and a keyed hash.
func (n *Node) Handler() http.Handler {
	t := template.Must(template.New("page").Funcs(template.FuncMap{
		"percent": func(part, whole uint64) string {
			if whole == 0 {
				return "-"
			}
			return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
		},
		"share":    func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) },
		"bytes":    formatBytes,
		"ago":      formatAgo,
		"count":    formatCount,
		"view":     func(v uint64) string { return fmt.Sprintf("%016x", v) },
		"duration": func(d time.Duration) string { return d.Round(time.Millisecond).String() },
	}).Parse(page))
	return &handler{node: n, page: t}
}

type handler struct {
	node *Node
	page *template.Template
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	switch strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/") {
	case "":
		h.servePage(w, r)
	case "stats.json":
		s := h.node.Stats()
		for _, ks := range s.Keyspaces {
			for i := range ks.Top {
				ks.Top[i].Key = h.showKey(r, ks.Top[i].Key)
			}
		}
		serveJSON(w, r, s)
	case "key":
		h.serveKey(w, r)
	default:
		http.NotFound(w, r)
	}
}

// keyspaceRow is a keyspace on the page.
type keyspaceRow struct {
	Name string
	KeyspaceStats
	policy policy
}

// TTL and the methods below show the effective configuration.
func (k keyspaceRow) TTL() time.Duration { return k.policy.ttl }

// NearTTL is the lifetime of near copies.
func (k keyspaceRow) NearTTL() time.Duration { return k.policy.nearTTL }

// MaxLoads is the limit of concurrent loads.
func (k keyspaceRow) MaxLoads() int { return k.policy.maxLoads }

func (h *handler) servePage(w http.ResponseWriter, r *http.Request) {
	st := h.node.Stats()
	rows := make([]keyspaceRow, 0, len(st.Keyspaces))
	for name, ks := range st.Keyspaces {
		row := keyspaceRow{Name: name, KeyspaceStats: ks}
		if k := h.node.keyspace(name); k != nil {
			row.policy = k.policy
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b keyspaceRow) int { return strings.Compare(a.Name, b.Name) })
	var b bytes.Buffer
	err := h.page.Execute(&b, map[string]any{
		"Stats": st, "Keyspaces": rows, "Config": h.node.cfg, "Addr": h.node.Addr(), "Started": time.Since(h.node.started),
		"Refresh": r.URL.Query().Get("refresh") != "off",
	})
	if err != nil {
		http.Error(w, "page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, r, "text/html; charset=utf-8", b.Bytes())
}

func serveJSON(w http.ResponseWriter, r *http.Request, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, "stats: "+err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, r, "application/json", append(b, '\n'))
}

func write(w http.ResponseWriter, r *http.Request, contentType string, b []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(b) // the client may have gone: nobody is left to tell
}

// KeyView is what a node can tell about one key without asking anybody.
type KeyView struct {
	Keyspace string
	Key      string // quoted as in Go where it is not printable text; shortened for those who may not see keys
	Owner    string // by this node's ring
	Here     bool   // this node is the owner
	Near     *CopyView
	Shard    *CopyView
	Flight   bool // a get or load of it is under way in this process
}

// CopyView is one copy of a key.
type CopyView struct {
	Absent  bool
	Age     time.Duration
	Left    time.Duration // of its lifetime
	Version uint64
	Bytes   int // of the encoded value; of a near copy what it counts of the budget
}

func (h *handler) serveKey(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	ks := h.node.keyspace(q.Get("keyspace"))
	if ks == nil {
		http.Error(w, "no such keyspace", http.StatusNotFound)
		return
	}
	key := q.Get("key")
	if len(key) == 0 || len(key) > transport.MaxKeyBytes {
		http.Error(w, "key must have 1 to 65535 bytes", http.StatusBadRequest)
		return
	}
	v := ks.view(key)
	v.Key = h.showKey(r, key)
	serveJSON(w, r, v)
}

// showKey returns the key as r may see it.
func (h *handler) showKey(r *http.Request, key string) string {
	show := h.node.cfg.ShowKeys
	if show == nil {
		show = fromThisHost
	}
	if show(r) {
		if utf8.ValidString(key) {
			return key
		}
		return fmt.Sprintf("%+q", key)
	}
	mac := hmac.New(sha256.New, h.node.secret[:])
	mac.Write([]byte(key))
	prefix, _, _ := strings.Cut(key, ":")
	if prefix == key || len(prefix) > 16 || !utf8.ValidString(prefix) {
		prefix = ""
	}
	return prefix + "#" + hex.EncodeToString(mac.Sum(nil)[:4])
}

// fromThisHost tells whether the request came over loopback and was meant for loopback: the second half keeps a page in
// the operator's browser from reading it under a name that resolves here.
func fromThisHost(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !isLoopback(host) {
		return false
	}
	target := r.Host
	if h, _, err := net.SplitHostPort(target); err == nil {
		target = h
	}
	return isLoopback(strings.Trim(target, "[]"))
}

// isLoopback tells whether host is a loopback address or the name that always means one.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func formatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/unit, 0
	for f >= unit && i < 3 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGT"[i])
}

func formatAgo(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return d.Round(time.Millisecond).String() + " ago"
}

// formatCount groups the digits of a counter.
func formatCount(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
