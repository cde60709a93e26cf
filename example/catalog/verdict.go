package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// repeatTolerance is the share of loads that may be unnecessary although no node was killed or stalled. There are two reasons for some.
// A load that waits for its slot in the node (Config.MaxLoads) while its product is invalidated runs for those who asked before, may not be
// stored, and looks here as if it had begun after the invalidation. And a node that does not answer within PeerTimeout is passed over by
// the others, as it should be; the stalls that the nodes notice themselves do not show every such moment of a busy machine. In a run of few
// loads one such moment is a large share, so a few are always allowed.
const (
	repeatTolerance = 0.005
	minRepeats      = 5
)

// judge compares what happened with what the library promises.
func (r *run) judge(s *summary) []verdict {
	v := []verdict{
		judgeActivity(s),
		judgeFailures(s),
		judgeAnswers(s),
		judgeStaleness(s),
		judgeOwnNode(s),
		judgeInvalidations(s),
		judgeRepeats(s),
		judgeCapacity(s),
	}
	counters, ends := verdict{Pass: true, What: "the nodes' counters are exact"}, verdict{Pass: true, What: "every node closed in order"}
	loads := r.origin.loadsOf()
	var problems, endings []string
	checked := 0
	for _, p := range r.cluster.nodes {
		if s.Killed != nil && nodeName(p.number) == s.Killed.Node {
			continue
		}
		if text := p.ending(); text != "" {
			endings = append(endings, text)
			continue
		}
		checked++
		r.tally.locked(func() {
			problems = append(problems, compareCounters(p, &r.tally.nodes[p.number], loads[p.number])...)
		})
	}
	counters.Pass, counters.Detail = len(problems) == 0 && checked > 0, fmt.Sprintf("Stats of %d nodes agree with what was counted outside", checked)
	if len(problems) > 0 {
		counters.Detail = strings.Join(problems, "; ")
	}
	ends.Pass, ends.Detail = len(endings) == 0, "Close returned nil, the process ended"
	if !ends.Pass {
		ends.Detail = strings.Join(endings, "; ")
	}
	return append(v, counters, ends)
}

func judgeActivity(s *summary) verdict {
	tiers := []tier{tierNear, tierOwn, tierPeer, tierOrigin}
	if s.Nodes == 1 {
		tiers = []tier{tierNear, tierOrigin}
	}
	var missing []string
	for _, t := range tiers {
		if s.Tiers[t].Reads == 0 {
			missing = append(missing, t.String())
		}
	}
	detail := count3(s.Reads) + " reads, some answered by every tier"
	if len(missing) > 0 {
		detail = fmt.Sprintf("%s reads, none answered by: %s", count3(s.Reads), strings.Join(missing, ", "))
	}
	return verdict{s.Reads > 0 && len(missing) == 0, "every part had something to do", detail}
}

func judgeFailures(s *summary) verdict {
	failed := total(s.Failures)
	detail := fmt.Sprintf("%s reads, %s errors", count3(s.Reads), count3(failed))
	if failed > 0 {
		detail += ": " + commonest(s.Failures)
	}
	return verdict{failed == 0, "no read failed", detail}
}

func judgeAnswers(s *summary) verdict {
	wrong := total(s.Wrong) + s.Staleness.Unknown
	detail := "all name, price and text match a version that the database had"
	if wrong > 0 {
		detail = fmt.Sprintf("%s do not match any version; %s", count3(wrong), commonest(s.Wrong))
	}
	return verdict{wrong == 0, "every answer was right", detail}
}

func judgeStaleness(s *summary) verdict {
	t := &s.Staleness
	detail := fmt.Sprintf("%s reads compared; the oldest price seen was out of date for %s, bound %s", count3(t.Judged), t.Worst, t.Promised)
	if t.Stale == 0 {
		detail = fmt.Sprintf("%s reads compared, none was out of date; bound %s", count3(t.Judged), t.Promised)
	}
	if t.Beyond > 0 {
		detail = fmt.Sprintf("%s reads beyond the bound of %s, worst %s", count3(t.Beyond), t.Promised, t.Worst)
	}
	return verdict{t.Beyond == 0, "no old price beyond the bound", detail}
}

