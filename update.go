package nearcache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// What a member holds for others.
const (
	maxHeld     = 1 << 16      // keys of a keyspace
	longestHold = 5 * maxBound // however long it is asked to
)

// Update holds the keys on all members, runs commit, which is the caller's database transaction, and releases them. While they are held nobody
// keeps or shares what is older: whoever reads one of them loads it, each member one load at a time. So no reader on any member sees the old
// value after one has seen the new: reads and Updates of a key are linearizable if those of the origin are, while membership is stable and
// but for members that are cut off from the majority. Otherwise Bound holds as after an Invalidate. Updates of the same key do not exclude each
// other: that is the database's work.
//
// commit gets a context that ends with the hold, less than five Bounds from the call, or with ctx. It is not run when the keys
// cannot be held within a Bound: a member did not confirm, or members come and go, or this node is cut off. A member that has been silent for long
// enough need not confirm. Members of a version without Update never do.
//
// Errors: commit's own, as it is; ErrHold, wrapped, with the reason; *PartialError when commit came back after the hold had ended: the
// keys have been invalidated then, and Members are those that did not confirm that, with commit's error or the context's in Err;
// *PanicError when commit panicked: the keys have been invalidated too; ErrInvalidKey; ErrClosed.
func (c *Cache[V]) Update(ctx context.Context, keys []string, commit func(context.Context) error) error {
	return c.update(ctx, keys, commit)
}

func (ks *keyspace) update(ctx context.Context, keys []string, commit func(context.Context) error) error {
	for _, k := range keys {
		if k == "" || len(k) > transport.MaxKeyBytes {
			return ErrInvalidKey
		}
	}
	if ks.closed.Load() || ks.node.closed.Load() {
		return ErrClosed
	}
	u := ks.newUpdate(ks.newTelling(keys, 0).keys)
	defer u.release()
	if err := u.hold(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrHold, err)
	}
	return u.commit(ctx, commit)
}

// update is one Update under way.
type update struct {
	ks     *keyspace
	m      *members      // whose confirmation it has
	keys   []string      // each once
	number uint64        // of the hold, on this node
	ends   int64         // no member's hold ends before, by as much as it is to last after the transaction
	silent atomic.Bool   // a member was passed over, which is cut off and holds nothing
	after  time.Duration // how long the hold is to last after the transaction
}

// newUpdate gives the hold a number and a time: five Bounds, less what clocks may be off.
func (ks *keyspace) newUpdate(keys []string) *update {
	n := ks.node
	return &update{
		ks: ks, keys: keys, number: n.tokens.Add(1),
		ends: n.clock.Exact() + n.window() - n.window()/20,
	}
}

// Why a hold cannot be had.
var (
	errUnstable = errors.New("nearcache: members come and go")
	errTooMany  = errors.New("nearcache: too many keys are held")
)

