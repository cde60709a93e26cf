package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/feed/feedtest"
	"github.com/nearcache/nearcache/feed/outbox"
)

func newSource(t *testing.T, s *server, table string, order outbox.Order) *outbox.Source {
	t.Helper()
	source, err := outbox.New(outbox.Config{DB: s.db, Table: table, Order: order, Poll: 5 * time.Millisecond, Limit: 50})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func TestConformance(t *testing.T) {
	s := start(t)
	for name, order := range map[string]outbox.Order{"by transaction": outbox.ByTransaction, "by sequence": outbox.BySequence} {
		tables := 0
		t.Run(name, func(t *testing.T) {
			feedtest.Run(t, func(t *testing.T) feedtest.Stream {
				tables++
				table := fmt.Sprintf("outbox_%d_%d", order, tables)
				s.exec(outbox.PostgreSQL(table))
				return feedtest.Stream{
					Source: newSource(t, s, table, order),
					Append: func(changes ...feed.Change) {
						for _, c := range changes {
							s.exec("INSERT INTO "+table+" (keyspace, key, version) VALUES ($1, $2, $3)", c.Keyspace, c.Key, int64(c.Version))
						}
					},
					Clean: func() { s.exec("DELETE FROM " + table) },
					Recreate: func() {
						s.exec("DROP TABLE " + table + ", " + table + "_stream")
						s.exec(outbox.PostgreSQL(table))
					},
					Restart: s.restart,
					Within:  20 * time.Second,
				}
			})
		})
	}
}

// Six writers that commit a little later than they insert. Reading by sequence passes rows over; reading by transaction does not, with a reader
// that breaks off again and again and goes on from its last position.
func TestSixWriters(t *testing.T) {
	const writers, each = 6, 120
	s := start(t)
	s.exec(outbox.PostgreSQL(""))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	byTransaction := newSource(t, s, "", outbox.ByTransaction)
	bySequence := newSource(t, s, "", outbox.BySequence)
	position, err := byTransaction.Tail(ctx)
	if err != nil {
		t.Fatal(err)
	}
	start, err := bySequence.Tail(ctx)
	if err != nil {
		t.Fatal(err)
	}

	naive := make(map[string]bool)
	last := make(chan struct{})
	naiveCtx, stopNaive := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		_ = bySequence.Read(naiveCtx, start, func(b feed.Batch) error {
			for _, c := range b.Changes {
				if c.Key == "last" {
					close(last)
					return nil
				}
				naive[c.Key] = true
			}
			return nil
		})
	})
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				if err := write(ctx, s, fmt.Sprint(w, "-", i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}

	seen := make(map[string]bool)
	again, breaks := 0, 0
	broken := errors.New("the reader breaks off")
	var lag time.Duration
	for len(seen) < writers*each && ctx.Err() == nil {
		err := newSource(t, s, "", outbox.ByTransaction).Read(ctx, position, func(b feed.Batch) error {
			if b.Gap != "" {
				t.Errorf("a gap: %s", b.Gap)
			}
			for _, c := range b.Changes {
				if seen[c.Key] {
					again++
				}
				seen[c.Key] = true
			}
			lag = max(lag, b.Lag)
			if len(seen) == writers*each || rand.IntN(5) == 0 {
				return broken // before the position is taken over
			}
			position = b.Position
			return nil
		})
		if !errors.Is(err, broken) {
			t.Fatalf("Read: %v, with %d of %d rows", err, len(seen), writers*each)
		}
		breaks++
	}
	writing.Wait()
	// The naive reader has had all that it will get when it has read a row that is inserted after all others.
	s.exec("INSERT INTO nearcache_outbox (keyspace, key) VALUES ('k', 'last')")
	<-last
	stopNaive()
	reading.Wait()
	lost := writers*each - len(naive)
	t.Logf("of %d rows: by sequence %d lost (%d %%); by transaction %d lost, %d read again after %d breaks, lag %v at most",
		writers*each, lost, 100*lost/(writers*each), writers*each-len(seen), again, breaks, lag)
	if lost == 0 {
		t.Error("the reader by sequence lost nothing: this test shows nothing")
	}
}

