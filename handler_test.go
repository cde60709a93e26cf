package nearcache_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/html"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// fetch asks a handler as a browser on this host would.
func fetch(t *testing.T, h http.Handler, target string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", target, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:5", "localhost:8080"
	r.Header.Set("Accept", "text/html,*/*")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// parse parses a page, and checks what holds for all: no script, nothing from elsewhere, and no style but the one that its policy has the
// hash of.
func parse(t *testing.T, w *httptest.ResponseRecorder) *html.Node {
	t.Helper()
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("got %d, %v: %s", w.Code, w.Header(), w.Body)
	}
	doc, err := html.Parse(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if n.Data == "script" || n.Data == "iframe" || n.Data == "object" {
			t.Errorf("the page has a %s", n.Data)
		}
		for _, a := range n.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "style":
				t.Errorf("the page has an attribute %s=%q", a.Key, a.Val)
			case (a.Key == "href" || a.Key == "src" || a.Key == "action") && a.Val != "data:," &&
				(strings.HasPrefix(a.Val, "/") || strings.Contains(a.Val, ":")):
				t.Errorf("the page has a link that is not relative: %s=%q", a.Key, a.Val)
			}
		}
		if n.Data == "style" {
			sum := sha256.Sum256([]byte(n.FirstChild.Data))
			if hash := base64.StdEncoding.EncodeToString(sum[:]); !strings.Contains(w.Header().Get("Content-Security-Policy"), "style-src 'sha256-"+hash+"';") {
				t.Errorf("the policy %q does not have the style's hash %s", w.Header().Get("Content-Security-Policy"), hash)
			}
		}
	}
	return doc
}

// texts returns the text of all elements of that name.
func texts(doc *html.Node, element string) (all []string) {
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && n.Data == element {
			var b strings.Builder
			for d := range n.Descendants() {
				if d.Type == html.TextNode {
					b.WriteString(d.Data)
				}
			}
			all = append(all, strings.Join(strings.Fields(b.String()), " "))
		}
	}
	return all
}

// count returns how many elements of that name there are.
func count(doc *html.Node, element string) int { return len(texts(doc, element)) }

// Case stats-5. The pages are made of markup only, whatever keyspaces and keys are called.
func TestPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		const name, key = `ks"><script>alert(1)</script>`, "<img src=x onerror=alert(1)>\xff\n"
		caches := open(t, c, name, nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
		open(t, c, "quiet", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
		for range 3 {
			for _, cache := range caches {
				if _, err := cache.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(1100 * time.Millisecond)
		}
		h := c.Nodes[0].Handler()
		for _, query := range []string{"", "?scope=cluster", "?refresh=off&sort=bytes&n=3", "?scope=cluster&sort=key&refresh=10"} {
			doc := parse(t, fetch(t, h, "/"+query))
			body := strings.Join(texts(doc, "body"), " ")
			for _, want := range []string{name, "quiet", "n0", "n1", "n2", "all connected", "start", "hits, last minute"} {
				if !strings.Contains(body, want) {
					t.Errorf("%q does not show %q:\n%s", query, want, body)
				}
			}
			refreshes := false
			for n := range doc.Descendants() {
				for _, a := range n.Attr {
					refreshes = refreshes || n.Data == "meta" && a.Key == "http-equiv" && a.Val == "refresh"
				}
			}
			if want := !strings.Contains(query, "off"); refreshes != want {
				t.Errorf("%q: refreshes itself: %v, want %v", query, refreshes, want)
			}
			if paths := count(doc, "path"); paths < 100 {
				t.Errorf("%q: got %d paths, want the plots and the ring", query, paths)
			}
		}

		doc := parse(t, fetch(t, h, "/key"))
		if got := texts(doc, "option"); len(got) != 2 || got[0] != name {
			t.Errorf("got the keyspaces %q to choose from, want both", got)
		}
		query := "keyspace=" + queryEscape(name) + "&key=" + queryEscape(key)
		doc = parse(t, fetch(t, h, "/key?scope=cluster&"+query))
		body := strings.Join(texts(doc, "body"), " ")
		for _, want := range []string{`"<img src=x onerror=alert(1)>\xff\n"`, name, "owned by " + c.Nodes[0].Owner(name, key).ID, "entry"} {
			if !strings.Contains(body, want) {
				t.Errorf("the page of the key does not show %q:\n%s", want, body)
			}
		}
		if count(doc, "img") != 0 {
			t.Error("the key became markup")
		}
	})
}

