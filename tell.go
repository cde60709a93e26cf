package nearcache

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/membership"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
	"github.com/nearcache/nearcache/ring"
)

// telling is an invalidation on its way to all who have to hear of it (R8, R9). It belongs to one goroutine, but for what mu guards.
type telling struct {
	ks    *keyspace
	keys  []string // each once; none: the whole keyspace
	flags uint32   // of the requests
	tags  []string // in place of keys: what has one of them, everywhere
	owed  *invalidation.Owed
	least uint64 // versions below it are dead (shard.Shard.Invalidate)
	began int64
	heirs *ring.Ring                     // Node.heirs, when it was looked who has to be told
	all   bool                           // everybody has to confirm, whoever owns the keys (R12)
	wide  bool                           // all that can be reached are told, whoever owns the keys
	asked map[membership.Target][]string // what was passed to whom, whatever came of it

	mu     sync.Mutex // guards what follows
	open   []errand   // not confirmed
	silent []string   // members that were passed over: what they held when they were cut off is dead
	last   error
}

// errand is what a member did not confirm, and is owed since.
type errand struct {
	member string
	part   []string // of the keys, or tags; none: the whole keyspace
	round  uint64
}

func (ks *keyspace) newTelling(keys []string, flags uint32) *telling {
	if len(keys) > 1 {
		seen := make(map[string]bool, len(keys))
		keys = slices.DeleteFunc(slices.Clone(keys), func(k string) bool {
			again := seen[k]
			seen[k] = true
			return again
		})
	}
	return &telling{ks: ks, keys: keys, owed: ks.owed, flags: flags, began: ks.node.clock.Exact(), asked: make(map[membership.Target][]string)}
}

func (ks *keyspace) newTagTelling(tags []string) *telling {
	t := ks.newTelling(nil, 0)
	t.tags, t.owed = tags, ks.owedTags
	return t
}

// tell tells what t is about to all who have to hear of it. With AckAll that is everybody, twice: when the first round is over no shard gives
// out an old value any more, of whatever owner or stand-in, and the second drops what was fetched until then. It returns nil when no
// old value is served anywhere any more (R12).
func (ks *keyspace) tell(ctx context.Context, t *telling) error {
	if ack, _ := ks.ack(ctx); ack != AckAll { // mutable has judged it
		return t.run(ctx)
	}
	t.all = true
	if err := t.run(ctx); err != nil {
		return err
	}
	again := ks.newTelling(t.keys, t.flags|transport.FlagCopies)
	again.tags, again.owed, again.least, again.began, again.all, again.silent = t.tags, t.owed, t.least, t.began, true, t.silent
	if err := again.run(ctx); err != nil || len(again.silent) == 0 {
		return err
	}
	// One that is cut off shares its loads for a Bound (R1b): one that began before the call is older than that now.
	left := t.began + int64(invalidation.Life(ks.node.bound)) - ks.node.clock.Exact()
	if left > 0 && !sleep(ctx, time.Duration(left)) {
		return &PartialError{Members: again.silent, Keys: t.keys, Tags: t.tags, StaleFor: ks.node.bound, Err: ctx.Err()}
	}
	return nil
}

// run tells everybody who has to hear of it, and returns nil when all of them who count have confirmed, or can hold nothing any more. When ctx
// ends before, or when there is nothing to wait for, it returns a *PartialError; what was not confirmed is owed.
func (t *telling) run(ctx context.Context) error {
	for {
		m := t.ks.node.members.Load()
		t.round(ctx, m)
		if len(t.open) > 0 {
			t.round(ctx, m) // who does not answer is suspect now: others may stand in for it
		}
		if again, err := t.wait(ctx, m); !again {
			return err
		}
	}
}

