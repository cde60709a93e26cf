package nearcache

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"strings"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/style.css
var pageStyle string

// Handler serves what the node knows, to be mounted under any prefix with http.StripPrefix:
//
//	/              a page for people, which refreshes itself
//	/stats.json    Stats as JSON, durations in nanoseconds
//	/history.json  History as JSON
//	/key           one key's place and copies: ?keyspace=...&key=..., as a page for browsers, else as JSON (KeyView)
//	/metrics       all numbers in the text format of Prometheus
//
// With ?scope=cluster the other members are asked too, and waited for for half a second: the page has the sums, stats.json is a ClusterStats,
// and /key a ClusterKeyView. The page takes ?refresh=off, or the seconds between two refreshes, ?sort= a column of the keys, and ?n= how many
// of them, up to 64.
//
// It answers GET and HEAD only and changes nothing. It is open to whoever the application lets in: mount it behind the
// application's own authentication. Whole keys are shown to those NodeConfig.ShowKeys names (by default requests from
// this host to this host); others see a prefix and a keyed hash. In JSON and on the page a key of printable characters is itself, any other
// one is quoted as in Go, and one over 256 bytes is cut. /metrics has no keys.
func (n *Node) Handler() http.Handler {
	sum := sha256.Sum256([]byte(pageStyle))
	return &handler{
		node: n,
		page: template.Must(template.New("").Funcs(pageFunctions()).Parse(pageHTML)),
		policy: "default-src 'none'; img-src data:; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
	}
}

type handler struct {
	node   *Node
	page   *template.Template
	policy string // Content-Security-Policy
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Content-Security-Policy", h.policy)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	scope := r.URL.Query().Get("scope")
	if scope != "" && scope != "node" && scope != "cluster" {
		http.Error(w, "scope must be node or cluster", http.StatusBadRequest)
		return
	}
	whole := scope == "cluster"
	switch strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/") {
	case "":
		h.servePage(w, r, whole)
	case "stats.json":
		h.serveStats(w, r, whole)
	case "history.json":
		serveJSON(w, r, h.node.History())
	case "key":
		h.serveKey(w, r, whole)
	case "metrics":
		var b bytes.Buffer
		writeMetrics(&b, h.node.Stats().Metrics())
		write(w, r, "text/plain; version=0.0.4; charset=utf-8", b.Bytes())
	default:
		http.NotFound(w, r)
	}
}

func (h *handler) serveStats(w http.ResponseWriter, r *http.Request, whole bool) {
	show := func(key string) string { return h.node.showKey(r, key) }
	if !whole {
		s := h.node.Stats()
		s.mapKeys(show)
		serveJSON(w, r, s)
		return
	}
	s := h.node.ClusterStats(r.Context())
	for _, m := range s.Members {
		m.mapKeys(show)
	}
	for name, ks := range s.Keyspaces {
		ks.mapKeys(show)
		s.Keyspaces[name] = ks
	}
	serveJSON(w, r, s)
}

// render writes a page.
func (h *handler) render(w http.ResponseWriter, r *http.Request, name string, data any) {
	var b bytes.Buffer
	if err := h.page.ExecuteTemplate(&b, name, data); err != nil {
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
