package nearcache

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// overview is the page.
type overview struct {
	Stats     Stats // this node's
	Config    NodeConfig
	Addr      string
	Whole     bool // of the whole cluster
	Refresh   int  // seconds; 0: never
	Silent    []silent
	Keyspaces []card
	Columns   []column
	Top       []keyRow
	Members   []memberRow
	Ring      []slice
	Shares    []slice

	query url.Values
}

// Title is for the page, as the methods below.
func (o *overview) Title() string { return "nearcache " + o.Stats.Node }

// Feeds are this node's.
func (o *overview) Feeds() []FeedStats { return o.Stats.Feeds }

// Events are this node's.
func (o *overview) Events() []Event { return o.Stats.Events }

// Unwell is the number of members that are not connected, or do not answer.
func (o *overview) Unwell() (n int) {
	for i := range o.Members {
		if !o.Members[i].Well() {
			n++
		}
	}
	return n
}

// Link links to this page with one parameter changed; no value: without it.
func (o *overview) Link(name, value string) string {
	q := maps.Clone(o.query)
	q.Set(name, value)
	if value == "" {
		q.Del(name)
	}
	return "?" + q.Encode()
}

// Key links to a key's page.
func (o *overview) Key(keyspace, key string) string { return keyLink(keyspace, key, o.Whole) }

// card is a keyspace on the page.
type card struct {
	Name string
	KeyspaceStats
	Areas                     []area
	GetsLine, LoadsLine       string
	Highest                   float64 // gets or loads a second
	PerSecond, LoadsPerSecond float64
	HitRatio                  string // of the last minute
	TTL, NearTTL              time.Duration
	MaxLoads                  int
}

// NearBar shows how full the budget of near copies is.
func (c *card) NearBar() bar { return barOf("near", float64(c.NearBytes), float64(c.NearMaxBytes)) }

// ShardBar shows how full the budget of entries is.
func (c *card) ShardBar() bar { return barOf("owner", float64(c.ShardBytes), float64(c.ShardMaxBytes)) }

// Reasons are those for which something was not stored or served, as far as there were any.
func (c *card) Reasons() (list []reason) {
	for _, m := range appendFamilies(nil, reasonFamilies(), "", []string{""}, []KeyspaceStats{c.KeyspaceStats}) {
		if m.Value > 0 {
			what := strings.TrimSuffix(strings.TrimPrefix(m.Name, "nearcache_"), "_total") + ": " + m.Labels[0].Value
			list = append(list, reason{strings.ReplaceAll(what, "_", " "), uint64(m.Value)})
		}
	}
	return list
}

// newCard describes a keyspace.
func newCard(name string, ks KeyspaceStats, p *plot, since time.Duration) card {
	c := card{Name: name, KeyspaceStats: ks, Areas: p.areas()}
	c.Highest = max(p.highest(p.gets), p.highest(p.loads))
	c.GetsLine, c.LoadsLine = p.line(p.gets, c.Highest), p.line(p.loads, c.Highest)
	c.PerSecond, c.LoadsPerSecond, c.HitRatio = p.rates(since)
	return c
}

// rates are of the last minute, or of the time since the node was started.
func (p *plot) rates(since time.Duration) (gets, loads float64, hits string) {
	sum, all := p.lately()
	s := min(max(since, time.Second), time.Minute).Seconds()
	return float64(all) / s, float64(sum[outLoads]) / s, formatPercent(sum[outNear]+sum[outOwner], all)
}

// column is one of the table of keys.
type column struct {
	Title, Class, Link string
	By                 bool // it is sorted by
	name               string
	less               func(a, b *keyRow) int
}

// keyRow is a key in the table.
type keyRow struct {
	KeyStats
	Keyspace string
	Link     string // to its page; empty: whoever asks may not see the key
	Bar      bar
}

// Reads is what this node's, or all members', own callers asked for.
func (k *keyRow) Reads() uint64 { return k.KeyStats.reads() }

