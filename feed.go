package nearcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/internal/foreign"
	"github.com/nearcache/nearcache/internal/transport"
)

// FeedConfig configures Node.Follow. Its zero value is ready to use.
type FeedConfig struct {
	// Name tells feeds apart in Stats and in the log. Empty: "feed".
	Name string
	// After is where to go on: the last position that Save was given. Empty: at the end of the stream. What this node holds by then is taken as
	// after a gap, and with Save, which should have had a position, what any member holds.
	After feed.Position
	// Save keeps a position, so that a process that starts later can go on from it. It is called once a second at most, and never with a
	// position behind a change that an owner did not confirm, until no copy can be left that missed it. A panic is an error; an error is logged, and Save is
	// called again. Nil: positions live as long as the node, which is enough where every member follows the stream.
	Save func(ctx context.Context, p feed.Position) error
	// Keyspaces are those that the stream is about, for gaps: the ones that are open on this node count in any case. Where only some members
	// follow the stream, name all of them that these do not open.
	Keyspaces []string
}

// Feed is a stream of changes that a node follows. See Node.Follow.
type Feed struct {
	node   *Node
	source feed.Source
	cfg    FeedConfig

	ctx    context.Context //nolint:containedctx // a lifetime, not a request
	cancel context.CancelFunc
	ended  sync.WaitGroup // of the goroutines
	lost   bool           // members may hold what changed before the first position; of run
	turn   chan struct{}  // capacity 1, held while a batch is applied

	// mu guards what follows. It is a leaf.
	mu       sync.Mutex
	position feed.Position // behind the last batch
	saved    feed.Position
	marks    marks
	strays   map[string]*stray
	stats    FeedStats
	batchAt  int64 // when the last batch came; 0: none did
	changeAt int64 // when the last one with changes came
}

// Follow applies the changes of a stream to the cluster's caches until the node or the feed closes, each as Invalidate, InvalidateTag or
// InvalidateAll would be called for it. It returns when it knows where to begin: call it before the keyspaces are opened, and whatever they
// load is followed from its first instant. A source that fails is asked again until ctx ends.
//
// One member may follow a stream, or every one: a change goes to the owners of its keys, whoever reads it, and applying it again costs
// little. Where one does, it should Save its positions, and its successor go on from there.
//
// A gap in the stream (feed.Batch) makes all that is cached in its keyspaces stale copies, on every member: they are served, marked stale,
// until they have been loaded anew, which owners let happen MaxLoads times a second.
//
// Errors: the source's or the context's, whichever was last; *ConfigError; ErrClosed.
func (n *Node) Follow(ctx context.Context, source feed.Source, cfg FeedConfig) (*Feed, error) {
	if source == nil {
		return nil, &ConfigError{Problems: []string{"Follow needs a source"}}
	}
	if cfg.Name == "" {
		cfg.Name = "feed"
	}
	cfg.Keyspaces = slices.Clone(cfg.Keyspaces)
	f := &Feed{
		node: n, source: source, cfg: cfg, position: cfg.After, saved: cfg.After,
		turn: make(chan struct{}, 1), strays: make(map[string]*stray),
	}
	f.ctx, f.cancel = context.WithCancel(n.ctx)
	if f.position == "" {
		tail, err := f.tail(ctx)
		if err != nil {
			f.cancel()
			return nil, err
		}
		f.position, f.lost = tail, cfg.Save != nil
		for _, ks := range *n.keyspaces.Load() {
			ks.dropAll(transport.FlagSoft) // nobody knows what of it changed before the position
		}
	}
	if !n.addFeed(f) {
		f.cancel()
		return nil, ErrClosed
	}
	return f, nil
}

// addFeed starts a feed's goroutines; false: the node is closed.
func (n *Node) addFeed(f *Feed) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed.Load() {
		return false
	}
	f.start("feed", f.run)
	if f.cfg.Save != nil {
		f.start("feed save", f.save)
	}
	feeds := append(slices.Clone(*n.feeds.Load()), f)
	n.feeds.Store(&feeds)
	return true
}

// start starts a goroutine that Close waits for.
func (f *Feed) start(name string, do func()) {
	f.ended.Add(1)
	if !f.node.run(name, func() { defer f.ended.Done(); do() }) {
		f.ended.Done()
	}
}

// Close ends the feed: nothing more is applied, and Save is called a last time. It may be called many times.
//
// Errors: the context's, when it ended before the source or Save did.
func (f *Feed) Close(ctx context.Context) error {
	n := f.node
	n.mu.Lock()
	feeds := slices.DeleteFunc(slices.Clone(*n.feeds.Load()), func(g *Feed) bool { return g == f })
	n.feeds.Store(&feeds)
	n.mu.Unlock()
	f.cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.ended.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The pauses before a source that failed is asked again.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// tail takes the position to begin with.
func (f *Feed) tail(ctx context.Context) (feed.Position, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(f.ctx, cancel)
	defer stop()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		p, err := foreign.Call(ctx, "Source.Tail", func() (feed.Position, error) { return f.source.Tail(ctx) }, nil)
		switch {
		case f.node.closed.Load():
			return "", ErrClosed
		case err == nil && p != "":
			return p, nil
		case err == nil:
			err = errors.New("nearcache: Source.Tail returned no position")
		}
		if ctx.Err() != nil || !sleep(ctx, jittered(pause)) {
			return "", err
		}
	}
}

