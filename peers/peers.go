package peers

import (
	"context"
	"errors"
)

// Member is one process of the cluster, as discovery reports it.
type Member struct {
	ID     string // unique in the cluster; empty means Addr
	Addr   string // host:port that other members dial
	Zone   string // failure domain; replicas are spread over zones
	Weight int    // share of the key space relative to the others; 0 means 1, negative: owns nothing
}

// Discovery reports who is in the cluster. The package discoverytest has a test for implementations.
type Discovery interface {
	// Watch calls update with the complete member list, once as soon as it is known and again after every change, until ctx
	// ends; it returns when ctx ends or on an error it cannot recover from. The node adds itself, so a list without it, or
	// with it, is the same.
	//
	// An update with the list that is known already changes nothing and tells the node that discovery works. The list
	// belongs to the callee; Watch must not change it afterwards. Calls must not overlap. update does not block for long.
	Watch(ctx context.Context, update func([]Member)) error
}

// Func adapts a function. It has to do what Discovery.Watch says.
type Func func(ctx context.Context, update func([]Member)) error

// Watch calls f.
func (f Func) Watch(ctx context.Context, update func([]Member)) error {
	if f == nil {
		return errors.New("nearcache: peers: the Func is nil")
	}
	return f(ctx, update)
}