func judgeOwnNode(s *summary) verdict {
	n := s.Staleness.OwnNode
	return verdict{n == 0, "who changes a price never sees the old one", fmt.Sprintf("%s old prices on the node that had invalidated", count3(n))}
}

func judgeInvalidations(s *summary) verdict {
	w := &s.Writes
	unconfirmed := total(w.Unconfirmed)
	detail := fmt.Sprintf("%s of %s, half within %s, the slowest took %s", count3(w.Confirmed), count3(w.Committed), w.P50, w.Max)
	if unconfirmed > 0 {
		detail += fmt.Sprintf("; calls repeated: %s, as %s", count3(unconfirmed), commonest(w.Unconfirmed))
	}
	ok := unconfirmed == 0 && w.Confirmed == w.Committed
	switch k := s.Killed; {
	case k != nil:
		// While a dead node is on the member list its products cannot be confirmed, and Invalidate says so. Afterwards they are.
		early := ms(s.Seconds*float64(time.Second)) < k.At+ms(crashWindow)
		ok = early || w.Confirmed == w.Committed
	case s.Stalls > 0:
		ok = w.Confirmed >= w.Committed-unconfirmed // a repetition may have come too late
	}
	return verdict{ok, "every invalidation was confirmed", detail}
}

func judgeRepeats(s *summary) verdict {
	allowed := max(minRepeats, int(repeatTolerance*float64(s.Origin.Loads)))
	detail := fmt.Sprintf("%s loads, %s of them unnecessary", count3(s.Origin.Loads), count3(s.LoadsBy.Repeated))
	if s.LoadsBy.Repeated > 0 {
		detail += fmt.Sprintf(" (%s allowed)", count3(allowed))
	}
	if n := s.LoadsBy.Stalled; n > 0 {
		detail += fmt.Sprintf("; %s more as the machine stopped a node for up to %s", count3(n), s.LongestStall)
	}
	return verdict{s.LoadsBy.Repeated <= allowed, "one load for each missing product", detail}
}

func judgeCapacity(s *summary) verdict {
	detail := fmt.Sprintf("%s in the busiest second, %s possible; the longest wait for the database was %s",
		count3(s.Origin.Busiest), count3(s.Capacity), s.Origin.LongestWait)
	// Whatever waits there is over the capacity. One load's time is allowed: a node counts a load as over when it has the answer, the
	// database when it has sent it.
	return verdict{s.Origin.Busiest <= s.Capacity && s.Origin.LongestWait <= s.LoadTime, "the database was never asked too much", detail}
}

// ending says what was wrong about the end of a node that was not killed; empty: nothing.
func (p *process) ending() string {
	select {
	case <-p.exited:
	default:
		return nodeName(p.number) + " still runs"
	}
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed == nil || closed.Error != "" || p.err != nil {
		return p.failure().Error()
	}
	return ""
}

// compareCounters returns what differs between a node's own statistics and what was counted outside.
func compareCounters(p *process, n *nodeTally, loads uint64) (problems []string) {
	p.mu.Lock()
	stats := p.stats
	p.mu.Unlock()
	if stats == nil {
		return []string{nodeName(p.number) + " sent no statistics"}
	}
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"Gets", stats.Gets, n.total()},
		{"NearHits", stats.NearHits, n.reads[tierNear]},
		{"OwnerHits", stats.OwnerHits, n.reads[tierOwn] + n.reads[tierPeer]},
		{"OriginGets", stats.OriginGets, n.reads[tierOrigin]},
		{"NotFound + Failed", stats.NotFound + stats.Failed, n.reads[tierFailed]},
		{"Loads", stats.Loads, loads},
	} {
		if c.got != c.want {
			problems = append(problems, fmt.Sprintf("%s: %s is %d, counted %d", nodeName(p.number), c.name, c.got, c.want))
		}
	}
	return problems
}

// commonest returns the most frequent text of m with its count; empty for an empty m.
func commonest(m map[string]int) string {
	type entry struct {
		text string
		n    int
	}
	var all []entry
	for text, n := range m {
		all = append(all, entry{text, n})
	}
	if len(all) == 0 {
		return ""
	}
	top := slices.MaxFunc(all, func(a, b entry) int { return a.n - b.n })
	return fmt.Sprintf("%s times %q", count3(top.n), top.text)
}
