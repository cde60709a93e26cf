package outbox

import "strings"

const defaultTable = "nearcache_outbox"

// sql puts the table's name into a statement.
func (s *Source) sql(statement string) string { return named(statement, s.cfg.Table) }

func named(statement, table string) string { return strings.ReplaceAll(statement, "{table}", table) }

// PostgreSQL returns the statements that make what a Source reads ByTransaction, for a table of this name (empty: the default): the outbox,
// its floor, and a trigger function for the tables whose changes it is about. They can be run again. See its function nearcache_outbox_changed.
func PostgreSQL(table string) string {
	if table == "" {
		table = defaultTable
	}
	return named(postgreSQL, table)
}

const postgreSQL = `
-- What has to be invalidated: a key, or everything with a tag, or with neither the whole keyspace.
CREATE TABLE IF NOT EXISTS {table} (
	xid      bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
	seq      bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
	at       timestamptz NOT NULL DEFAULT clock_timestamp(),
	keyspace text        NOT NULL,
	key      text,
	tag      text,
	version  bigint      NOT NULL DEFAULT 0,
	PRIMARY KEY (xid, seq)
);

-- One row: which table this is, and up to where rows of it may have been deleted.
CREATE TABLE IF NOT EXISTS {table}_stream (
	one       boolean PRIMARY KEY DEFAULT true CHECK (one),
	epoch     text    NOT NULL DEFAULT gen_random_uuid()::text,
	floor_xid bigint  NOT NULL DEFAULT 0,
	floor_seq bigint  NOT NULL DEFAULT 0
);
INSERT INTO {table}_stream DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Deleted rows raise the floor, whoever deletes them.
CREATE OR REPLACE FUNCTION {table}_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE {table}_stream s SET floor_xid = d.xid, floor_seq = d.seq
	FROM (SELECT xid, seq FROM deleted ORDER BY xid DESC, seq DESC LIMIT 1) d
	WHERE (s.floor_xid, s.floor_seq) < (d.xid, d.seq);
	RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER {table}_deleted AFTER DELETE ON {table}
	REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION {table}_deleted();

CREATE OR REPLACE FUNCTION {table}_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE {table}_stream SET floor_xid = pg_current_xact_id()::text::bigint, floor_seq = 0;
	RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER {table}_truncated AFTER TRUNCATE ON {table}
	FOR EACH STATEMENT EXECUTE FUNCTION {table}_truncated();

-- For row triggers of other tables: {table}_changed(keyspace, key column[, version column]). A key that changes is two of them.
CREATE OR REPLACE FUNCTION {table}_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	was     jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
	now_is  jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
	version bigint := 0;
BEGIN
	IF TG_NARGS > 2 THEN
		version := coalesce((now_is ->> TG_ARGV[2])::bigint, 0);
	END IF;
	IF now_is IS NOT NULL THEN
		INSERT INTO {table} (keyspace, key, version) VALUES (TG_ARGV[0], now_is ->> TG_ARGV[1], version);
	END IF;
	IF was IS NOT NULL AND (now_is IS NULL OR was ->> TG_ARGV[1] <> now_is ->> TG_ARGV[1]) THEN
		INSERT INTO {table} (keyspace, key) VALUES (TG_ARGV[0], was ->> TG_ARGV[1]);
	END IF;
	RETURN NULL;
END $$;
`
