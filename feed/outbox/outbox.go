package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/nearcache/nearcache/feed"
)

// Order is the order in which rows can be read without passing one over.
type Order int

// The orders.
const (
	ByTransaction Order = iota // PostgreSQL: up to the oldest transaction that still runs
	BySequence                 // a database with one writer at a time. With more of them rows get lost
)

// Config configures a Source.
type Config struct {
	// DB is the database. A reader needs one connection while it asks. It is the caller's to close.
	DB *sql.DB
	// Table is the outbox table, a lower-case SQL name; "_stream" is added for the table of one row that goes with it. Empty: nearcache_outbox.
	Table string
	// Order is ByTransaction, or BySequence where only one transaction can write at a time: then the table needs no column xid.
	Order Order
	// Poll is how long a reader that has read all waits before it asks again. 0 means 250 ms.
	Poll time.Duration
	// Wake makes one reader ask at once with each value that it receives, as a listener for notifications of the database would send. Nil: none.
	Wake <-chan struct{}
	// Limit bounds the rows read at once. 0 means 1,000.
	Limit int
}

// Source is a feed.Source over an outbox table. It keeps nothing between calls and is safe for concurrent use. See New.
type Source struct{ cfg Config }

// New makes a Source. It does not connect. Errors: what is wrong with cfg.
func New(cfg Config) (*Source, error) {
	if cfg.Table == "" {
		cfg.Table = defaultTable
	}
	if cfg.Poll == 0 {
		cfg.Poll = 250 * time.Millisecond
	}
	if cfg.Limit == 0 {
		cfg.Limit = 1000
	}
	switch {
	case cfg.DB == nil:
		return nil, errors.New("outbox: DB is required")
	case !regexp.MustCompile(`^[a-z_][a-z0-9_]{0,50}$`).MatchString(cfg.Table):
		return nil, fmt.Errorf("outbox: %q is no table name: lower-case letters, digits and underscores", cfg.Table)
	case cfg.Order != ByTransaction && cfg.Order != BySequence:
		return nil, fmt.Errorf("outbox: no such order: %d", cfg.Order)
	case cfg.Poll < 0, cfg.Limit < 0:
		return nil, errors.New("outbox: Poll and Limit must not be negative")
	}
	return &Source{cfg}, nil
}

// place is how far the table was read: all rows up to a transaction's number and a sequence number, in this order. BySequence knows no
// transactions: theirs is 0.
type place struct{ xid, seq int64 }

func (p place) less(q place) bool { return p.xid < q.xid || p.xid == q.xid && p.seq < q.seq }

func (p place) position(epoch string) feed.Position {
	return feed.At(epoch, fmt.Sprintf("%d.%d", p.xid, p.seq))
}

func parse(p feed.Position) (epoch string, at place, ok bool) {
	epoch, text, ok := p.Split()
	if !ok {
		return "", place{}, false
	}
	_, err := fmt.Sscanf(text, "%d.%d", &at.xid, &at.seq)
	return epoch, at, err == nil && at.position(epoch) == p
}

// Tail implements feed.Source.
func (s *Source) Tail(ctx context.Context) (feed.Position, error) {
	end, err := s.end(ctx)
	if err != nil {
		return "", err
	}
	st, err := s.stream(ctx)
	return end.position(st.epoch), err
}