func queryEscape(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02x", c)
	}
	return b.String()
}

// Case stats-5. Parameters that make no sense are refused, and nothing is changed by anybody.
func TestHandlerRefuses(t *testing.T) {
	n, err := nearcache.Start(t.Context(), nearcache.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(t.Context())
	if _, err := nearcache.New(n, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }}); err != nil {
		t.Fatal(err)
	}
	h := n.Handler()
	long := strings.Repeat("k", 1<<16)
	for target, want := range map[string]int{
		"/": 200, "/stats.json": 200, "/history.json": 200, "/metrics": 200, "/key": 200, "/?": 200, "/?sort=gets&n=64&refresh=3600": 200,
		"/stats.json?scope=node": 200, "/stats.json?scope=cluster": 200, "/key?keyspace=ks&key=k": 200, "/key?keyspace=ks&key=k&scope=cluster": 200,
		"/?sort=": 200, "/?scope=": 200,
		"/?sort=password": 400, "/?sort=<script>": 400, "/?n=0": 400, "/?n=-1": 400, "/?n=65": 400, "/?n=99999999999999999999": 400, "/?n=x": 400,
		"/?refresh=0": 400, "/?refresh=1e9": 400, "/?scope=world": 400, "/stats.json?scope=%00": 400, "/metrics?scope=x": 400,
		"/key?keyspace=ks&key=": 400, "/key?keyspace=ks&key=" + long: 400, "/key?keyspace=none&key=k": 404, "/key?key=k": 404,
		"/stats": 404, "/../secret": 404, "/key/": 200,
	} {
		w := fetch(t, h, strings.NewReplacer("<", "%3C", ">", "%3E").Replace(target))
		if w.Code != want {
			t.Errorf("%.60s: got %d, want %d: %.200s", target, w.Code, want, w.Body)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%.60s: got the headers %v", target, w.Header())
		}
		if strings.Contains(w.Body.String(), "<script>") {
			t.Errorf("%.60s: a parameter comes back as it is: %.200s", target, w.Body)
		}
	}
}

// With the scope of the cluster all members are asked, and those that do not answer are named in time.
func TestScopeOfTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 4)
		caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: time.Minute, Load: func(context.Context, string) (string, error) { return "v", nil }})
		if err := caches[3].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		for i, cache := range caches[:3] {
			for range 10 * (i + 1) {
				if _, err := cache.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
		}
		h := c.Nodes[0].Handler()
		ask := func(target string, v any) time.Duration {
			t.Helper()
			start := time.Now()
			r := httptest.NewRequest("GET", target, nil)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if err := json.Unmarshal(w.Body.Bytes(), v); w.Code != 200 || err != nil {
				t.Fatalf("%s: got %d, %v: %s", target, w.Code, err, w.Body)
			}
			return time.Since(start)
		}
		var s nearcache.ClusterStats
		ask("/stats.json?scope=cluster", &s)
		sum := s.Keyspaces["ks"]
		if len(s.Members) != 4 || len(s.Silent) != 0 || sum.Gets != 60 || sum.Loads != 1 || sum.ShardEntries != 1 || sum.NearEntries != 3 ||
			sum.OwnerLatency.Count != sum.OwnerHits || sum.OriginGets != 1 {
			t.Errorf("got %d members, silent %v, and the sums %+v", len(s.Members), s.Silent, sum)
		}
		if got := s.Members["n2"].Keyspaces["ks"].Gets; got != 30 {
			t.Errorf("n2 tells of %d gets, want 30", got)
		}
		var k nearcache.ClusterKeyView
		ask("/key?keyspace=ks&scope=cluster&key="+key, &k)
		for i, id := range []string{"n0", "n1", "n2"} {
			v := k.Members[id]
			if v.Owner != "n1" || v.Near == nil || v.Near.Left <= 0 || v.Near.Left > time.Minute || v.Near.Bytes == 0 || (v.Shard != nil) != (i == 1) {
				t.Errorf("%s: got %+v, want a near copy, and the entry at n1 only", id, v)
			}
		}
		if len(k.Members) != 3 || !strings.Contains(k.Silent["n3"], "not open") {
			t.Errorf("got %v, want n3 to say that the keyspace is not open there", k.Silent)
		}

		c.Network.Isolate(testcluster.Host(2))
		s = nearcache.ClusterStats{}
		if took := ask("/stats.json?scope=cluster", &s); took > 600*time.Millisecond {
			t.Errorf("the answer took %v, want half a second at most", took)
		}
		if len(s.Members) != 3 || len(s.Silent) != 1 || s.Silent["n2"] == "" || s.Keyspaces["ks"].Gets != 30 {
			t.Errorf("got %d members, silent %v, %d gets; want all but n2", len(s.Members), s.Silent, s.Keyspaces["ks"].Gets)
		}
		doc := parse(t, fetch(t, h, "/?scope=cluster"))
		if body := strings.Join(texts(doc, "body"), " "); !strings.Contains(body, "No statistics of n2") {
			t.Errorf("the page does not name n2:\n%s", body)
		}
		c.Network.HealAll()
	})
}

