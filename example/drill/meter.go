package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nearcache/nearcache"
)

// kinds of what a reader got.
const (
	fresh = iota
	stale
	shed
	failed
	old // a value that was said to be fresh, a Bound after it was changed
	kinds
)

// slot is a hundred milliseconds.
const slot = 100 * time.Millisecond

// meter counts what the readers see, slot by slot.
type meter struct {
	s      scenario
	db     *database
	began  time.Time
	remark string

	mu      sync.Mutex // guards what follows
	seen    [][kinds]int
	queries []int64 // at the end of each slot
	useful  []int64
	took    []time.Duration // of reads while it was broken
}

func newMeter(s scenario, db *database) *meter {
	return &meter{s: s, db: db, began: time.Now(), seen: make([][kinds]int, s.lasts/slot+1)}
}

// note counts a read by when it began.
func (m *meter) note(key string, a answer, err error, began time.Time) {
	kind := fresh
	switch {
	case err == nil && a.stale:
		kind = stale
	case err == nil && m.db.isOld(key, a.version, began.Add(-bound)):
		kind = old
	case errors.Is(err, nearcache.ErrOverloaded):
		kind = shed
	case err != nil:
		kind = failed
	}
	at := began.Sub(m.began)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen[min(int(at/slot), len(m.seen)-1)][kind]++
	if at >= m.s.from && at < m.s.to {
		m.took = append(m.took, time.Since(began))
	}
}

// watch notes what the database is asked.
func (m *meter) watch(ctx context.Context) {
	for pause(ctx, slot) {
		m.mu.Lock()
		m.queries = append(m.queries, m.db.queries.Load())
		m.useful = append(m.useful, m.db.useful.Load())
		m.mu.Unlock()
	}
}

// broken sums what was seen while it was broken.
func (m *meter) broken() (sum [kinds]int) {
	for i := int(m.s.from / slot); i < int(m.s.to/slot) && i < len(m.seen); i++ {
		for k, n := range m.seen[i] {
			sum[k] += n
		}
	}
	return sum
}

// rates is how fast a counter grew while it was broken: on average, and in the busiest second.
func (m *meter) rates(counter []int64) (mean, most float64) {
	const second = int(time.Second / slot)
	first, last := min(int(m.s.from/slot), len(counter)-1), min(int(m.s.to/slot), len(counter)-1)
	if last <= first {
		return 0, 0
	}
	for i := first; i+second <= last; i++ {
		most = max(most, float64(counter[i+second]-counter[i]))
	}
	return float64(counter[last]-counter[first]) * float64(second) / float64(last-first), most
}

// recovery is how long it took after the break until nine of ten reads of a slot had an answer of these kinds, and stayed so for half a second;
// negative: they never had. Where nothing is mended it counts from the break's begin.
func (m *meter) recovery(good ...int) time.Duration {
	const calm = 5
	from := int(m.s.to / slot)
	if m.s.begin == nil {
		from = int(m.s.from / slot)
	}
	for i, run := from, 0; i < int(m.s.lasts/slot); i++ {
		all, had := 0, 0
		for kind, n := range m.seen[i] {
			all += n
			if slices.Contains(good, kind) {
				had += n
			}
		}
		if run++; had*10 < all*9 {
			run = 0
		}
		if run == calm {
			return time.Duration(i+1-calm-from) * slot
		}
	}
	return -1
}

const tableHead = "protection |  fresh  stale   shed failed    old |    p50     p99 | database: queries/s (peak) of limit, useful | answered, fresh again after"

// row is the result as a line of the table.
func (m *meter) row(protected bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.broken()
	total := 0
	for _, n := range sum {
		total += n
	}
	share := func(kind int) string { return fmt.Sprintf("%5.1f%%", 100*float64(sum[kind])/float64(max(total, 1))) }
	slices.Sort(m.took)
	quantile := func(q float64) time.Duration {
		if len(m.took) == 0 {
			return 0
		}
		return m.took[min(int(q*float64(len(m.took))), len(m.took)-1)].Round(100 * time.Microsecond)
	}
	mean, most := m.rates(m.queries)
	useful, _ := m.rates(m.useful)
	after := func(good ...int) string {
		if d := m.recovery(good...); d >= 0 {
			return d.String()
		}
		return "never"
	}
	row := fmt.Sprintf("%-10s | %s %s %s %s %s | %6v %7v | %17.0f (%.0f) of %.0f, %.0f useful | %s, %s", onOff(protected),
		share(fresh), share(stale), share(shed), share(failed), share(old), quantile(0.5), quantile(0.99), mean, most, m.db.perSecond(), useful, after(fresh, stale), after(fresh))
	if m.remark != "" {
		row += fmt.Sprintf("\n%-10s | %s", "", m.remark)
	}
	return row
}
