package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/feed/outbox"
)

// postgres is a table in a PostgreSQL that is reached through a pool of as many connections as it has slots: what finds none waits in this
// process, and is never asked when its client gives up. A query looks a row up and takes the rest of its time in the database, with its
// connection. Changes come from an outbox table that a trigger fills.
type postgres struct {
	pool    *sql.DB // of the readers
	others  *sql.DB // of writers, and of the stream
	outbox  *outbox.Source
	cleanUp []string
}

// newPostgres makes the tables anew.
func newPostgres(ctx context.Context, dsn string, slots int) (*postgres, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	const others = 8
	p := &postgres{pool: stdlib.OpenDB(*cfg), others: stdlib.OpenDB(*cfg)}
	p.pool.SetMaxOpenConns(slots)
	p.pool.SetMaxIdleConns(slots)
	p.others.SetMaxOpenConns(others)
	p.others.SetMaxIdleConns(others)
	p.cleanUp = []string{
		`DROP TABLE IF EXISTS drill_product, drill_outbox, drill_outbox_stream`,
		`DROP FUNCTION IF EXISTS drill_outbox_deleted, drill_outbox_truncated, drill_outbox_changed`,
	}
	if err := p.create(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *postgres) create(ctx context.Context) (err error) {
	statements := slices.Concat(p.cleanUp, []string{
		outbox.PostgreSQL("drill_outbox"),
		`CREATE TABLE drill_product (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 1)`,
		fmt.Sprintf(`INSERT INTO drill_product SELECT 'product-' || n FROM generate_series(0, %d) n UNION VALUES ('%s')`, products-1, hotProduct),
		fmt.Sprintf(`CREATE TRIGGER drill_product_changed AFTER UPDATE ON drill_product
			FOR EACH ROW EXECUTE FUNCTION drill_outbox_changed('%s', 'id', 'version')`, keyspace),
	})
	for _, statement := range statements {
		if _, err := p.others.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%.40s: %w", statement, err)
		}
	}
	p.outbox, err = outbox.New(outbox.Config{DB: p.others, Table: "drill_outbox"})
	return err
}

// read implements table.
func (p *postgres) read(ctx context.Context, key string, took time.Duration) (version int, err error) {
	row := p.pool.QueryRowContext(ctx, `SELECT version FROM drill_product, pg_sleep($2) WHERE id = $1`, key, took.Seconds())
	return version, row.Scan(&version)
}

// write implements table.
func (p *postgres) write(ctx context.Context, key string) (version int, err error) {
	row := p.others.QueryRowContext(ctx, `UPDATE drill_product SET version = version + 1 WHERE id = $1 RETURNING version`, key)
	return version, row.Scan(&version)
}

// changes implements table.
func (p *postgres) changes() feed.Source { return p.outbox }

// close implements table.
func (p *postgres) close() error {
	var errs []error
	for _, statement := range p.cleanUp {
		_, err := p.others.ExecContext(context.Background(), statement)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, p.pool.Close(), p.others.Close())...)
}