// bar is a number as a picture.
type bar struct {
	Class string
	Width string // of 100
}

// barOf shows a part of a whole.
func barOf(class string, part, whole float64) bar {
	return bar{class, fmt.Sprintf("%.1f", 100*part/max(whole, part, 1e-9))}
}

// columns are those of the table of keys.
func columns() []column {
	number := func(of func(k *keyRow) float64) func(a, b *keyRow) int {
		return func(a, b *keyRow) int { return cmp.Compare(of(b), of(a)) }
	}
	return []column{
		{name: "key", Title: "key", less: func(a, b *keyRow) int { return cmp.Compare(a.Key, b.Key) }},
		{name: "keyspace", Title: "keyspace", Class: "left opt", less: func(a, b *keyRow) int { return cmp.Compare(a.Keyspace, b.Keyspace) }},
		{name: "rate", Title: "uses/s", less: number(func(k *keyRow) float64 { return k.Rate })},
		{name: "near", Title: "near", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.NearHits) / float64(max(k.Reads(), 1)) })},
		{name: "gets", Title: "gets", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.Reads()) })},
		{name: "served", Title: "for others", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.Served) })},
		{name: "loads", Title: "loads", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.Loads) })},
		{name: "loadtime", Title: "load took", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.LoadTime) })},
		{name: "bytes", Title: "bytes", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.Bytes) })},
		{name: "left", Title: "left", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.Left) })},
		{name: "owner", Title: "owner", less: func(a, b *keyRow) int { return cmp.Compare(a.Owner, b.Owner) }},
		{name: "hot", Title: "hot since", Class: "opt", less: number(func(k *keyRow) float64 { return float64(k.HotSince) })},
	}
}

// memberRow is a member on the page.
type memberRow struct {
	MemberStats
	Self      bool
	Color     string
	PerSecond float64 // of the last minute, if the whole cluster is asked
	HitRatio  string
}

// Well tells whether nothing is wrong with it.
func (m *memberRow) Well() bool { return m.Health() == "ok" }

// Health says what is wrong with it.
func (m *memberRow) Health() string {
	switch {
	case m.Leaving:
		return "leaving"
	case !m.Connected:
		return "not connected"
	case m.Breaker != "closed":
		return "silent"
	case !m.SameRing:
		return "other ring"
	}
	return "ok"
}

// Dropped is how often all copies from it were dropped.
func (m *memberRow) Dropped() uint64 { return m.Gaps + m.Resets + m.Restarts }

// pageParams is what the parameters of the page say.
type pageParams struct {
	refresh, keys int
	by            int // column of the keys
}

// parseParams checks the parameters of the page.
func parseParams(q url.Values) (p pageParams, problem string) {
	number := func(name string, fallback, most int) int {
		if q.Get(name) == "" {
			return fallback
		}
		n, err := strconv.Atoi(q.Get(name))
		if err != nil || n < 1 || n > most {
			problem = fmt.Sprintf("%s must be a number from 1 to %d", name, most)
		}
		return n
	}
	if q.Get("refresh") != "off" {
		p.refresh = number("refresh", 2, 3600)
	}
	p.keys = number("n", 20, topKeys)
	name := cmp.Or(q.Get("sort"), "rate")
	p.by = slices.IndexFunc(columns(), func(c column) bool { return c.name == name })
	if p.by < 0 {
		problem = "sort must be a column of the keys"
	}
	return p, problem
}

func (h *handler) servePage(w http.ResponseWriter, r *http.Request, whole bool) {
	params, problem := parseParams(r.URL.Query())
	if problem != "" {
		http.Error(w, problem, http.StatusBadRequest)
		return
	}
	n := h.node
	o := &overview{Config: n.cfg, Addr: n.Addr(), Whole: whole, Refresh: params.refresh, query: r.URL.Query()}
	var all map[string]told
	if whole {
		var why map[string]string
		all, why = n.askStats(r.Context())
		o.Silent = silentRows(why)
	} else {
		all = map[string]told{n.ID(): n.tell()}
	}
	o.Stats = all[n.ID()].Stats
	o.addKeyspaces(n, all)
	o.addMembers(n, all)
	o.addKeys(n, r, params)
	h.render(w, r, "page", o)
}

