package page_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

const (
	hotKey = "product:hot"
	markup = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
)

// load reads on all nodes until ctx ends: every fifth read is of the hot key, every tenth of the one that is markup.
func load(ctx context.Context, caches []*nearcache.Cache[string]) (ended *sync.WaitGroup) {
	ended = new(sync.WaitGroup)
	for _, c := range caches {
		ended.Go(func() {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				for i := range 10 {
					key := fmt.Sprint("product:", rand.IntN(5000))
					switch {
					case i%5 == 0:
						key = hotKey
					case i == 9:
						key = markup
					}
					_, _ = c.Get(ctx, key)
				}
			}
		})
	}
	return ended
}

// Case stats-5. The page in a browser, of a cluster under load: the hot key is at the top within three seconds, the columns sort, a key made
// of markup is text, the console is silent, and nothing sticks out on a phone, in both themes.
func TestInABrowser(t *testing.T) {
	b := startBrowser(t)
	cluster := testcluster.Loopback(t, 3)
	var caches []*nearcache.Cache[string]
	for _, n := range cluster.Nodes {
		c, err := nearcache.New(n, "product", nearcache.Config[string]{Load: func(_ context.Context, key string) (string, error) {
			if strings.HasPrefix(key, "product:1") {
				return "", nearcache.ErrNotFound
			}
			return strings.Repeat("v", len(key)), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		caches = append(caches, c)
	}
	server := httptest.NewServer(http.StripPrefix("/any/prefix", cluster.Nodes[0].Handler()))
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := load(ctx, caches)
	defer ended.Wait()
	defer stop()
	page := server.URL + "/any/prefix/"
	testcluster.Last(2 * time.Second) // people look when something is going on
	b.look(1280, "light")
	b.call("Page.navigate", map[string]any{"url": page}, nil)

	opened := time.Now()
	var keys []string
	for time.Since(opened) < 3*time.Second { // on a busy machine the first window saw a dozen reads, most of them of other keys
		if b.eval(`[...document.querySelectorAll('#keys + .wrap td.key')].map(e => e.textContent)`, &keys) && len(keys) > 1 && keys[0] == hotKey && keys[1] == markup {
			break
		}
		testcluster.Last(50 * time.Millisecond)
	}
	if len(keys) < 2 || keys[0] != hotKey || keys[1] != markup {
		t.Fatalf("after %v the most read keys are %.200q, want %q and %q", time.Since(opened), keys, hotKey, markup)
	}
	t.Logf("the hot key was at the top %v after the page was opened", time.Since(opened).Round(time.Millisecond))
	var owner string
	if want := cluster.Nodes[0].Owner("product", hotKey).ID; !b.eval(`document.querySelector('#keys + .wrap td.key').parentNode.children[10].textContent`, &owner) || owner != want {
		t.Errorf("its owner is said to be %q, want %q", owner, want)
	}

	// It refreshes itself.
	before, _ := b.loaded()
	for now := before; now == before; now, _ = b.loaded() {
		if time.Since(opened) > 20*time.Second {
			t.Fatal("the page does not refresh itself")
		}
		testcluster.Last(50 * time.Millisecond)
	}
	stop() // what follows is about one state
	ended.Wait()
	checkSorting(t, b, page)
	checkLooks(t, b, page)

	var title string
	if !b.eval(`document.title`, &title) || strings.Contains(title, "owned") {
		t.Errorf("the title is %q: a key ran as a script", title)
	}
	if _, errors := b.loaded(); len(errors) > 0 {
		t.Errorf("the console shows %.2000q", errors)
	}
}

// open loads a page and waits for it.
func (b *browser) open(url string) {
	b.t.Helper()
	before, _ := b.loaded()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.wait(before)
}

// wait waits until another page was loaded than the first ones.
func (b *browser) wait(before int) {
	b.t.Helper()
	start := time.Now()
	for now := before; now == before; now, _ = b.loaded() {
		if time.Since(start) > 20*time.Second {
			b.t.Fatal("the page is not loaded")
		}
		testcluster.Last(20 * time.Millisecond)
	}
}

// checkSorting follows the links above the keys.
func checkSorting(t *testing.T, b *browser, page string) {
	t.Helper()
	b.open(page + "?refresh=off&scope=cluster")
	for _, column := range []string{"key", "gets", "rate"} {
		before, _ := b.loaded()
		var clicked bool
		b.eval(fmt.Sprintf(`document.querySelector('th a[href*="sort=%s#"]').click(), true`, column), &clicked)
		if !clicked {
			t.Fatalf("there is no link to sort by %s", column)
		}
		b.wait(before)
		var url string
		if !b.eval(`location.href`, &url) || !strings.Contains(url, "scope=cluster") || !strings.Contains(url, "refresh=off") {
			t.Errorf("sorting by %s leads to %s, want the other parameters kept", column, url)
		}
		var keys, sorted []string
		b.eval(`[...document.querySelectorAll('#keys + .wrap td.key')].map(e => e.textContent)`, &keys)
		b.eval(`[...document.querySelectorAll('th[aria-sort]')].map(e => e.textContent)`, &sorted)
		if len(sorted) != 1 || len(keys) != 20 {
			t.Errorf("by %s: got %d keys, sorted by %q", column, len(keys), sorted)
		}
		if isSorted := slices.IsSorted(keys); isSorted != (column == "key") {
			t.Errorf("by %s: the keys are %.200q", column, keys)
		}
	}
}

// checkLooks looks at the pages in both widths and themes.
func checkLooks(t *testing.T, b *browser, page string) {
	t.Helper()
	for _, width := range []int{1280, 360} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(width, scheme)
			for name, url := range map[string]string{"page": "?refresh=off&scope=cluster", "node": "?refresh=off", "key": "key?scope=cluster&keyspace=product&key=" + hotKey} {
				b.open(page + url)
				var looks struct {
					Width, Back, Front, Hidden float64
					Dom                        string
				}
				if !b.eval(`(() => { const s = getComputedStyle(document.body), l = c => c.match(/\d+/g).slice(0, 3).reduce((a, x) => a + +x, 0) / 765;
					return {Width: document.documentElement.scrollWidth, Hidden: Math.max(...[...document.querySelectorAll('.wrap')].map(e => e.scrollWidth - e.clientWidth)), Back: l(s.backgroundColor), Front: l(s.color), Dom: document.body.innerText} })()`, &looks) {
					t.Fatalf("%s: nothing to measure", name)
				}
				if looks.Width > float64(width) {
					t.Errorf("%s, %d pixels: it is %v wide", name, width, looks.Width)
				}
				if looks.Hidden > 0 {
					t.Errorf("%s, %d pixels: a table is %v pixels too wide", name, width, looks.Hidden)
				}
				if dark := looks.Back < 0.5; dark != (scheme == "dark") || looks.Back-looks.Front < 0.6 && looks.Front-looks.Back < 0.6 {
					t.Errorf("%s, %s: the brightness is %.2f on %.2f", name, scheme, looks.Front, looks.Back)
				}
				if !strings.Contains(looks.Dom, "n1") {
					t.Errorf("%s: got %q, want the members", name, looks.Dom)
				}
				b.screenshot(fmt.Sprintf("%s-%d-%s", name, width, scheme))
			}
		}
	}
}
