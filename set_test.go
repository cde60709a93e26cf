package nearcache

import (
	"context"
	"testing"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// What an owner says to a Set, and whether it is asked again.
func TestTheAnswersToASet(t *testing.T) {
	for status, want := range map[transport.Status]struct {
		stored, again bool
		err           error
	}{
		transport.StatusStored:          {stored: true},
		transport.StatusNotStored:       {},
		transport.StatusUnknownKeyspace: {err: errNoKeyspace},
		transport.StatusNotOwner:        {again: true, err: errDisagree},
		transport.StatusBusy:            {again: true, err: errBusy},
	} {
		stored, again, err := setAnswer(status)
		if stored != want.stored || again != want.again || err != want.err { //nolint:errorlint // they are sentinels
			t.Errorf("status %v: got %v, %v, %v, want %v", status, stored, again, err, want)
		}
	}
}

// A Set of a value that is not to be kept drops what is resident, and says that nothing was stored.
func TestASetOfWhatIsNotCached(t *testing.T) {
	ttl := time.Minute
	c, err := New(nil, "ks", Config[string]{
		TTLOf: func(string, string) time.Duration { return ttl },
		LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
			return map[string]string{keys[0]: "loaded"}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	for _, step := range []struct {
		ttl    time.Duration
		stored bool
	}{{time.Minute, true}, {-1, false}} {
		ttl = step.ttl
		if stored, err := c.Set(t.Context(), "k", "set"); stored != step.stored || err != nil {
			t.Errorf("lifetime %v: got %v, %v, want %v", step.ttl, stored, err, step.stored)
		}
		if v, ok, err := c.Peek(t.Context(), "k"); ok != step.stored || err != nil {
			t.Errorf("lifetime %v: Peek got %q, %v, %v, want it resident: %v", step.ttl, v, ok, err, step.stored)
		}
	}
}
