package discoverytest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearcache/nearcache/peers"
)

// registry is a backend as simple as can be.
type registry struct {
	mu      sync.Mutex // guards the fields below
	members []peers.Member
	broken  bool
	changed chan struct{} // closed and replaced by each change
}

func newRegistry() *registry { return &registry{changed: make(chan struct{})} }

func (r *registry) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *registry) set(members ...peers.Member) {
	members = slices.Clone(members)
	r.change(func() { r.members = members })
}

func (r *registry) fail(broken bool) { r.change(func() { r.broken = broken }) }

func (r *registry) list() ([]peers.Member, bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.members), r.broken, r.changed
}

// watch is what Watch should be.
func (r *registry) watch(ctx context.Context, update func([]peers.Member)) error {
	for ctx.Err() == nil {
		list, broken, changed := r.list()
		if broken {
			return errors.New("registry gone")
		}
		update(list)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func TestAGoodDiscovery(t *testing.T) {
	Run(t, func(*testing.T) Source {
		r := newRegistry()
		return Source{Discovery: peers.Func(r.watch), Set: r.set, Break: r.fail}
	})
}

// Each check finds the mistakes that it is there for.
func TestBadDiscoveries(t *testing.T) {
	type watch = func(*registry, context.Context, func([]peers.Member)) error
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	for name, c := range map[string]struct {
		watch  watch
		failed string // the checks that have to fail, among others
		says   string
	}{
		"never reports": {func(_ *registry, ctx context.Context, _ func([]peers.Member)) error {
			<-ctx.Done()
			return ctx.Err()
		}, "FirstList Changes ManyWatchers", "got no list"},
		"reports once": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			list, _, _ := r.list()
			update(list)
			<-ctx.Done()
			return ctx.Err()
		}, "Changes SlowUpdate ManyWatchers Outage", "want"},
		"reports what is new": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			var known []peers.Member
			return r.watch(ctx, func(list []peers.Member) {
				update(slices.DeleteFunc(slices.Clone(list), func(m peers.Member) bool { return slices.Contains(known, m) }))
				known = list
			})
		}, "Changes Repeats", "want"},
		"uses a list again": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			shared := make([]peers.Member, 3)
			first := true
			return r.watch(ctx, func(list []peers.Member) {
				if first || len(list) != len(shared) {
					copy(shared, list)
				}
				first = false
				update(shared[:len(list)])
			})
		}, "Repeats", "spoiled"},
		"ends at once": {func(r *registry, _ context.Context, update func([]peers.Member)) error {
			list, _, _ := r.list()
			update(list)
			return nil
		}, "FirstList", "returned nil"},
		"ends with an error": {func(*registry, context.Context, func([]peers.Member)) error {
			return errors.New("no idea")
		}, "FirstList", "no idea"},
		"ignores its context": {func(r *registry, _ context.Context, update func([]peers.Member)) error {
			list, _, _ := r.list()
			update(list)
			<-stuck
			return nil
		}, "FirstList End EndedBefore", "has not returned"},
		"leaves a goroutine": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			go func() { <-stuck }()
			return r.watch(ctx, update)
		}, "FirstList End EndedBefore", "goroutines"},
		"reports after its end": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			_, _, changed := r.list()
			go func() { <-changed; update(nil) }()
			return r.watch(ctx, update)
		}, "End", "after Watch had returned"},
		"overlaps": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			var all sync.WaitGroup
			defer all.Wait()
			return r.watch(ctx, func(list []peers.Member) { all.Go(func() { update(list) }) })
		}, "SlowUpdate", "overlap"},
		"forgets what comes during an update": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			for ctx.Err() == nil {
				list, _, _ := r.list()
				update(list)
				_, _, changed := r.list() // too late
				select {
				case <-changed:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}, "SlowUpdate", "want"},
		"an outage is an empty list": {func(r *registry, ctx context.Context, update func([]peers.Member)) error {
			for ctx.Err() == nil {
				list, broken, changed := r.list()
				if broken {
					list = nil
				}
				update(list)
				select {
				case <-changed:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}, "Outage", "got []"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, check := range checks() {
				if !slices.Contains(strings.Fields(c.failed), check.name) {
					continue
				}
				r := newRegistry()
				s := Source{
					Discovery: peers.Func(func(ctx context.Context, update func([]peers.Member)) error { return c.watch(r, ctx, update) }),
					Set:       r.set, Break: r.fail, Within: 250 * time.Millisecond,
				}
				if err := check.run(s.effective()); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: got %v, want an error that says %q", check.name, err, c.says)
				}
			}
		})
	}
}
