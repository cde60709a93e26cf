package sim

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nearcache/nearcache/internal/tag"
)

// origin is the database: every version of every key, with the time of its commit.
type origin struct {
	w       *world
	rows    map[string][]row
	running map[string][]*loading
	loads   int
}

type row struct {
	at    int64
	value string
}

func newOrigin(w *world) *origin {
	o := &origin{w: w, rows: make(map[string][]row), running: make(map[string][]*loading)}
	for _, k := range w.keys {
		o.rows[k] = []row{{at: 0, value: valueOf(k, 0)}}
	}
	return o
}

// valueOf is what the key's row reads in that version.
func valueOf(key string, version int) string { return fmt.Sprintf("%s/%d", key, version) }

// loadedAt adds when its load began to what a row reads: it tells how old a copy is, whatever that says itself.
func loadedAt(value string, at int64) string { return fmt.Sprintf("%s@%d", value, at) }

// parse is the reverse of both.
func parse(value string) (key string, version int, loaded int64) {
	key, rest, _ := strings.Cut(value, "/")
	number, at, _ := strings.Cut(rest, "@")
	version, err := strconv.Atoi(number)
	if err != nil {
		return "", 0, 0
	}
	loaded, err = strconv.ParseInt(at, 10, 64)
	if err != nil {
		return "", 0, 0
	}
	return key, version, loaded
}

// write commits the next version.
func (o *origin) write(key string) (version int) {
	version = len(o.rows[key])
	o.rows[key] = append(o.rows[key], row{at: o.w.now, value: valueOf(key, version)})
	return version
}

// version returns the newest one.
func (o *origin) version(key string) int { return len(o.rows[key]) - 1 }

// read returns the row as of a time.
func (o *origin) read(key string, at int64) string {
	rows := o.rows[key]
	i := sort.Search(len(rows), func(i int) bool { return rows[i].at > at })
	return rows[max(i-1, 0)].value
}

// loading is a loader that runs for a key (origin.Call).
type loading struct {
	x     *fetch
	key   string
	began int64 // of the world's time
	asked int64 // of the flight's last request
	start int64 // on the node's clock
	over  bool
	with  *[]*loading // one call loads them all
	left  bool        // nobody waits for it
	done  func(*fetch, loaded, error)
}

// callLoader runs the loader once for the keys of flights (Cache.callLoader, Cache.loadMany).
func (n *node) callLoader(all []*fetch, done func(*fetch, loaded, error)) {
	w, with := n.w, new([]*loading)
	for _, x := range all {
		l := &loading{x: x, key: x.f.Key, began: w.now, asked: x.askedAt, start: n.exact(), with: with, done: done}
		x.loading = l
		w.checker.loads(l)
		w.origin.loads++
		w.origin.running[l.key] = append(w.origin.running[l.key], l)
		*with = append(*with, l)
	}
	f := &w.cfg.Faults
	d := w.between(int64(time.Millisecond), int64(30*time.Millisecond))
	if w.chance(f.SlowLoads) {
		d += w.between(0, int64(f.SlowLoad))
		if w.chance(0.1) {
			d += w.between(0, int64(f.SlowLoad))
		}
	}
	failed := w.chance(f.FailedLoads)
	for _, l := range *with {
		l.run(d, failed)
	}
}

// run reads the row some time before d is over, and brings it then.
func (l *loading) run(d int64, failed bool) {
	w := l.x.n.w
	var value string
	w.after(w.between(0, d), func() { value = w.origin.read(l.key, w.now-w.between(0, int64(w.cfg.Lag))) })
	w.after(d, func() {
		w.origin.remove(l)
		l.x.n.event(func() {
			if failed {
				l.end(loaded{}, errLoad)
				return
			}
			l.end(w.loaded(l, value), nil)
		})
	})
	l.x.n.after(w.cfg.LoadTimeout, func() { l.end(loaded{}, errLate) })
}

// loaded is what a loader has brought.
func (w *world) loaded(l *loading, row string) loaded {
	ld := loaded{value: loadedAt(row, l.began), start: l.start, ttl: w.cfg.TTL}
	_, version, _ := parse(ld.value)
	if ld.absent = w.isMissing(l.key, version); ld.absent {
		ld.ttl = w.cfg.NotFoundTTL
	}
	if hasVersion(l.key) {
		ld.version = uint64(version) + 1
	}
	return ld
}

// end is the end of the Call, if not of the loader.
func (l *loading) end(ld loaded, err error) {
	if l.over {
		return
	}
	l.over = true
	l.x.loading = nil
	l.x.n.w.origin.remove(l)
	l.done(l.x, ld, err)
}

// abandon ends the call when nobody waits for any of its keys.
func (l *loading) abandon() {
	l.left = true
	if slices.ContainsFunc(*l.with, func(o *loading) bool { return !o.left && !o.over }) {
		return
	}
	for _, o := range *l.with {
		o.end(loaded{}, errCanceled)
	}
}

func (o *origin) remove(l *loading) {
	o.running[l.key] = slices.DeleteFunc(o.running[l.key], func(r *loading) bool { return r == l })
}

// tagOf is the tag that the values of a key have.
func tagOf(key string) string { return fmt.Sprint("tag ", key[len(key)-1]%4) }

// markOf is what a value of the key carries of its tag; of keys that end in 9 the tags are not known.
func markOf(key string) tag.Mark {
	if key[len(key)-1] == '9' {
		return tag.Mark{}
	}
	return tag.Of(tag.Hashes([]string{tagOf(key)}))
}

// hasVersion tells whether the values of a key have versions.
func hasVersion(key string) bool { return key[len(key)-1] == '5' }

// isUpdated tells whether a key is written by Update.
func (w *world) isUpdated(key string) bool {
	last := key[len(key)-1]
	return w.cfg.Updates && (last == '1' || last == '2')
}

// isMissing tells whether that version of a row is that there is none: of keys that end in 7 every third.
func (w *world) isMissing(key string, version int) bool {
	return w.cfg.NotFoundTTL > 0 && key[len(key)-1] == '7' && version%3 == 2
}
