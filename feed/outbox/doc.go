// Package outbox is a feed.Source over an outbox table: whoever changes a row adds to it, in the same transaction, what has to be
// invalidated, mostly by a trigger. It uses database/sql with the application's own driver, and depends on none.
//
//	-- once, in the database: outbox.PostgreSQL has the table and the functions
//	CREATE TRIGGER product_changed AFTER INSERT OR UPDATE OR DELETE ON product
//		FOR EACH ROW EXECUTE FUNCTION nearcache_outbox_changed('product', 'id', 'version');
//
//	// in the program, before the caches are opened
//	source, err := outbox.New(outbox.Config{DB: db})
//	f, err := node.Follow(ctx, source, nearcache.FeedConfig{})
//
// # Nothing is passed over
//
// A number from a sequence is taken when a row is inserted, and the row appears when its transaction commits, which may be after a row with a
// higher number. A reader that goes on behind the highest number it saw never sees the first one: with six writers and commits that take a
// few milliseconds it loses a fifth of all rows. So on PostgreSQL (14 or later) rows also carry the number of their transaction, and are read in
// the order of transactions, up to the oldest one that still runs: whatever commits later is behind that.
//
// The price is a delay: one transaction that writes for a minute, anywhere in the database server, holds back all that commits after it began
// for as long. FeedStats.Lag shows it. idle_in_transaction_session_timeout bounds it. Read from the primary, not from a replica.
//
// A database with one writer at a time (SQLite) commits in the order of the sequence: Config.Order says so.
//
// # Old rows
//
// Rows are kept until they are deleted; Source.Clean deletes old ones. Keep them for longer than any reader is away, and where positions are
// saved for longer than the longest TTL besides. Deleting a row raises a floor, in the same transaction, by a trigger: a reader that was not
// past it yet is told of a gap, whoever deleted what and why.
package outbox