// round tells those who have to hear of it, by m, and were not told before.
func (t *telling) round(ctx context.Context, m *members) {
	n, now := t.ks.node, t.ks.node.clock.Exact()
	var asks []func()
	for target, part := range t.targets(m, now) {
		part, ok := t.unasked(target, part)
		switch {
		case !ok:
		case target.ID == m.Me().ID:
			for chunk := range t.parts(part) {
				t.ks.obey(t.request(chunk, t.flags))
			}
		case n.gone(m, target.ID, now):
			t.passOver(m, target.ID)
		default:
			for chunk := range t.parts(part) {
				asks = append(asks, func() { t.ask(ctx, m, target, chunk) })
			}
		}
	}
	if len(asks) == 1 {
		asks[0]() // nearly always: it needs no goroutine
		return
	}
	var g errgroup.Group
	g.SetLimit(tellers)
	for _, ask := range asks {
		g.Go(func() error { ask(); return nil })
	}
	_ = g.Wait() // the failures are in t
}

// parts cuts what a target is told into requests.
func (t *telling) parts(part []string) iter.Seq[[]string] {
	switch {
	case len(t.tags) > 0:
		return slices.Chunk(t.tags, transport.MaxTags)
	case len(t.keys) == 0:
		return func(yield func([]string) bool) { yield(nil) }
	}
	return chunks(part)
}

// request makes the request that tells a part.
func (t *telling) request(part []string, flags uint32) *transport.Request {
	req := t.ks.node.invalidateRequest(t.ks.name, part, flags)
	if len(t.tags) > 0 {
		req = t.ks.node.tagsRequest(t.ks.name, part)
		req.Flags |= flags
	}
	req.Version = t.least
	return req
}

// passOver notes that a member that is gone was not told. One that has left, or stops, serves nobody any more.
func (t *telling) passOver(m *members, id string) {
	if p := m.peer(id); p == nil || p.Leaving() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.silent = append(t.silent, id)
}

// tellers bounds the requests of one invalidation that are under way at once.
const tellers = 16

// targets groups the keys by who has to be told of them: those that may own them, or all (R8, R8b).
func (t *telling) targets(m *members, now int64) map[membership.Target][]string {
	n := t.ks.node
	parts := make(map[membership.Target][]string)
	t.wide = n.wide(m, now)
	everybody := make(map[string]bool)
	all := t.all || len(t.keys) == 0
	if t.wide || all {
		everybody[m.Me().ID] = true
		cut := n.cutOff(m, now) != nil
		for _, id := range m.others {
			everybody[id] = cut || all || m.peer(id).Connected()
		}
		maps.DeleteFunc(everybody, func(_ string, told bool) bool { return !told })
		for id := range everybody {
			parts[membership.Target{ID: id, Counts: true}] = t.keys
		}
	}
	t.heirs = n.heirs.Load()
	left := func(id string) bool {
		if id == m.Me().ID {
			return t.heirs != nil
		}
		p := m.peer(id)
		return p != nil && p.left(n)
	}
	suspect := func(id string) bool {
		p := m.peer(id)
		return p != nil && (!p.Ready() || p.troubled(n))
	}
	var list []membership.Target
	copies := n.toldCopies(m)
	for _, k := range t.keys {
		list = m.Targets(list[:0], t.ks.hashOf(k), copies, suspect, left, now)
		for _, target := range list {
			if !everybody[target.ID] {
				parts[target] = append(parts[target], k)
			}
		}
	}
	return parts
}

// wide tells whether anybody may take himself for the owner of anything: where members differ in their rings, or this node is cut off, so that
// it cannot know.
func (n *Node) wide(m *members, now int64) bool {
	return n.hearing.unequal.Load() || m.Blurred(now) || n.cutOff(m, now) != nil
}

// unasked returns what of part a target was not asked yet; false: nothing.
func (t *telling) unasked(target membership.Target, part []string) (rest []string, ok bool) {
	before, asked := t.asked[target]
	if !asked {
		t.asked[target] = part
		return part, true
	}
	known := make(map[string]bool, len(before))
	for _, k := range before {
		known[k] = true
	}
	rest = slices.DeleteFunc(slices.Clone(part), func(k string) bool { return known[k] })
	t.asked[target] = slices.Concat(before, rest)
	return rest, len(rest) > 0
}

