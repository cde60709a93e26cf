package nearcache

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/internal/transport"
)

// apply tells the owners what changed and returns when they have confirmed it, or are owed it: that is what holds a fast source back. An
// error ends the source's Read, which begins again at the position before the batch.
func (f *Feed) apply(b feed.Batch) error {
	select {
	case f.turn <- struct{}{}: // a source that calls from several goroutines breaks its promise, and nothing else
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
	defer func() { <-f.turn }()
	if err := f.ctx.Err(); err != nil {
		return err
	}
	p := newPlan(f)
	if b.Gap != "" {
		p.gap(b.Gap)
	}
	for i := range b.Changes {
		p.add(&b.Changes[i])
	}
	// What is of a whole keyspace goes first: it forgets lowest versions.
	for _, tasks := range [][]task{p.whole(), p.single()} {
		if err := p.carryOut(tasks); err != nil {
			return err
		}
	}
	f.applied(&b, p)
	return nil
}

// applied takes over the position of a batch.
func (f *Feed) applied(b *feed.Batch, p *plan) {
	now := f.node.clock.Exact()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.position = feed.Position(strings.Clone(string(b.Position)))
	if p.staleFor > 0 {
		f.marks.unconfirmed(now + int64(p.staleFor))
	}
	f.batchAt = now
	if len(b.Changes) > 0 {
		f.changeAt = now
	}
	f.stats.add(&p.count)
	f.stats.Behind, f.stats.Lag = b.Behind, b.Lag
}

// plan is what has to be told of one batch.
type plan struct {
	f     *Feed
	keys  map[string]map[string]versions // by keyspace and key
	tags  map[string]map[string]bool     // by keyspace and tag
	all   map[string]bool                // keyspaces that are dropped
	soft  []string                       // keyspaces with a gap
	count FeedStats

	mu       sync.Mutex    // guards what follows
	staleFor time.Duration // of what was not confirmed
}

// versions are what a batch has of one key: changes without a version, and the highest one.
type versions struct {
	loose   bool
	highest uint64
}

// task is one thing to tell: keys that share a lowest version, or tags, or with neither a whole keyspace.
type task struct {
	keyspace string
	keys     []string
	tags     []string
	version  uint64 // the lowest one that stays
	flags    uint32 // FlagSoft: values stay as stale copies
}

func newPlan(f *Feed) *plan {
	return &plan{
		f: f, keys: make(map[string]map[string]versions), tags: make(map[string]map[string]bool), all: make(map[string]bool),
		count: FeedStats{Batches: 1},
	}
}

// gap adds all that the stream is about.
func (p *plan) gap(reason string) {
	n := p.f.node
	n.cfg.Logger.Warn("a feed has lost changes, what is cached is loaded anew", "feed", p.f.cfg.Name, "reason", reason)
	p.count.Gaps++
	n.events.add(EventFeedGap, "", p.f.cfg.Name+": "+reason)
	p.soft = append(slices.Collect(maps.Keys(*n.keyspaces.Load())), p.f.cfg.Keyspaces...)
	slices.Sort(p.soft)
	p.soft = slices.Compact(p.soft)
}

// add adds a change, or counts it as one that cannot be applied.
func (p *plan) add(c *feed.Change) {
	if !applicable(c) {
		p.count.Invalid++
		return
	}
	p.count.Applied++
	if p.f.node.keyspace(c.Keyspace) == nil {
		p.count.Unknown++
	}
	var again bool
	switch {
	case c.Key != "":
		of := part(p.keys, c.Keyspace)
		var v versions
		v, again = of[c.Key]
		of[c.Key] = versions{v.loose || c.Version == 0, max(v.highest, c.Version)}
	case len(c.Tags) > 0:
		of, before := part(p.tags, c.Keyspace), len(p.tags[c.Keyspace])
		for _, t := range c.Tags {
			of[t] = true
		}
		again = len(of) == before
	default:
		again = p.all[c.Keyspace]
		p.all[c.Keyspace] = true
	}
	if again {
		p.count.Duplicates++
	}
}

// applicable tells whether a change names something.
func applicable(c *feed.Change) bool {
	if c.Keyspace == "" || len(c.Keyspace) > transport.MaxKeyspaceBytes || len(c.Key) > transport.MaxKeyBytes {
		return false
	}
	return c.Key != "" || len(c.Tags) > 0 && !slices.ContainsFunc(c.Tags, invalidTag) || len(c.Tags) == 0 && c.All
}

// part returns the map of a keyspace.
func part[V any](all map[string]map[string]V, keyspace string) map[string]V {
	of := all[keyspace]
	if of == nil {
		of = make(map[string]V)
		all[keyspace] = of
	}
	return of
}

// whole returns what is of whole keyspaces.
func (p *plan) whole() (tasks []task) {
	for _, name := range p.soft {
		if !p.all[name] {
			tasks = append(tasks, task{keyspace: name, flags: transport.FlagSoft})
		}
	}
	for name := range p.all {
		tasks = append(tasks, task{keyspace: name})
	}
	return tasks
}

// single returns what is of single keys and tags.
func (p *plan) single() (tasks []task) {
	for name, of := range p.tags {
		tasks = append(tasks, task{keyspace: name, tags: slices.Collect(maps.Keys(of))})
	}
	for name, of := range p.keys {
		parts := make(map[uint64][]string)
		for key, v := range of {
			if v.loose {
				parts[0] = append(parts[0], key)
			}
			if v.highest > 0 {
				parts[v.highest] = append(parts[v.highest], key)
			}
		}
		for version, keys := range parts {
			tasks = append(tasks, task{keyspace: name, keys: keys, version: version})
		}
	}
	return tasks
}

// carryOut tells what the tasks say, many at once. An error: they have to be told again.
func (p *plan) carryOut(tasks []task) error {
	var g errgroup.Group
	g.SetLimit(tellers)
	for _, t := range tasks {
		g.Go(func() error { return p.tell(t) })
	}
	return g.Wait()
}

// tell carries out one task. What was not confirmed is owed.
func (p *plan) tell(t task) error {
	ks, stray := p.f.keyspace(t.keyspace)
	err := ks.changed(p.f.ctx, t)
	partial, ok := errors.AsType[*PartialError](err)
	if !ok {
		return err
	}
	if stray {
		p.f.keep(ks, partial.StaleFor)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count.Unconfirmed += uint64(max(len(partial.Keys)+len(partial.Tags), 1))
	p.staleFor = max(p.staleFor, partial.StaleFor)
	return nil
}

// changed tells the owners of what somebody else changed. It is Invalidate, but for the caller's own view (R16): nobody called.
func (ks *keyspace) changed(ctx context.Context, t task) error {
	ctx, cancel, err := ks.mutable(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	told := ks.newTelling(t.keys, t.flags)
	if len(t.tags) > 0 {
		told = ks.newTagTelling(t.tags)
	}
	told.least = t.version
	err = told.run(ctx)
	// After the owners: what was fetched from them meanwhile may be the old value.
	switch {
	case len(t.tags) > 0:
		ks.local.forgetTags(tag.Hashes(t.tags), ks.node.clock.Exact())
	case len(t.keys) == 0:
		ks.local.forgetAll()
	}
	for _, k := range t.keys {
		ks.local.forget(k)
	}
	return err
}

// stray is a keyspace that is not open on this node, as far as telling others goes.
type stray struct {
	ks    *keyspace
	until int64 // it is kept until then, or longer if it owes anybody something
}

// maxStrays bounds them. What more of them leave unconfirmed is not told again by this process.
const maxStrays = 64

// keyspace returns the keyspace of that name; isStray: it is not open here.
func (f *Feed) keyspace(name string) (ks *keyspace, isStray bool) {
	if ks = f.node.keyspace(name); ks != nil && !ks.closed.Load() {
		return ks, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.strays[name]
	if s == nil {
		name = strings.Clone(name)
		s = &stray{ks: newKeyspace(f.node, name, policy{ttl: defaultTTL}, noLocal{})}
		s.ks.cancel() // it loads nothing
		if len(f.strays) < maxStrays {
			f.strays[name] = s
		}
	}
	s.until = max(s.until, f.node.clock.Exact()+int64(time.Minute))
	return s.ks, true
}

// keep keeps a stray until what it owes matters no more.
func (f *Feed) keep(ks *keyspace, staleFor time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.strays[ks.name]; s != nil {
		s.until = max(s.until, f.node.clock.Exact()+int64(staleFor))
	}
}

// tick has strays tell what they owe.
func (f *Feed) tick(now int64) {
	f.mu.Lock()
	var due []*keyspace
	for name, s := range f.strays {
		due = append(due, s.ks)
		if now >= s.until {
			delete(f.strays, name)
		}
	}
	f.mu.Unlock()
	for _, ks := range due {
		ks.tick(now)
	}
}

// noLocal is the typed half of a stray: it holds nothing.
type noLocal struct{ local }

func (noLocal) forget(string)              {}
func (noLocal) forgetAll()                 {}
func (noLocal) forgetTags([]uint64, int64) {}
func (noLocal) revoked(string)             {}
