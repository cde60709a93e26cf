package nearcache_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/internal/testcluster"
)

// crowd reads on one node: 50,000 keys a minute once each, a key of another member 500 times a second from the fifth second on, and keys in
// use a thousand times a second all the time.
type crowd struct {
	t     *testing.T
	node  *nearcache.Node
	cache *nearcache.Cache[string]
	hot   string
	inUse []string

	once    int         // keys read once so far
	fetches map[int]int // of hot, by second
	missed  map[int]int // of keys in use, by second
	share   []float64   // of the near cache's entries that keys read once have, by second
	began   time.Time
}

const hotFrom = 5 * time.Second

// run reads for d.
func (c *crowd) run(d time.Duration) {
	c.began, c.fetches, c.missed = time.Now(), make(map[int]int), make(map[int]int)
	rng := rand.New(rand.NewPCG(1, 2))
	for ms := 0; time.Since(c.began) < d; ms++ {
		for ; c.once < ms*50/60; c.once++ {
			c.read(fmt.Sprint("once-", c.once))
		}
		if ms%2 == 0 && time.Since(c.began) >= hotFrom && c.read(c.hot) != nearcache.TierNear {
			c.fetches[ms/1000]++
		}
		if len(c.inUse) > 0 && c.read(c.inUse[rng.IntN(len(c.inUse))]) != nearcache.TierNear {
			c.missed[ms/1000]++
		}
		time.Sleep(time.Millisecond)
		if ms%1000 == 999 && ms > 5000 {
			c.share = append(c.share, c.readOnce())
		}
	}
}

// readOnce returns the part of the near copies that is of keys read once.
func (c *crowd) readOnce() float64 {
	entries := c.cache.Stats().NearEntries
	resident := int64(0)
	for _, key := range append(c.inUse, c.hot) {
		var v nearcache.KeyView
		w := httptest.NewRecorder()
		c.node.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/key?keyspace=ks&key="+key, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			c.t.Fatal(err)
		}
		if v.Near != nil {
			resident++
		}
	}
	return float64(entries-resident) / float64(entries)
}

func (c *crowd) read(key string) nearcache.Tier {
	v, info, err := c.cache.GetInfo(c.t.Context(), key)
	if v != "v" || err != nil {
		c.t.Errorf("%s: got %q, %v", key, v, err)
	}
	return info.Tier
}

// Case L1-20. A key that becomes hot is fetched once in a lifetime of its near copy, from its first read on and however full the near cache
// is. Keys that are read once meanwhile have a twentieth of a near cache of the default size, and of a full one what is free: they displace
// nothing that is in use, and where more is in use than fits, they have the window at most.
func TestAHotKeyIsNearAtOnce(t *testing.T) {
	const (
		slots  = 400
		small  = slots * 230
		window = 0.2 // of the budget
	)
	for name, tt := range map[string]struct {
		nearBytes int64
		nearTTL   time.Duration
		inUse     int
	}{
		"default":              {},
		"full":                 {small, 0, 0},
		"keys in use":          {small, time.Minute, slots * 7 / 10},
		"more in use than fit": {small, time.Minute, 3 * slots},
	} {
		if raceEnabled && name != "full" {
			continue // one caller, nothing for the race detector
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testcluster.Bubble(t, 3, func(_ int, cfg *nearcache.NodeConfig) { cfg.NearBytes = tt.nearBytes })
				caches := open(t, c, "ks", nearcache.Config[string]{
					TTL: time.Hour, NearTTL: tt.nearTTL, Load: func(context.Context, string) (string, error) { return "v", nil },
				})
				load := crowd{t: t, node: c.Nodes[0], cache: caches[0], hot: testcluster.Key(c.Nodes[0], "ks", "n1", 0)}
				for i := range tt.inUse {
					load.inUse = append(load.inUse, testcluster.Key(c.Nodes[0], "ks", fmt.Sprint("n", 1+i%2), 1+i))
				}
				load.run(8 * time.Second)
				for second := 5; second < 8; second++ {
					if got := load.fetches[second]; got > 2 {
						t.Errorf("second %d: the hot key was fetched %d times, want 2 at most", second, got)
					}
					if got := load.missed[second]; got > 10 && tt.inUse <= slots {
						t.Errorf("second %d: %d of 1000 reads of keys in use were no near hits, want 10 at most", second, got)
					}
				}
				s := caches[0].Stats()
				if got := slices.Max(load.share); tt.inUse > slots && got > window+0.05 {
					t.Errorf("keys read once have %.2f of the entries, want the window's part of %.2f at most", got, window)
				}
				if tt.nearBytes == 0 && s.NearBytes > 64<<20/20 || tt.nearBytes != 0 && s.NearBytes < tt.nearBytes*9/10 {
					t.Errorf("got %d bytes of near copies, want a twentieth of 64 MiB at most by default, and a small near cache full", s.NearBytes)
				}
			})
		})
	}
}