// hold holds the keys on all members. It needs one round: whoever holds them does not ask others for them, so that what is on its way to
// it belongs to flights that the hold has split.
func (u *update) hold(ctx context.Context) error {
	n := u.ks.node
	ctx, cancel := context.WithTimeout(ctx, n.bound)
	defer cancel()
	select {
	case <-n.joined:
	case <-ctx.Done():
		return ctx.Err()
	case <-u.ks.ctx.Done():
		return ErrClosed
	}
	u.m = n.members.Load()
	if err := u.unstable(); err != nil {
		return err
	}
	if !u.ks.hold(u.keys, u.here(), time.Duration(n.window())) {
		return errTooMany
	}
	var g errgroup.Group
	g.SetLimit(tellers)
	for _, id := range u.m.others {
		g.Go(func() error { return u.holdAt(ctx, id) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := u.unstable(); err != nil {
		return err
	}
	if u.silent.Load() {
		u.after = invalidation.Life(n.bound)
		u.ends -= int64(u.after)
	}
	return nil
}

// here is the name of the hold on this node.
func (u *update) here() invalidation.HoldID {
	return invalidation.HoldID{Holder: u.ks.node.id, Number: u.number}
}

// holdAt holds the keys on a member. It asks again until that is in vain.
func (u *update) holdAt(ctx context.Context, id string) error {
	const pause = 10 * time.Millisecond
	n := u.ks.node
	for {
		err := u.tell(ctx, id, time.Duration(n.window()))
		if err == nil {
			return nil
		}
		if n.gone(u.m, id, n.clock.Exact()) {
			if p := u.m.peer(id); p != nil && !p.Leaving() {
				u.silent.Store(true)
			}
			return nil
		}
		if !sleep(ctx, pause) {
			return fmt.Errorf("member %s: %w", id, err)
		}
	}
}

// tell tells a member that the keys are held for a time; 0: no longer.
func (u *update) tell(ctx context.Context, id string, life time.Duration) error {
	n, p := u.ks.node, u.m.peer(id)
	if !n.reachable(ctx, p) {
		return transport.ErrDown
	}
	for part := range chunks(u.keys) {
		req := &transport.Request{
			Op: transport.OpUpdate, Keyspace: u.ks.name, Keys: part, Token: transport.Token{Incarnation: n.incarnation, Number: u.number}, LeaseLife: life, Budget: n.bound,
		}
		if err := n.pass(ctx, p, req); err != nil {
			return err
		}
	}
	return nil
}

// unstable says why the members that confirmed may not be all that matter.
func (u *update) unstable() error {
	n := u.ks.node
	now := n.clock.Exact()
	if n.members.Load() != u.m || n.wide(u.m, now) {
		if err := n.cutOff(u.m, now); err != nil {
			return err
		}
		return errUnstable
	}
	return nil
}

// commit runs the caller's transaction. Whatever may have been kept since the hold is invalidated.
func (u *update) commit(ctx context.Context, commit func(context.Context) error) (err error) {
	n := u.ks.node
	left := time.Duration(u.ends - n.clock.Exact())
	during, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	returned := false
	defer func() {
		late := n.clock.Exact() >= u.ends
		if returned && !late && u.unstable() == nil && u.ks.policy.lag == 0 {
			now := n.clock.Exact()
			u.ks.own.Invalidated(u.keys, now, now, u.ks.remembered(nil)) // R16, for what members that have only just become some may have
			return
		}
		told := u.ks.invalidate(WithAck(context.WithoutCancel(ctx), AckAll), u.keys, 0)
		switch v := recover(); {
		case v != nil:
			err = &PanicError{Value: v, Stack: debug.Stack()}
		case late:
			err = u.tooLate(told, err)
		case err == nil:
			err = told
		}
	}()
	err = commit(during)
	returned = true
	return err
}

// tooLate is the error of a commit that came back after the hold had ended.
func (u *update) tooLate(told, err error) error {
	if err == nil {
		err = context.DeadlineExceeded
	}
	late := &PartialError{Keys: slices.Clone(u.keys), Err: err}
	if partial, ok := errors.AsType[*PartialError](told); ok {
		late.Members, late.StaleFor = partial.Members, partial.StaleFor
	}
	return late
}

// release ends the hold everywhere. Nobody waits for it: what is held is read from the origin. Where a member was passed over it ends later: what
// that one has loaded until the transaction was over it may give to others, when they hear it again, for as long as that lives.
func (u *update) release() {
	n := u.ks.node
	if u.after == 0 {
		u.ks.holds.Release(u.keys, u.here())
	}
	if u.m == nil || len(u.m.others) == 0 {
		return
	}
	n.run("release", func() {
		if u.after > 0 {
			sleep(n.ctx, u.after)
			u.ks.holds.Release(u.keys, u.here())
		}
		var g errgroup.Group
		g.SetLimit(tellers)
		ctx, cancel := context.WithTimeout(n.ctx, n.bound)
		defer cancel()
		for _, id := range u.m.others {
			g.Go(func() error { return u.tell(ctx, id, 0) })
		}
		_ = g.Wait() // a member that does not hear it frees the keys when their time is over
	})
}

// serveUpdate holds keys for a member, or frees them.
func (n *Node) serveUpdate(s *transport.Session, req *transport.Request, rep *transport.Reply) {
	rep.Status = transport.StatusOK
	ks, id := n.keyspace(req.Keyspace), invalidation.HoldID{Holder: holderOf(s), Number: req.Token.Number}
	switch {
	case ks == nil:
		rep.Status = transport.StatusUnknownKeyspace
	case req.LeaseLife <= 0:
		ks.holds.Release(req.Keys, id)
	case !ks.hold(req.Keys, id, min(req.LeaseLife, longestHold)):
		rep.Status = transport.StatusFailed
		rep.Failure = transport.Failure{Kind: transport.FailurePartial, Text: errTooMany.Error(), Member: n.ID()}
	}
}

// hold drops the keys and keeps nothing of them for a time. Order: what is kept after the drop was asked for when they were held.
func (ks *keyspace) hold(keys []string, id invalidation.HoldID, life time.Duration) bool {
	if !ks.holds.Hold(keys, id, ks.node.clock.Exact()+int64(life)) {
		return false
	}
	ks.drop(keys, 0, 0)
	return true
}

// loadHeld loads a key that is held, when it is this flight's turn. Who comes after the load has begun shares the next one: this one may see what
// was there before a value that he has seen.
func (x *fetch[V]) loadHeld() {
	end := x.c.turns.take(x.ctx, x.f.Key)
	if end == nil {
		x.abandoned()
		return
	}
	defer end()
	x.f.Close()
	x.loadAlone()
}

// turns lets one load of a held key run at a time. Its zero value is ready.
type turns struct {
	mu  sync.Mutex // guards key. It is a leaf
	key map[string]*turn
}

type turn struct {
	free  chan struct{} // holds one value while nobody has the turn
	users int           // that have it or wait for it
}

// take waits for the turn; nil if ctx ends first. end gives it to the next.
func (t *turns) take(ctx context.Context, key string) (end func()) {
	u := t.use(key)
	select {
	case <-u.free:
		return func() {
			u.free <- struct{}{}
			t.leave(key, u)
		}
	case <-ctx.Done():
		t.leave(key, u)
		return nil
	}
}

func (t *turns) use(key string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.key[key]
	if u == nil {
		u = &turn{free: make(chan struct{}, 1)}
		u.free <- struct{}{}
		if t.key == nil {
			t.key = make(map[string]*turn)
		}
		t.key[key] = u
	}
	u.users++
	return u
}

func (t *turns) leave(key string, u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.users--; u.users == 0 {
		delete(t.key, key)
	}
}
