package outbox

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/nearcache/nearcache/feed"
)

func TestNew(t *testing.T) {
	db := new(sql.DB)
	for name, cfg := range map[string]Config{
		"no database":   {},
		"a bad name":    {DB: db, Table: "x; DROP TABLE y"},
		"no such order": {DB: db, Order: 7},
		"negative":      {DB: db, Poll: -time.Second},
	} {
		if s, err := New(cfg); err == nil {
			t.Errorf("%s: got %+v, want an error", name, s)
		}
	}
	if s, err := New(Config{DB: db}); err != nil || s.cfg.Table != defaultTable || s.cfg.Limit != 1000 {
		t.Errorf("got %+v, %v, want the defaults", s, err)
	}
	if sql := PostgreSQL("changes"); strings.Contains(sql, defaultTable) || strings.Contains(sql, "{") {
		t.Error("the statements have another table's name")
	}
}

func TestPositions(t *testing.T) {
	at := place{xid: 12, seq: 7}
	if epoch, got, ok := parse(at.position("e")); epoch != "e" || got != at || !ok {
		t.Errorf("got %q, %v, %v, want %v back", epoch, got, ok, at)
	}
	for _, p := range []feed.Position{"", "e", "e/", "e/1", "e/1.", "e/1.x", "e/1.2.3", "e/1.2 "} {
		if _, got, ok := parse(p); ok {
			t.Errorf("%q: got %v, want no position", p, got)
		}
	}
	if !at.less(place{13, 0}) || !at.less(place{12, 8}) || at.less(at) {
		t.Error("places are ordered by transaction, then by number")
	}
}
