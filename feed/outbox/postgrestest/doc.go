// Package postgrestest tests feed/outbox on a real PostgreSQL, which it starts in a temporary directory. It is a module of its own, because
// of the driver. Without a PostgreSQL the tests fail, unless NEARCACHE_SKIP_POSTGRES says otherwise.
package postgrestest