// addKeyspaces sums the keyspaces of those that answered.
func (o *overview) addKeyspaces(n *Node, all map[string]told) {
	sums, plots := make(map[string]KeyspaceStats), make(map[string]*plot)
	for _, t := range all {
		for name, ks := range t.Stats.Keyspaces {
			if sum := sums[name]; o.Whole {
				sum.add(&ks)
				ks = sum
			}
			sums[name] = ks
			if plots[name] == nil {
				plots[name] = new(plot)
			}
			p := t.Plots[name]
			plots[name].add(&p)
		}
	}
	for name, ks := range sums {
		c := newCard(name, ks, plots[name], time.Since(o.Stats.Started))
		if k := n.keyspace(name); k != nil {
			c.TTL, c.NearTTL, c.MaxLoads = k.policy.ttl, max(k.policy.nearTTL, 0), k.policy.maxLoads*len(all)
		}
		o.Keyspaces = append(o.Keyspaces, c)
	}
	slices.SortFunc(o.Keyspaces, func(a, b card) int { return cmp.Compare(a.Name, b.Name) })
}

// addMembers describes the members, as this node sees them.
func (o *overview) addMembers(n *Node, all map[string]told) {
	shares := make([]float64, len(o.Stats.Members))
	for i, m := range o.Stats.Members {
		shares[i] = m.Share
		row := memberRow{MemberStats: m, Self: m.Member.ID == o.Stats.Node, Color: memberColor(i), HitRatio: "-"}
		if t, ok := all[m.Member.ID]; ok {
			var p plot
			for _, q := range t.Plots {
				p.add(&q)
			}
			row.PerSecond, _, row.HitRatio = p.rates(time.Since(t.Stats.Started))
		}
		o.Members = append(o.Members, row)
	}
	o.Ring, o.Shares = ringSlicesOf(n.members.Load().Ring), shareSlices(shares)
}

// addKeys makes one table of the most read keys of all keyspaces.
func (o *overview) addKeys(n *Node, r *http.Request, p pageParams) {
	for i := range o.Keyspaces {
		for _, k := range o.Keyspaces[i].Top {
			o.Top = append(o.Top, keyRow{KeyStats: k, Keyspace: o.Keyspaces[i].Name})
		}
	}
	o.Columns = columns()
	slices.SortFunc(o.Top, func(a, b keyRow) int { return o.Columns[2].less(&a, &b) })
	o.Top = o.Top[:min(len(o.Top), p.keys)]
	highest := 0.0
	for i := range o.Top {
		highest = max(highest, o.Top[i].Rate)
	}
	for i := range o.Columns {
		c := &o.Columns[i]
		if c.name == "rate" && o.Whole {
			c.Title = "gets/s" // what members ask each other is left out
		}
		c.Link, c.By = o.Link("sort", c.name)+"#keys", i == p.by
		if c.By {
			c.Class += " by"
		}
	}
	for i := range o.Top {
		k := &o.Top[i]
		k.Bar = barOf("owner", k.Rate, highest)
		if k.HotSince > 0 || k.Pinned {
			k.Bar.Class = "origin"
		}
	}
	slices.SortStableFunc(o.Top, func(a, b keyRow) int { return o.Columns[p.by].less(&a, &b) })
	mayRead := n.mayRead(r)
	for i := range o.Top {
		k := &o.Top[i]
		if mayRead && len(k.Key) <= maxShown {
			k.Link = o.Key(k.Keyspace, k.Key)
		}
		k.Key = n.showKey(r, k.Key)
	}
}
