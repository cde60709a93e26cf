package nearcache_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
)

// Each policy keeps the budget, with stale copies in it, and is the one that was asked for: in a loop over a few more keys than fit LRU has
// hardly a hit, and the others most.
func TestEviction(t *testing.T) {
	for eviction, hits := range map[nearcache.Eviction]struct{ least, most float64 }{
		nearcache.EvictDefault: {0.5, 0.95},
		nearcache.EvictLRU:     {0, 0.2},
		nearcache.EvictLFU:     {0.3, 0.95},
		nearcache.EvictTinyLFU: {0.5, 0.95},
		nearcache.EvictRandom:  {0.5, 0.95},
	} {
		t.Run(fmt.Sprint(eviction), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testEviction(t, eviction, hits.least, hits.most) })
		})
	}
}

func testEviction(t *testing.T, eviction nearcache.Eviction, least, most float64) {
	const maxBytes, keys, rounds = 1 << 20, 1100, 12 // about 1,000 fit
	var db failingDB
	cache, err := nearcache.New(nil, "ks", nearcache.Config[string]{
		Eviction: eviction, MaxBytes: maxBytes, NearTTL: -1, TTL: time.Minute, StaleOnError: time.Hour,
		Load: func(ctx context.Context, key string) (string, error) {
			n, err := db.load(ctx, key)
			return fmt.Sprint(n, strings.Repeat(".", 830)), err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close(t.Context())
	loop := func() (fresh, stale, failed int) {
		for i := range keys {
			switch _, info, err := cache.GetInfo(t.Context(), fmt.Sprintf("key-%06d", i)); {
			case err != nil:
				failed++
			case info.Stale:
				stale++
			default:
				fresh++
			}
		}
		if s := cache.Stats(); s.ShardBytes > maxBytes || s.ShardBytes < maxBytes*9/10 {
			t.Errorf("%d bytes, want at most %d, and most of them", s.ShardBytes, maxBytes)
		}
		return fresh, stale, failed
	}
	_, _, _ = loop()
	before := db.loads.Load()
	for range rounds {
		_, _, _ = loop()
	}
	if ratio := 1 - float64(db.loads.Load()-before)/(keys*rounds); ratio < least || ratio > most {
		t.Errorf("hit ratio %.2f, want %.2f to %.2f", ratio, least, most)
	}
	resident := int(cache.Stats().ShardEntries)
	db.failing.Store(true)
	time.Sleep(2 * time.Minute)
	if fresh, stale, failed := loop(); fresh != 0 || stale != resident || failed != keys-resident {
		t.Errorf("the origin fails: %d fresh, %d stale, %d failed, want %d stale ones", fresh, stale, failed, resident)
	}
	db.failing.Store(false)
	time.Sleep(2 * time.Second)
	if fresh, stale, failed := loop(); fresh != keys || stale != 0 || failed != 0 {
		t.Errorf("the origin is back: %d fresh, %d stale, %d failed, want %d fresh ones", fresh, stale, failed, keys)
	}
}
