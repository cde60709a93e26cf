package sim

import (
	"slices"
	"time"

	"github.com/nearcache/nearcache/internal/shard"
	"github.com/nearcache/nearcache/invalidation"
)

// heard is what members have heard of the invalidations of one key. A copy that is marked stale is outside the bound, but no member gives out one
// that it knows to be invalidated (R17, R19). What is loaded after a member has heard is as new as the row was then.
type heard struct {
	dropped map[*node]drop // as an owner, or whoever may be one: lower versions are not in its shard, nor near copies that were asked for before
	events  map[logged]int
	kept    map[*node]kept
	told    map[*node]drop // in the log of a member: lower versions are no near copies that were asked for before
}

type drop struct {
	version int
	at      int64 // on the node's clock
}

// kept is the last near copy of a member, and when it was asked for.
type kept struct {
	value string
	asked int64 // on the node's clock
}

type logged struct {
	by  *node
	seq uint64
}

func newHeard() heard {
	return heard{dropped: make(map[*node]drop), events: make(map[logged]int), told: make(map[*node]drop), kept: make(map[*node]kept)}
}

// drops notes that a member drops keys.
func (c *checker) drops(n *node, keys ...string) {
	for _, k := range keys {
		h := &c.keys[k].heard
		h.dropped[n] = drop{version: max(h.dropped[n].version, c.w.origin.version(k)), at: n.exact()}
	}
}

// announced notes what an event of a member's log means.
func (c *checker) announced(n *node, seq uint64, e *invalidation.Event) {
	for _, k := range c.w.covered(e.Key, e.Tags) {
		c.keys[k].heard.events[logged{n, seq}] = c.w.origin.version(k)
	}
}

// hears notes that a member hears of an event.
func (c *checker) hears(n, by *node, e *invalidation.Event) {
	for _, k := range c.w.covered(e.Key, e.Tags) {
		h := &c.keys[k].heard
		h.told[n] = drop{version: max(h.told[n].version, h.events[logged{by, e.Seq}]), at: n.exact()}
	}
}

// covered returns the keys that an invalidation concerns: of one key, of tags, or with neither of all.
func (w *world) covered(key string, tags []string) (keys []string) {
	if key != "" {
		return []string{key}
	}
	for _, k := range w.keys {
		_, known := markOf(k).Tags()
		if len(tags) == 0 || !known || slices.Contains(tags, tagOf(k)) {
			keys = append(keys, k)
		}
	}
	return keys
}

// servesStale judges a stale copy that n's shard gives out.
func (c *checker) servesStale(n *node, v *shard.Value, lapsed bool) {
	key, _, _ := parse(string(v.Bytes))
	life := c.w.cfg.TTL // what Expire left lives no longer than it would have
	if lapsed {
		life += c.w.cfg.StaleOnError
	}
	c.serves(n, string(v.Bytes), c.keys[key].heard.dropped[n].version, life)
}

// servesNear judges a near copy that n takes for a stale one.
func (c *checker) servesNear(n *node, key, value string) {
	h := &c.keys[key].heard
	least := 0
	for _, d := range []drop{h.dropped[n], h.told[n]} {
		if k := h.kept[n]; k.value == value && k.asked < d.at {
			least = max(least, d.version)
		}
	}
	c.serves(n, value, least, c.w.cfg.TTL+c.w.cfg.StaleOnError)
}

func (c *checker) serves(n *node, value string, least int, life time.Duration) {
	key, version, loaded := parse(value)
	if version < least && c.w.cfg.Lag == 0 && !hasVersion(key) { // a Set may bring an older version afterwards
		c.violation("heard", key, "%s gives out %s as a stale copy, and has heard of the invalidation of version %d", n.id, value, least)
	}
	c.ends(n, value, loaded, life)
}

// fresh judges a value that n gives out as a fresh one, without a load.
func (c *checker) fresh(n *node, key, value string) {
	_, version, loaded := parse(value)
	life := c.w.cfg.TTL
	if c.w.isMissing(key, version) {
		life = c.w.cfg.NotFoundTTL
	}
	c.ends(n, value, loaded, life)
}

// ends checks that a value is not past its lifetime, as clocks have it.
func (c *checker) ends(n *node, value string, loaded int64, life time.Duration) {
	key, _, _ := parse(value)
	if hasVersion(key) {
		return // a Set may be under way for long
	}
	if age := c.w.now - loaded; age > int64(life+life/50+Slack) {
		c.violation("too old", key, "%s gives out %s after %v", n.id, value, time.Duration(age))
	}
}

// readStale checks a read that is marked stale: a process sees nothing from before an invalidation of its own (R16), and where nothing fails
// nothing is invalidated that somebody does not hear of.
func (c *checker) readStale(g *reading, h *history, version int, res result) {
	c.stale++
	if c.w.cfg.Lag > 0 {
		return
	}
	if age, of := oldest(hard(h.views[g.n].own), version, h.sets[version], g.start); age >= 0 {
		c.violation("own view", g.key, "%s reads %s (%s) %v after its own invalidation of version %d", g.n.id, res.value, res.tier, time.Duration(age), of.version)
	}
	if age, of := oldest(hard(h.acks), version, h.sets[version], g.start); age > int64(c.bound) && c.w.healthy {
		c.violation("stale copy", g.key, "%s reads %s (%s) %v after the invalidation of version %d", g.n.id, res.value, res.tier, time.Duration(age), of.version)
	}
}

// hard returns the invalidations that leave no stale copies.
func hard(acks []ack) []ack {
	return slices.DeleteFunc(slices.Clone(acks), func(a ack) bool { return a.soft })
}
