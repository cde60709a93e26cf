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

// parse is the reverse.
func parse(value string) (key string, version int) {
	key, number, _ := strings.Cut(value, "/")
	version, err := strconv.Atoi(number)
	if err != nil {
		return "", 0
	}
	return key, version
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

// loading is a loader that runs (origin.Call).
type loading struct {
	x     *fetch
	key   string
	began int64 // of the world's time
	asked int64 // of the flight's last request
	start int64 // on the node's clock
	over  bool
	done  func(loaded, error)
}

// callLoader runs the loader for the flight's key (Cache.callLoader).
func (x *fetch) callLoader(done func(loaded, error)) {
	n, w, key := x.n, x.n.w, x.f.Key
	l := &loading{x: x, key: key, began: w.now, asked: x.askedAt, start: n.exact(), done: done}
	x.loading = l
	w.checker.loads(l)
	w.origin.loads++
	w.origin.running[key] = append(w.origin.running[key], l)
	f := &w.cfg.Faults
	d := w.between(int64(time.Millisecond), int64(30*time.Millisecond))
	if w.chance(f.SlowLoads) {
		d += w.between(0, int64(f.SlowLoad))
		if w.chance(0.1) {
			d += w.between(0, int64(f.SlowLoad))
		}
	}
	failed := w.chance(f.FailedLoads)
	var value string
	w.after(w.between(0, d), func() { value = w.origin.read(key, w.now-w.between(0, int64(w.cfg.Lag))) })
	w.after(d, func() {
		w.origin.remove(l)
		n.event(func() {
			if failed {
				l.end(loaded{}, errLoad)
				return
			}
			ld := loaded{value: value, start: l.start}
			if hasVersion(key) {
				_, version := parse(value)
				ld.version = uint64(version) + 1
			}
			l.end(ld, nil)
		})
	})
	n.after(w.cfg.LoadTimeout, func() { l.end(loaded{}, errLate) })
}

// end is the end of the Call, if not of the loader.
func (l *loading) end(ld loaded, err error) {
	if l.over {
		return
	}
	l.over = true
	l.x.loading = nil
	l.x.n.w.origin.remove(l)
	l.done(ld, err)
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