// write inserts a row and commits a little later.
func write(ctx context.Context, s *server, key string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "INSERT INTO nearcache_outbox (keyspace, key) VALUES ('k', $1)", key); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "SELECT pg_sleep($1)", rand.Float64()*0.01); err != nil {
		return err
	}
	return tx.Commit()
}

// A transaction that writes holds back what commits after it began, and Lag says for how long; Clean deletes old rows that can be read only, and
// TRUNCATE is a gap like DELETE.
func TestLagAndClean(t *testing.T) {
	s := start(t)
	s.exec(outbox.PostgreSQL(""))
	source := newSource(t, s, "", outbox.ByTransaction)
	tail, err := source.Tail(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	insert := "INSERT INTO nearcache_outbox (keyspace, key, at) VALUES ('k', $1, clock_timestamp() - interval '1 hour')"
	if _, err := tx.ExecContext(t.Context(), insert, "first"); err != nil {
		t.Fatal(err)
	}
	s.exec(insert, "second")
	enough := errors.New("enough")
	read := func(from feed.Position) (b feed.Batch) {
		t.Helper()
		if err := source.Read(t.Context(), from, func(got feed.Batch) error { b = got; return enough }); !errors.Is(err, enough) {
			t.Fatal(err)
		}
		return b
	}
	if b := read(tail); len(b.Changes) != 0 || b.Behind != 1 || b.Lag < time.Hour || b.Gap != "" {
		t.Errorf("got %+v, want a row that waits for an hour", b)
	}
	if n, err := source.Clean(t.Context(), time.Minute); n != 0 || err != nil {
		t.Errorf("Clean: got %d, %v, want 0: the row cannot be read yet", n, err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	b := read(tail)
	if len(b.Changes) != 2 || b.Behind != 0 || b.Lag != 0 {
		t.Errorf("got %+v, want both rows", b)
	}
	if n, err := source.Clean(t.Context(), time.Minute); n != 2 || err != nil {
		t.Errorf("Clean: got %d, %v, want 2", n, err)
	}
	if got := read(tail); got.Gap == "" {
		t.Errorf("from before what was deleted: got %+v, want a gap", got)
	}
	if got := read(b.Position); got.Gap != "" {
		t.Errorf("from behind what was deleted: got %+v, want no gap", got)
	}
	s.exec("TRUNCATE nearcache_outbox")
	if got := read(b.Position); got.Gap == "" {
		t.Errorf("after TRUNCATE: got %+v, want a gap", got)
	}
}

// A trigger fills the outbox, a node follows it, and the server crashes meanwhile.
func TestNodeFollowsATable(t *testing.T) {
	s := start(t)
	s.exec(outbox.PostgreSQL(""))
	s.exec(`CREATE TABLE product (id text PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 1);
		CREATE TRIGGER product_changed AFTER INSERT OR UPDATE OR DELETE ON product
		FOR EACH ROW EXECUTE FUNCTION nearcache_outbox_changed('product', 'id', 'version')`)
	node, err := nearcache.Start(t.Context(), nearcache.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close(context.Background())
	f, err := node.Follow(t.Context(), newSource(t, s, "", outbox.ByTransaction), nearcache.FeedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	products, err := nearcache.New(node, "product", nearcache.Config[string]{TTL: time.Hour, Load: func(ctx context.Context, id string) (string, error) {
		names := "none"
		err := s.db.QueryRowContext(ctx, "SELECT coalesce(max(name), 'none') FROM product WHERE id = $1", id).Scan(&names)
		return names, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	wantSoon := func(id, want string) {
		t.Helper()
		for {
			got, err := products.Get(ctx, id)
			if err == nil && got == want {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("%s: got %q, %v, want %q; %+v", id, got, err, want, f.Stats())
			}
		}
	}
	wantSoon("a", "none")
	s.exec("INSERT INTO product VALUES ('a', 'lamp')")
	wantSoon("a", "lamp")
	wantSoon("b", "none")
	s.exec("UPDATE product SET id = 'b', version = 2")
	wantSoon("a", "none")
	wantSoon("b", "lamp")
	s.restart()
	s.exec("UPDATE product SET name = 'chair', version = 3")
	wantSoon("b", "chair")
	s.exec("DELETE FROM product")
	wantSoon("b", "none")
	if st := f.Stats(); st.Gaps > 0 || st.Restarts == 0 {
		t.Errorf("got %+v, want restarts and no gap", st)
	}
}
