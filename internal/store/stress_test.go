package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// stamped is a value that tells whether it is whole and whose it is.
type stamped struct {
	key     int
	version uint64
	sum     uint64
}

func stamp(key int, version uint64) stamped {
	return stamped{key, version, uint64(key)*31 + version*17}
}

// Readers beside writers see whole values of their own key, and no version older than one whose replacement or
// removal had ended before they began. Meant for the race detector.
func TestReadersBesideWriters(t *testing.T) {
	const keys, writers, readers = 400, 3, 3
	steps := 30_000
	if testing.Short() || raceEnabled {
		steps = 4000
	}
	for _, cfg := range []Config{
		{MaxBytes: 1 << 30, MaxEntries: 150, Shards: 2},
		{MaxBytes: 1 << 30, Shards: 1},
		{MaxBytes: 1 << 30, Shards: 4, hash: func(key string) uint64 { return stableHash(key) & 0x7 }},
		{MaxBytes: 60_000, Shards: 1},
		{MaxBytes: 60_000, Shards: 1, Policy: LFU},
		{MaxBytes: 60_000, Shards: 1, Policy: Random},
	} {
		s := New[stamped](cfg)
		var least [keys]atomic.Uint64 // what is older must not be read any more
		var clock atomic.Int64
		var wg sync.WaitGroup
		var stop atomic.Bool
		names := make([]string, keys)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		var readerWG sync.WaitGroup
		for g := range readers {
			readerWG.Go(func() {
				r := rand.New(rand.NewPCG(uint64(g), 5))
				for !stop.Load() {
					k := r.IntN(keys)
					now, floor := clock.Load(), least[k].Load()
					e := s.Get(names[k], now)
					if e == nil {
						continue
					}
					v := e.Value
					if v != stamp(k, v.version) || e.Key != names[k] || e.Deadline <= now {
						t.Errorf("Get(%d) at %d = %+v until %d of %q", k, now, v, e.Deadline, e.Key)
						return
					}
					if v.version < floor {
						t.Errorf("Get(%d) = version %d, which %d had ended", k, v.version, floor)
						return
					}
				}
			})
		}
		for g := range writers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(g), 6))
				for range steps {
					k := r.IntN(keys)
					switch op := r.IntN(100); {
					case op < 70:
						tx := s.Begin(names[k])
						v := least[k].Load() + 1
						tx.Put(stamp(k, v), int64(r.IntN(2000)), clock.Load()+1+r.Int64N(40<<tickBits), clock.Load())
						least[k].Store(v) // under the lock: after it nobody may find an older one
						tx.End()
					case op < 85:
						tx := s.Begin(names[k])
						tx.Delete()
						least[k].Add(1)
						tx.End()
					case op < 95:
						s.Sweep(clock.Add(1 << tickBits))
					case op < 97:
						s.Range(func(e *Entry[stamped]) bool { return e.Value == stamp(e.Value.key, e.Value.version) })
						s.Stats()
					case op < 98:
						s.DeleteFunc(func(e *Entry[stamped]) bool { return e.Value.key%50 == 0 })
					case op < 99:
						s.Resize(cfg.MaxBytes / int64(1+r.IntN(3)))
					default:
						s.Find(names[k])
					}
				}
			})
		}
		wg.Wait()
		stop.Store(true)
		readerWG.Wait()
		s.Resize(cfg.MaxBytes)
		check(t, s)
	}
}