// ask tells one member of keys, or tags. What one that counts does not confirm it is owed from now on.
func (t *telling) ask(ctx context.Context, m *members, target membership.Target, part []string) {
	ks, flags := t.ks, t.flags
	if !target.Counts {
		flags |= transport.FlagForwarded
	}
	p := m.peer(target.ID)
	err := transport.ErrDown
	if ks.node.reachable(ctx, p) {
		err = ks.node.pass(ctx, p, t.request(part, flags))
	}
	if err != nil {
		ks.count.peerErrors.Add(1)
	}
	if err == nil || !target.Counts {
		return // what stand-ins hold lives a Bound at most
	}
	round := t.owed.Owe(target.ID, part, ks.node.clock.Exact()+int64(ks.staleFor()))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = append(t.open, errand{member: target.ID, part: part, round: round})
	t.last = err
}

// wait waits until what is owed is settled (repay), and reports whether others have to be told meanwhile.
func (t *telling) wait(ctx context.Context, m *members) (again bool, err error) {
	ks, n := t.ks, t.ks.node
	if len(t.open) > 0 {
		ks.repay(n.clock.Exact())
	}
	for {
		news := ks.settled.next()
		now := n.clock.Exact()
		t.open = slices.DeleteFunc(t.open, func(e errand) bool {
			settled := t.owed.Settled(e.member, e.round)
			if settled && n.gone(m, e.member, now) {
				t.passOver(m, e.member)
			}
			return settled
		})
		cut := n.cutOff(m, now)
		switch {
		case n.members.Load() != m, n.heirs.Load() != t.heirs, !t.wide && n.wide(m, now):
			if ctx.Err() == nil {
				return true, nil
			}
		case len(t.open) == 0 && cut == nil:
			return false, nil
		}
		if ctx.Err() != nil || t.inVain(m, cut, now) {
			return false, t.partial(m, cut)
		}
		select {
		case <-news:
		case <-ctx.Done():
		case <-ks.ctx.Done():
			return false, t.partial(m, ErrClosed)
		}
	}
}

// inVain tells that a retry and a relay had their time, and that this node reaches too few to find out whether a member that does not answer can
// hold anything yet. One that starts may not have reached them yet.
func (t *telling) inVain(m *members, cut error, now int64) bool {
	n := t.ks.node
	if now-t.began < int64(n.cfg.PeerTimeout+tick) || time.Since(n.started) < n.bound {
		return false
	}
	return cut != nil || slices.ContainsFunc(t.open, func(e errand) bool {
		return n.reach(m, e.member, now) == invalidation.Unknown
	})
}

// partial says what was not confirmed.
func (t *telling) partial(m *members, cut error) error {
	e := &PartialError{StaleFor: t.ks.staleFor(), Err: t.last}
	for _, o := range t.open {
		e.Members = append(e.Members, o.member)
		e.Keys = append(e.Keys, o.part...)
	}
	if cut != nil {
		e.Members, e.Keys, e.Err = append(e.Members, m.Me().ID), slices.Clone(t.keys), cut
	}
	slices.Sort(e.Members)
	slices.Sort(e.Keys)
	e.Members, e.Keys = slices.Compact(e.Members), slices.Compact(e.Keys)
	if len(t.tags) > 0 {
		e.Tags, e.Keys = slices.Clone(t.tags), nil
	}
	if e.Err == nil {
		e.Err = context.DeadlineExceeded // the members changed until then
	}
	return e
}

// bell wakes all who wait for it. Its zero value is ready.
type bell struct {
	mu sync.Mutex // guards c
	c  chan struct{}
}

// next returns a channel that is closed at the next ring.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}
