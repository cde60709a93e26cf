package nearcache_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// Case stats-4. Among any number of keys that are read once the list has those that are in use, with what became of each of their reads, and is
// no longer than that.
func TestTheMostUsedKeys(t *testing.T) {
	const used, seconds, perSecond = 50, 5, 20
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 2)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) {
			time.Sleep(3 * time.Millisecond)
			return "value", nil
		}})
		r, once := rand.New(rand.NewPCG(1, 2)), 0
		for range seconds * perSecond {
			for _, i := range r.Perm(used) {
				read(t, caches[0], fmt.Sprint("used:", i))
			}
			for range 40 {
				read(t, caches[0], fmt.Sprint("once:", once))
				once++
			}
			time.Sleep(time.Second/perSecond - 40*3*time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		top := caches[0].Stats().Top
		if len(top) > 64 {
			t.Errorf("got %d keys, want 64 at most", len(top))
		}
		found := 0
		for _, k := range top {
			if !strings.HasPrefix(k.Key, "used:") {
				continue
			}
			found++
			if got := k.NearHits + k.OwnerHits + k.OriginGets; got < seconds*perSecond-2 || got > seconds*perSecond || k.Failed != 0 || k.OriginGets > 1 {
				t.Errorf("got %+v, want %d reads, but for one or two before it was on the list", k, seconds*perSecond)
			}
			if k.Owner != c.Nodes[0].Owner("ks", k.Key).ID || k.Loads != k.OriginGets || k.Loads == 1 && k.LoadTime != 3*time.Millisecond || k.HotSince != 0 || k.Pinned {
				t.Errorf("got %+v", k)
			}
			if own := k.Owner == "n0"; own && k.Bytes != int64(len("value")) || own && k.Left <= 0 {
				t.Errorf("got %+v, want what this node owns", k)
			}
		}
		if found != used {
			t.Errorf("%d of %d keys in use are on the list", found, used)
		}
		served := uint64(0)
		for _, k := range caches[1].Stats().Top {
			served += k.Served
		}
		if served == 0 {
			t.Error("the other member does not know what it was asked for")
		}
	})
}

// Keys on the list are shown to those only who may see keys.
func TestTheListOfKeysKeepsThemSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testcluster.Bubble(t, 1)
		caches := open(t, c, "ks", nearcache.Config[string]{Load: func(context.Context, string) (string, error) { return "v", nil }})
		read(t, caches[0], "user:secret")
		time.Sleep(1200 * time.Millisecond)
		for remote, want := range map[string]bool{"127.0.0.1:1": true, "10.0.0.1:1": false} {
			req := httptest.NewRequest("GET", "http://localhost/stats.json", nil)
			req.RemoteAddr = remote
			w := httptest.NewRecorder()
			c.Nodes[0].Handler().ServeHTTP(w, req)
			var s nearcache.Stats
			if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
				t.Fatal(err)
			}
			if top := s.Keyspaces["ks"].Top; len(top) != 1 || (top[0].Key == "user:secret") != want {
				t.Errorf("from %s: got %+v, want one key, whole: %v", remote, top, want)
			}
		}
	})
}

// read gets a key that is there.
func read(t *testing.T, c *nearcache.Cache[string], key string) nearcache.Info {
	t.Helper()
	_, info, err := c.GetInfo(t.Context(), key)
	if err != nil {
		t.Errorf("%s: %v", key, err)
	}
	return info
}
