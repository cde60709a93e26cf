package peers

import (
	"context"
	"errors"
	"slices"
)

type static []string

// Static is a fixed list of addresses. Each is a member without ID, zone and weight; one that stands there twice, in whatever
// spelling, is one member. Watch fails with all that is wrong when CanonicalAddr refuses an address.
func Static(addrs ...string) Discovery { return static(slices.Clone(addrs)) }

// Fixed tells that the list never changes.
func (static) Fixed() bool { return true }

// Watch reports the list once and waits for the end of ctx, whose error it returns.
func (s static) Watch(ctx context.Context, update func([]Member)) error {
	var problems []error
	members := make([]Member, 0, len(s))
	for _, addr := range s {
		canonical, err := CanonicalAddr(addr)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if m := (Member{Addr: canonical}); !slices.Contains(members, m) {
			members = append(members, m)
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	update(members)
	<-ctx.Done()
	return ctx.Err()
}
