package main

import (
	"fmt"
	"strings"
)

// page collects lines.
type page struct {
	strings.Builder
	style style
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) title(text string) { p.line("\n%s", p.style.title(text)) }

// fact is a line with a name, a figure, and what there is to say about it.
func (p *page) fact(name, figure, remark string) {
	p.line("%s", strings.TrimRight(fmt.Sprintf("  %s %s   %s", label(name), right(figure, 8), remark), " "))
}

// labelWidth is the width of the first column, so that the tables fit in 80.
const labelWidth = 32

func label(s string) string { return s + spaces(labelWidth-columns(s)) }

// table returns the summary for a human reader.
func (s *summary) table(st style) string {
	p := &page{style: st}
	s.readsTable(p)
	s.costTable(p)
	s.pricesTable(p)
	if s.Killed != nil {
		s.killedTable(p)
	}
	s.verdictsTable(p)
	return p.String()
}

func (s *summary) readsTable(p *page) {
	p.title(fmt.Sprintf("%s reads in %.1f s, and who answered them", count3(s.Reads), s.Seconds))
	p.line("%s", p.style.dim(fmt.Sprintf("  %s %8s %7s %8s %8s %8s", spaces(labelWidth), "reads", "share", "median", "p99", "slowest")))
	for t := tierNear; t < tiers; t++ {
		p.line("  %s %8s %7s %8s %8s %8s", label(explain(t)), count3(s.Tiers[t].Reads), percent(s.Tiers[t].Share),
			s.Tiers[t].P50, s.Tiers[t].P99, s.Tiers[t].Max)
	}
	if f := s.Tiers[tierFailed]; f.Reads > 0 {
		p.line("  %s %s %7s %8s %8s %8s", label(p.style.bad("failed")), right(p.style.bad(count3(f.Reads)), 8), percent(f.Share),
			f.P50, f.P99, f.Max)
	}
}

// explain says what a tier is to somebody who sees it for the first time.
func explain(t tier) string {
	switch t {
	case tierNear:
		return "near copy, in the same process"
	case tierOwn:
		return "owner's copy, in the same process"
	case tierPeer:
		return "owner's copy, in another process"
	case tierOrigin:
		return "database, a load for all who wait"
	default:
		return t.String()
	}
}

func (s *summary) costTable(p *page) {
	p.title(fmt.Sprintf("What the database had to do: it can do %s loads a second, %s each", count3(s.Capacity), s.LoadTime))
	p.line("%s", p.style.dim(fmt.Sprintf("  %s %8s %17s %17s", spaces(labelWidth), "loads", "busiest second", "longest wait")))
	s.costLine(p, "with nearcache (measured)", s.Origin)
	s.costLine(p, separateName(s.Nodes)+" (computed)", s.Separate)
	s.costLine(p, "no cache (computed)", s.NoCache)
	why := s.LoadsBy
	parts := []string{count3(why.First) + " first reads", count3(why.Expired) + " expired", count3(why.Invalidated) + " price changes"}
	if s.Killed != nil {
		parts = append(parts, count3(why.Lost)+" lost")
	}
	if why.Stalled > 0 {
		parts = append(parts, count3(why.Stalled)+" stalls")
	}
	p.line("%s", p.style.dim("  why: "+strings.Join(append(parts, count3(why.Repeated)+" unnecessary"), ", ")))
}

func separateName(nodes int) string {
	if nodes == 1 {
		return "a cache in the process"
	}
	return fmt.Sprintf("%d separate caches", nodes)
}

func (s *summary) costLine(p *page, name string, c costSummary) {
	wait := c.LongestWait.String()
	switch {
	case c.LongestWait == 0:
		wait = "none"
	case c.LastWait > c.LongestWait*9/10:
		wait += ", growing"
	}
	ok := c.Busiest <= s.Capacity
	load := p.style.graded(ok, fmt.Sprintf("%s = %.0f %%", count3(c.Busiest), 100*float64(c.Busiest)/float64(s.Capacity)))
	p.line("  %s %8s %s %s", label(name), count3(c.Loads), right(load, 17), right(p.style.graded(c.LongestWait <= s.LoadTime, wait), 17))
}

func (s *summary) pricesTable(p *page) {
	w, t := &s.Writes, &s.Staleness
	p.title("Price changes: each committed to the database, then invalidated")
	p.fact("committed", count3(w.Committed), "")
	p.fact("invalidations confirmed", count3(w.Confirmed), fmt.Sprintf("p99 %s, slowest %s", w.P99, w.Max))
	if n := total(w.Unconfirmed); n > 0 {
		p.fact("calls not confirmed, so repeated", count3(n), "")
	}
	worst := ""
	if t.Stale > 0 {
		worst = "at most " + t.Worst.String() + " later"
	}
	p.fact("reads of an old price after that", count3(t.Stale), worst)
	p.fact("beyond the bound of "+t.Promised.String(), p.style.graded(t.Beyond == 0, count3(t.Beyond)), "")
}

func (s *summary) killedTable(p *page) {
	k := s.Killed
	p.title(fmt.Sprintf("%s was killed after %s: what that cost the others in the next %s", k.Node, k.At, ms(crashWindow)))
	p.fact("their reads", count3(k.Reads), fmt.Sprintf("p99 %s, slowest %s", k.P99, p.style.bold(k.Slowest.String())))
	p.fact("failed", p.style.graded(k.Failed == 0, count3(k.Failed)), "")
	p.fact("extra loads for what it held", count3(k.ExtraLoads), fmt.Sprintf("all loads: at most %s a second", count3(k.Busiest)))
}

func (s *summary) verdictsTable(p *page) {
	p.title("Verdicts")
	for _, v := range s.Verdicts {
		word := "PASS"
		if !v.Pass {
			word = "FAIL"
		}
		p.line("  %s  %s", p.style.graded(v.Pass, word), v.What)
		p.line("        %s", p.style.dim(v.Detail))
	}
	p.line("")
	if s.Pass {
		p.line("%s", p.style.good("All verdicts pass."))
	} else {
		p.line("%s", p.style.bad("Not all verdicts pass: exit code 1."))
	}
}
