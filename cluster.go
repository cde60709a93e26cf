package nearcache

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nearcache/nearcache/internal/transport"
)

// ClusterStats is what the members of a cluster have told of themselves.
type ClusterStats struct {
	Members   map[string]Stats         // by ID: this node, and those that answered in time
	Silent    map[string]string        // by ID: the others, and why
	Keyspaces map[string]KeyspaceStats // the sums over Members; of Top the highest, by reads only: a request of one member to another is a read at the first
}

// askTimeout bounds how long other members are waited for.
const askTimeout = 500 * time.Millisecond

// maxTelling bounds the statistics that are being made for other members at once.
const maxTelling = 8

// ClusterStats asks all other members for their Stats, and waits for them for half a second, or until ctx ends. Members of releases that
// cannot be asked are among the silent ones.
func (n *Node) ClusterStats(ctx context.Context) ClusterStats {
	told, silent := n.askStats(ctx)
	s := ClusterStats{Members: make(map[string]Stats, len(told)), Silent: silent}
	for id, t := range told {
		s.Members[id] = t.Stats
	}
	s.Keyspaces = SumKeyspaces(s.Members)
	return s
}

// SumKeyspaces returns the sums of what members have counted, as ClusterStats.Keyspaces.
func SumKeyspaces(members map[string]Stats) map[string]KeyspaceStats {
	sums := make(map[string]KeyspaceStats)
	for _, m := range members {
		for name, ks := range m.Keyspaces {
			sum := sums[name]
			sum.add(&ks)
			sums[name] = sum
		}
	}
	return sums
}

// told is what one member tells of itself.
type told struct {
	Stats Stats
	Plots map[string]plot // by keyspace
}

// tell is what this node tells of itself.
func (n *Node) tell() told {
	t := told{Stats: n.Stats(), Plots: make(map[string]plot)}
	now := time.Now()
	for name, samples := range n.History() {
		t.Plots[name] = plotOf(samples, now)
	}
	return t
}

// askStats asks the other members, and this one.
func (n *Node) askStats(ctx context.Context) (all map[string]told, silent map[string]string) {
	all, silent = askAll[told](ctx, n, transport.Request{Op: transport.OpStats})
	for id, t := range all {
		t.Stats.mapKeys(rawKey)
		all[id] = t
	}
	all[n.ID()] = n.tell()
	return all, silent
}

// askAll sends a request to all other members, and returns what those told that answered in time, and why there is nothing of the others.
func askAll[T any](ctx context.Context, n *Node, req transport.Request) (all map[string]T, silent map[string]string) {
	all, silent = make(map[string]T), make(map[string]string)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req.Budget = askTimeout
	calls := make(map[string]*transport.Call)
	m := n.members.Load()
	for i, p := range m.peers {
		if p == nil {
			continue
		}
		call := n.transport.NewCall()
		call.Request = req
		p.Start(call)
		calls[m.Members[i].ID] = call
	}
	for id, call := range calls {
		select {
		case <-call.Done():
		case <-ctx.Done():
			if call.Abandon() {
				silent[id] = "no answer in time"
				continue
			}
			<-call.Done()
		}
		var t T
		if err := answerOf(call, &t); err != nil {
			silent[id] = err.Error()
		} else {
			all[id] = t
		}
		call.Free()
	}
	return all, silent
}

// answerOf decodes what a member told.
func answerOf(call *transport.Call, to any) error {
	switch {
	case call.Err != nil:
		return call.Err
	case call.Reply.Status == transport.StatusUnknownKeyspace && call.Request.Key != "":
		return errors.New("nearcache: the keyspace is not open there")
	case call.Reply.Status == transport.StatusUnknownKeyspace:
		return errors.New("nearcache: a release that cannot be asked for statistics")
	case call.Reply.Status != transport.StatusOK:
		return errors.New("nearcache: busy, or a release that cannot be asked for statistics")
	}
	if err := json.Unmarshal(call.Reply.Value, to); err != nil {
		return fmt.Errorf("nearcache: statistics that make no sense: %w", err)
	}
	return nil
}