// Read implements feed.Source. It ends with the first error of the database.
func (s *Source) Read(ctx context.Context, after feed.Position, apply func(feed.Batch) error) error {
	timer := time.NewTimer(s.cfg.Poll)
	defer timer.Stop()
	told := time.Time{}
	for {
		b, err := s.next(ctx, after)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		if len(b.Changes) > 0 || b.Gap != "" || time.Since(told) >= time.Second {
			if err := apply(b); err != nil {
				return err
			}
			told = time.Now()
		}
		after = b.Position
		if len(b.Changes) == s.cfg.Limit {
			continue
		}
		timer.Reset(s.cfg.Poll)
		select {
		case <-timer.C:
		case <-s.cfg.Wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next reads what there is after a position.
//
// Order: first how far rows can be read, then the rows, then the floor. Transactions that are over when the first question is answered are
// visible to the second one, and rows that were deleted before the second have raised the floor that the third sees.
func (s *Source) next(ctx context.Context, after feed.Position) (b feed.Batch, err error) {
	epoch, from, ok := parse(after)
	end, err := s.end(ctx)
	if err != nil {
		return b, err
	}
	at, err := s.rows(ctx, from, end, &b)
	if err != nil {
		return b, err
	}
	st, err := s.stream(ctx)
	switch {
	case err != nil:
		return b, err
	case !ok, st.epoch != epoch, end.less(from):
		b.Gap = "the position is of another table, or of one that was restored from a copy"
		at = st.floor
		b.Changes = nil // they were read from a place that means nothing: from the floor on they come again
	case from.less(st.floor):
		b.Gap = "rows were deleted before they were read"
	}
	if at.less(st.floor) {
		at = st.floor
	}
	if len(b.Changes) < s.cfg.Limit && b.Gap == "" && at.less(end) && s.cfg.Order == ByTransaction {
		at = end
	}
	b.Position = at.position(st.epoch)
	return b, s.lag(ctx, at, &b)
}

// end returns how far rows can be read: there is none before it that is still to come.
func (s *Source) end(ctx context.Context) (p place, err error) {
	if s.cfg.Order == BySequence {
		err = s.cfg.DB.QueryRowContext(ctx, s.sql(`SELECT coalesce(max(seq), 0) FROM {table}`)).Scan(&p.seq)
		if err != nil {
			return p, err
		}
		st, err := s.stream(ctx)
		p.seq = max(p.seq, st.floor.seq) // an empty table has had rows
		return p, err
	}
	err = s.cfg.DB.QueryRowContext(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint`).Scan(&p.xid)
	return p, err
}

// rows reads rows behind from, up to end, into b, and returns the place of the last one.
func (s *Source) rows(ctx context.Context, from, end place, b *feed.Batch) (place, error) {
	query := s.sql(fmt.Sprintf(`SELECT 0, seq, keyspace, key, tag, version FROM {table} WHERE seq > %d ORDER BY seq LIMIT %d`, from.seq, s.cfg.Limit))
	var args []any
	if s.cfg.Order == ByTransaction {
		query = s.sql(`SELECT xid, seq, keyspace, key, tag, version FROM {table} WHERE (xid, seq) > ($1, $2) AND xid < $3 ORDER BY xid, seq LIMIT $4`)
		args = []any{from.xid, from.seq, end.xid, s.cfg.Limit}
	}
	rows, err := s.cfg.DB.QueryContext(ctx, query, args...)
	if err != nil {
		return from, err
	}
	defer rows.Close()
	at := from
	for rows.Next() {
		var c feed.Change
		var key, tag sql.NullString
		var version int64
		if err := rows.Scan(&at.xid, &at.seq, &c.Keyspace, &key, &tag, &version); err != nil {
			return from, err
		}
		c.Key, c.Version = key.String, uint64(max(version, 0))
		if tag.Valid && !key.Valid {
			c.Tags = []string{tag.String}
		}
		c.All = !key.Valid && !tag.Valid
		b.Changes = append(b.Changes, c)
	}
	return at, rows.Err()
}

// stream is the row about the table.
type stream struct {
	epoch string
	floor place // rows up to here may have been deleted
}

func (s *Source) stream(ctx context.Context) (st stream, err error) {
	err = s.cfg.DB.QueryRowContext(ctx, s.sql(`SELECT epoch, floor_xid, floor_seq FROM {table}_stream`)).Scan(&st.epoch, &st.floor.xid, &st.floor.seq)
	if s.cfg.Order == BySequence {
		st.floor.xid = 0
	}
	return st, err
}

// lag finds out what is visible behind at already: rows to read next, and rows that wait for the end of a transaction.
func (s *Source) lag(ctx context.Context, at place, b *feed.Batch) error {
	if s.cfg.Order == BySequence {
		return nil // what is visible can be read: a full batch is followed by the next one at once
	}
	var seconds sql.NullFloat64
	err := s.cfg.DB.QueryRowContext(ctx, s.sql(`SELECT count(*), extract(epoch FROM clock_timestamp() - min(at))::float8
		FROM (SELECT at FROM {table} WHERE (xid, seq) > ($1, $2) ORDER BY xid, seq LIMIT 10000) AS rest`), at.xid, at.seq).Scan(&b.Behind, &seconds)
	b.Lag = time.Duration(max(seconds.Float64, 0) * float64(time.Second))
	return err
}

// Clean deletes rows that are older than keep by the database's clock, and returns their number. Any member may call it, or all. Errors: the
// database's. BySequence it is not available: delete rows and raise floor_seq to the highest seq of them in one transaction.
func (s *Source) Clean(ctx context.Context, keep time.Duration) (int64, error) {
	if s.cfg.Order == BySequence {
		return 0, errors.New("outbox: Clean is for ByTransaction")
	}
	r, err := s.cfg.DB.ExecContext(ctx, s.sql(`DELETE FROM {table}
		WHERE at < clock_timestamp() - make_interval(secs => $1) AND xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint`), keep.Seconds())
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
