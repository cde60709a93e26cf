package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	defaultInterval = 5 * time.Second
	quickInterval   = time.Second      // shortest interval, and the one after a change
	quickFor        = 30 * time.Second // how long after the start and after a change
	lookupTimeout   = 5 * time.Second
	jitter          = 0.2
)

// DNS resolves a name again and again, every interval (0: 5 s; below 1 s: 1 s) give or take 20 %, and every second for half a
// minute after the start and after each change, because a deployment rarely changes one member alone.
//
// "name:port" is every address of the name with that port: the IPv4 ones, or the IPv6 ones of a name that has no other, so that
// a host with both is one member. An IP address stands for itself. "_service._proto.name" is every SRV target with its port; the
// weights are divided by their greatest common divisor, so equal ones are all 1. Targets stay names: they are resolved
// when they are dialled, and keep their place when their address changes; a node finds itself among them when it advertises
// the target's name.
//
// A failed or empty answer keeps the last list. Each answer is reported, changed or not. Watch fails only when hostport or
// interval make no sense. The system's resolver is asked (net.DefaultResolver); how far it lags behind depends on the
// caches in between and on nothing here.
func DNS(hostport string, interval time.Duration) Discovery {
	d := &dns{interval: interval}
	d.lookup, d.err = newLookup(hostport, net.DefaultResolver)
	switch {
	case interval < 0:
		d.err = errors.Join(d.err, fmt.Errorf("nearcache: peers: DNS interval %v is negative", interval))
	case interval == 0:
		d.interval = defaultInterval
	case interval < quickInterval:
		d.interval = quickInterval
	}
	return d
}

// lookup asks once. An answer without members is an error.
type lookup func(ctx context.Context) ([]Member, error)

type dns struct {
	lookup   lookup
	interval time.Duration
	err      error // what is wrong with the arguments
}

// Watch polls until ctx ends, whose error it returns.
func (d *dns) Watch(ctx context.Context, update func([]Member)) error {
	if d.err != nil {
		return d.err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last []Member
	changed := time.Now()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		members, err := d.ask(ctx)
		if err == nil {
			if !slices.Equal(members, last) {
				last, changed = members, time.Now()
			}
			update(slices.Clone(members))
		}
		timer.Reset(d.pause(time.Since(changed)))
	}
}

func (d *dns) ask(ctx context.Context) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return d.lookup(ctx)
}

// pause returns the time to the next question, spread so that a cluster does not ask in step.
func (d *dns) pause(sinceChange time.Duration) time.Duration {
	interval := d.interval
	if sinceChange < quickFor {
		interval = min(interval, quickInterval)
	}
	return time.Duration(float64(interval) * (1 - jitter + 2*jitter*rand.Float64()))
}

func newLookup(hostport string, resolver *net.Resolver) (lookup, error) {
	hostport = strings.TrimSpace(hostport)
	if strings.HasPrefix(hostport, "_") {
		if parts := strings.SplitN(hostport, ".", 3); len(parts) == 3 && strings.HasPrefix(parts[1], "_") && checkName(strings.ToLower(strings.TrimSuffix(parts[2], "."))) == nil {
			return func(ctx context.Context) ([]Member, error) { return lookupSRV(ctx, resolver, hostport) }, nil
		}
		return nil, fmt.Errorf("nearcache: peers: DNS name %.80q: want _service._proto.name or name:port", hostport)
	}
	if _, err := CanonicalAddr(hostport); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, addrError(hostport, err)
	}
	return func(ctx context.Context) ([]Member, error) { return lookupHost(ctx, resolver, host, port) }, nil
}

// lookupHost asks for one family after the other. Why not both at once: when one of two questions fails, net.Resolver
// returns the other's answer without an error, and all members would change their addresses.
func lookupHost(ctx context.Context, resolver *net.Resolver, host, port string) ([]Member, error) {
	for _, network := range []string{"ip4", "ip6"} {
		ips, err := resolver.LookupNetIP(ctx, network, host)
		if notFound(err) || err == nil && len(ips) == 0 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("nearcache: peers: %w", err)
		}
		addrs := make([]string, len(ips))
		for i, ip := range ips {
			addrs[i] = net.JoinHostPort(ip.String(), port)
		}
		return sorted(addrs, make([]int, len(addrs)))
	}
	return nil, fmt.Errorf("nearcache: peers: %.80q has no address", host)
}

// notFound tells that the name has no such record from all other failures. An address of the other family counts as none.
func notFound(err error) bool {
	var dnsErr *net.DNSError
	var addrErr *net.AddrError
	return errors.As(err, &dnsErr) && dnsErr.IsNotFound || errors.As(err, &addrErr)
}

func lookupSRV(ctx context.Context, resolver *net.Resolver, name string) ([]Member, error) {
	_, records, err := resolver.LookupSRV(ctx, "", "", name)
	if err != nil {
		return nil, fmt.Errorf("nearcache: peers: %w", err)
	}
	var addrs []string
	var weights []int
	divisor := 0
	for _, r := range records {
		weight := max(1, int(r.Weight))
		addrs = append(addrs, net.JoinHostPort(r.Target, strconv.Itoa(int(r.Port))))
		weights = append(weights, weight)
		divisor = gcd(divisor, weight)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("nearcache: peers: %.80q has no target", name)
	}
	for i := range weights {
		weights[i] /= divisor
	}
	return sorted(addrs, weights)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// sorted returns the members in one order, however the answer was shuffled.
func sorted(addrs []string, weights []int) ([]Member, error) {
	members := make([]Member, len(addrs))
	for i, addr := range addrs {
		canonical, err := CanonicalAddr(addr)
		if err != nil {
			return nil, err
		}
		members[i] = Member{Addr: canonical, Weight: weights[i]}
	}
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Weight, b.Weight))
	})
	return slices.Compact(members), nil
}