// serveStats tells another member what this one has counted, or with a key what it knows of that: on a goroutine of its own, since it takes
// longer than anything else that is asked for on a lane.
func (n *Node) serveStats(s *transport.Session, id uint32, req *transport.Request, rep *transport.Reply) bool {
	ks, key := n.keyspace(req.Keyspace), strings.Clone(req.Key)
	if key != "" && ks == nil {
		rep.Status = transport.StatusUnknownKeyspace
		return true
	}
	started := n.telling.Add(1) <= maxTelling && n.run("stats", func() {
		defer n.telling.Add(-1)
		var v any
		if key != "" {
			v = ks.view(key)
		} else {
			t := n.tell()
			t.Stats.mapKeys(textKey)
			v = t
		}
		rep := transport.Reply{Status: transport.StatusOK, HasValue: true}
		var err error
		if rep.Value, err = json.Marshal(v); err != nil || len(rep.Value) > transport.MaxValueBytes {
			rep = transport.Reply{Status: transport.StatusBusy}
		}
		s.Answer(id, &rep)
	})
	if !started {
		n.telling.Add(-1)
		rep.Status = transport.StatusBusy
	}
	return !started
}

// mapKeys replaces all keys.
func (s *Stats) mapKeys(by func(key string) string) {
	for name, ks := range s.Keyspaces {
		ks.mapKeys(by)
		s.Keyspaces[name] = ks
	}
}

// mapKeys replaces all keys. What Top was stays as it is.
func (s *KeyspaceStats) mapKeys(by func(key string) string) {
	s.Top = slices.Clone(s.Top)
	for i := range s.Top {
		s.Top[i].Key = by(s.Top[i].Key)
	}
}

// add adds what another member counted in the same keyspace.
func (s *KeyspaceStats) add(o *KeyspaceStats) {
	addFields(reflect.ValueOf(s).Elem(), reflect.ValueOf(o).Elem())
	reads := slices.Clone(o.Top)
	for i := range reads {
		reads[i] = reads[i].asRead()
	}
	s.Top = mergeTop(s.Top, reads)
}

// addFields adds all numbers of a struct, and of the structs and arrays in it.
func addFields(to, from reflect.Value) {
	switch to.Kind() {
	case reflect.Struct:
		for i := range to.NumField() {
			addFields(to.Field(i), from.Field(i))
		}
	case reflect.Array:
		for i := range to.Len() {
			addFields(to.Index(i), from.Index(i))
		}
	case reflect.Uint64:
		to.SetUint(to.Uint() + from.Uint())
	case reflect.Int64:
		to.SetInt(to.Int() + from.Int())
	default: // Top
	}
}

// mergeTop adds the keys of two lists, and returns those that are read most.
func mergeTop(a, b []KeyStats) []KeyStats {
	byKey := make(map[string]KeyStats, len(a)+len(b))
	for _, list := range [][]KeyStats{a, b} {
		for _, k := range list {
			if sum, ok := byKey[k.Key]; ok {
				k = sum.plus(&k)
			}
			byKey[k.Key] = k
		}
	}
	all := make([]KeyStats, 0, len(byKey))
	for _, k := range byKey {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b KeyStats) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Key, b.Key))
	})
	return all[:min(len(all), topKeys)]
}

// plus adds what another member counted of the same key.
func (k KeyStats) plus(o *KeyStats) KeyStats {
	k.Rate += o.Rate
	k.RateError += o.RateError
	k.NearHits += o.NearHits
	k.OwnerHits += o.OwnerHits
	k.OriginGets += o.OriginGets
	k.Failed += o.Failed
	k.Served += o.Served
	k.Loads += o.Loads
	k.Bytes += o.Bytes
	k.LoadTime = max(k.LoadTime, o.LoadTime)
	k.Since = max(k.Since, o.Since)
	k.Left = max(k.Left, o.Left)
	k.HotSince = max(k.HotSince, o.HotSince)
	k.Pinned = k.Pinned || o.Pinned
	return k
}

// reads is how often the node's own callers asked for the key.
func (k KeyStats) reads() uint64 { return k.NearHits + k.OwnerHits + k.OriginGets + k.Failed }

// asRead leaves out of the rates what other members asked for: in a sum over members that is a read of theirs already.
func (k KeyStats) asRead() KeyStats {
	if k.Served > 0 {
		share := float64(k.reads()) / float64(k.reads()+k.Served)
		k.Rate *= share
		k.RateError *= share
	}
	return k
}