// jittered keeps members that lost one source together from asking it again together.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/2) }

// run reads the stream, from where it was read up to, until the feed ends.
func (f *Feed) run() {
	select {
	case <-f.node.joined: // before that nobody knows who has to be told
	case <-f.ctx.Done():
		return
	}
	var ends news
	pause := firstPause
	for {
		after, batches := f.progress()
		err := f.read(after)
		if f.ctx.Err() != nil || f.node.closed.Load() {
			return
		}
		if err == nil {
			err = errors.New("nearcache: Read returned before its context ended")
		}
		if _, now := f.progress(); now != batches {
			ends, pause = news{}, firstPause // it had worked meanwhile
		}
		if ends.differs(err) {
			f.node.cfg.Logger.Warn("a feed's source ended, reading it again", "feed", f.cfg.Name, "error", err)
		}
		f.mu.Lock()
		f.stats.Restarts++
		f.mu.Unlock()
		if !sleep(f.ctx, jittered(pause)) {
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// read runs the source until it gives up, in whatever way. One that ignores its context is waited for by Close, but not for ever.
func (f *Feed) read(after feed.Position) error {
	if f.lost {
		if err := f.apply(feed.Batch{Position: after, Gap: "no position was saved"}); err != nil {
			return err
		}
		f.lost = false
	}
	_, err := foreign.Call(context.WithoutCancel(f.ctx), "Source.Read", func() (struct{}, error) {
		return struct{}{}, f.source.Read(f.ctx, after, f.apply)
	}, nil)
	return err
}

// progress returns the position that was read up to, and how many batches there were.
func (f *Feed) progress() (feed.Position, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.position, f.stats.Batches
}

// save keeps passing positions to the application, and a last one at the end.
func (f *Feed) save() {
	const every, patience = time.Second, 2 * time.Second
	var fails news
	for more := true; more; {
		more = sleep(f.ctx, every)
		p, ok := f.unsaved()
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), patience)
		_, err := foreign.Call(context.WithoutCancel(ctx), "FeedConfig.Save", func() (struct{}, error) {
			return struct{}{}, f.cfg.Save(ctx, p)
		}, nil)
		cancel()
		if fails.differs(err) && err != nil {
			f.node.cfg.Logger.Warn("the position of a feed could not be saved", "feed", f.cfg.Name, "error", err)
		}
		if err == nil {
			f.mu.Lock()
			f.saved = p
			f.mu.Unlock()
		}
	}
}

// unsaved returns the position to save, if it is not saved yet.
func (f *Feed) unsaved() (feed.Position, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marks.add(f.position)
	p, ok := f.marks.settled(f.node.clock.Exact())
	return p, ok && p != f.saved
}

// FeedStats is what a feed has done. Counters are from the feed's start.
type FeedStats struct {
	Name        string
	Position    feed.Position // read up to
	Saved       feed.Position // the last one that FeedConfig.Save took, or that the feed began with
	Batches     uint64        // empty ones included
	Applied     uint64        // changes passed on to their owners
	Duplicates  uint64        // of these, the ones that another change in the same batch made needless
	Unknown     uint64        // of these, the ones in keyspaces that are not open on this node
	Unconfirmed uint64        // keys, tags and whole keyspaces that an owner did not confirm at once: it is told again
	Invalid     uint64        // changes that name nothing, or too long: they are passed over
	Gaps        uint64
	Restarts    uint64        // times that the source's Read ended
	Behind      int           // about how many changes the source had after the last batch
	Lag         time.Duration // how long ago the first of them was made; 0: there is none
	LastBatch   time.Duration // ago; negative: there was none yet. It grows while the source is away
	LastChange  time.Duration // since the last batch with changes; negative: there was none yet
}

// add adds what one batch came to.
func (s *FeedStats) add(b *FeedStats) {
	s.Batches += b.Batches
	s.Applied += b.Applied
	s.Duplicates += b.Duplicates
	s.Unknown += b.Unknown
	s.Unconfirmed += b.Unconfirmed
	s.Invalid += b.Invalid
	s.Gaps += b.Gaps
}

// Stats returns a snapshot.
func (f *Feed) Stats() FeedStats {
	now := f.node.clock.Exact()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Name, s.Position, s.Saved = f.cfg.Name, f.position, f.saved
	s.LastBatch, s.LastChange = -1, -1
	if f.batchAt != 0 {
		s.LastBatch = age(f.batchAt, now)
	}
	if f.changeAt != 0 {
		s.LastChange = age(f.changeAt, now)
	}
	if s.Behind > 0 {
		s.Lag += s.LastBatch
	}
	return s
}