// Keys come from other members as they are, whatever bytes they have: one that several members tell of is one in the sum.
func TestKeysOfTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		caches := open(t, c, "ks", nearcache.Config[string]{NearTTL: time.Minute, Load: func(context.Context, string) (string, error) { return "v", nil }})
		const key = "a\xff\n\""
		for _, cache := range caches {
			for range 1000 {
				if _, err := cache.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(3 * time.Second)
		s := c.Nodes[0].ClusterStats(t.Context())
		var rates float64
		for id, m := range s.Members {
			top := m.Keyspaces["ks"].Top
			if len(top) != 1 || top[0].Key != key {
				t.Fatalf("%s: got %+v, want the key as it is", id, top)
			}
			rates += top[0].Rate
		}
		top := s.Keyspaces["ks"].Top
		if len(top) != 1 || top[0].Key != key || top[0].Rate <= 0.9*rates || top[0].Rate > rates {
			t.Errorf("got the sum %+v, want one key, and nearly the sum of the rates, %v", top, rates)
		}
	})
}

// A member that says nothing at all is waited for for half a second.
func TestASilentMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3, testcluster.PeerTimeout(10*time.Second))
		c.Network.Isolate(testcluster.Host(1))
		start := time.Now()
		s := c.Nodes[0].ClusterStats(t.Context())
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("it took %v, want half a second", took)
		}
		if len(s.Members) != 2 || s.Silent["n1"] != "no answer in time" {
			t.Errorf("got %d members, silent %v, want n1 to be silent", len(s.Members), s.Silent)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		if c.Nodes[0].ClusterStats(ctx); time.Since(start) != 100*time.Millisecond {
			t.Errorf("it took %v, want what the context allows", time.Since(start))
		}
		c.Network.HealAll()
	})
}

// A key that is being loaded shows its lease, and who waits.
func TestTheLeaseOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 3)
		gate := make(chan struct{})
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { <-gate; return "v", nil }})
		key := testcluster.Key(c.Nodes[0], "ks", "n1", 0)
		done := make(chan struct{}, 3)
		for _, cache := range caches {
			go func() { _, _ = cache.Get(t.Context(), key); done <- struct{}{} }()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		var v nearcache.KeyView
		w := httptest.NewRecorder()
		c.Nodes[1].Handler().ServeHTTP(w, httptest.NewRequest("GET", "/key?keyspace=ks&key="+key, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if l := v.Lease; l == nil || !strings.HasPrefix(l.Holder, "n0/") || l.Waiters != 2 || l.Age < time.Second || l.Age > 1100*time.Millisecond || l.Left <= 0 {
			t.Errorf("got the lease %+v, want that of n0, a second old, with two waiters", l)
		}
		if !v.Flight || !v.Here || v.Shard != nil {
			t.Errorf("got %+v, want a flight and no copy", v)
		}
		close(gate)
		for range caches {
			<-done
		}
	})
}
