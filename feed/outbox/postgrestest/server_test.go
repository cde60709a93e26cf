package postgrestest

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

// server is a PostgreSQL of the test's own, which only a socket in its directory reaches.
type server struct {
	t   *testing.T
	bin string
	dir string
	as  *syscall.Credential // PostgreSQL does not run as root
	cmd *exec.Cmd
	db  *sql.DB
}

// start starts a server that ends with the test.
func start(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, bin: binaries(t)}
	var err error
	//nolint:usetesting // the server's user cannot go through the directories above t.TempDir, and a socket's path is short
	if s.dir, err = os.MkdirTemp("", "nearcache-postgres"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(s.dir) })
	if os.Geteuid() == 0 {
		s.as = unprivileged(t)
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := s.command("initdb", "-D", s.data(), "-N", "-A", "trust", "-U", "test", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	if s.db, err = sql.Open("pgx", "host="+s.dir+" user=test database=postgres"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.db.Close() })
	s.run()
	t.Cleanup(s.stop)
	return s
}

// binaries returns the directory with the newest initdb.
func binaries(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		if os.Getenv("NEARCACHE_SKIP_POSTGRES") != "" {
			t.Skip("there is no PostgreSQL here")
		}
		t.Fatal("there is no initdb in /usr/lib/postgresql/*/bin or the path: install PostgreSQL 14 or later (Debian: apt-get install postgresql), " +
			"or set NEARCACHE_SKIP_POSTGRES=1")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

func unprivileged(t *testing.T) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Fatal("PostgreSQL does not run as root, and there is no user postgres or nobody")
	return nil
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }

func (s *server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	return cmd
}

// run starts the server and waits until it answers.
func (s *server) run() {
	s.t.Helper()
	s.cmd = s.command("postgres", "-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50")
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.db.PingContext(ctx) != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatal("PostgreSQL does not answer within 30 s")
		}
	}
}

// stop ends the server at once, as a crash does.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	_ = s.cmd.Wait()
}

func (s *server) restart() {
	s.stop()
	s.run()
}

func (s *server) exec(statement string, args ...any) {
	s.t.Helper()
	if _, err := s.db.ExecContext(context.Background(), statement, args...); err != nil {
		s.t.Fatalf("%.60s: %v", statement, err)
	}
}
