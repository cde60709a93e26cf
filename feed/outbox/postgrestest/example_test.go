package postgrestest //nolint:testableexamples // it needs a database server

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/feed/outbox"
	"github.com/nearcache/nearcache/peers"
)

type product struct {
	Name    string
	Price   int
	Version uint64
}

// A catalogue whose rows are changed by whoever has access to the database: a trigger writes each change into the outbox.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres:///shop") // the application's own driver
	if err != nil {
		log.Fatal(err)
	}
	// Once, when the schema is made.
	for _, statement := range []string{outbox.PostgreSQL(""), `CREATE OR REPLACE TRIGGER product_changed AFTER INSERT OR UPDATE OR DELETE ON product
		FOR EACH ROW EXECUTE FUNCTION nearcache_outbox_changed('product', 'id', 'version')`} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			log.Fatal(err)
		}
	}

	node, err := nearcache.Start(ctx, nearcache.NodeConfig{Listen: "10.0.0.7:7946", Discovery: peers.DNS("catalog-cache.prod.svc:7946", 0)})
	if err != nil {
		log.Fatal(err)
	}
	source, err := outbox.New(outbox.Config{DB: db})
	if err != nil {
		log.Fatal(err)
	}
	feed, err := node.Follow(ctx, source, nearcache.FeedConfig{Name: "outbox"}) // before the caches are opened
	if err != nil {
		log.Fatal(err)
	}
	products, err := nearcache.New(node, "product", nearcache.Config[product]{
		Load: func(ctx context.Context, key string) (p product, err error) {
			row := db.QueryRowContext(ctx, "SELECT name, price, version FROM product WHERE id = $1", key)
			if err = row.Scan(&p.Name, &p.Price, &p.Version); errors.Is(err, sql.ErrNoRows) {
				return p, nearcache.ErrNotFound
			}
			return p, err
		},
		VersionOf: func(p product) uint64 { return p.Version }, // what a load read too early is refused
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() { // rows are kept for longer than any reader is away
		for range time.Tick(time.Hour) {
			if _, err := source.Clean(ctx, 48*time.Hour); err != nil {
				log.Print(err)
			}
		}
	}()

	p, err := products.Get(ctx, "8812")
	log.Print(p, err, feed.Stats().Lag)
}
