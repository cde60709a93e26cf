package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// display shows the progress of a run: a picture that is redrawn on a terminal, a line a second elsewhere.
type display struct {
	out      io.Writer
	terminal bool
	style    style
	drawn    int    // lines of the picture on the terminal
	headed   bool   // elsewhere: the columns have their heads
	event    string // the last one told
}

// frame is what the display knew at one instant; rates come from two of them.
type frame struct {
	at     time.Duration
	glance glance
	loads  int // of the origin
}

func newDisplay(f *os.File) *display {
	terminal := isTerminal(f)
	return &display{out: f, terminal: terminal, style: style(terminal && os.Getenv("NO_COLOR") == "")}
}

// How often the picture is drawn, and the time that its rates are over.
const (
	redrawEvery = time.Second / 4
	lineEvery   = time.Second
)

// begin introduces the stage.
func (d *display) begin(r *run) {
	p := &page{style: d.style}
	cfg := r.cfg
	p.line("%s", d.style.title("nearcache: one cache, shared by the processes of a shop"))
	p.line("")
	p.line("  visitors   %s reads a second, the recorded visits of %q", count3(cfg.rate), cfg.trace)
	p.line("  database   bbolt, %s products, limited to %s loads a second of %s", count3(len(r.trace.Keys())), count3(cfg.capacity), ms(cfg.latency))
	p.line("  prices     %d changes a second", cfg.writes)
	for i, url := range r.cluster.pages {
		p.line("  %-9s  %-16s statistics: %s", nodeName(i), r.cluster.addrs[i], d.style.bold(url))
	}
	p.line("")
	d.write(p.String())
}

// follow shows the progress until ctx ends.
func (d *display) follow(ctx context.Context, r *run) {
	every := lineEvery
	if d.terminal {
		every = redrawEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	frames := []frame{d.look(r)}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := d.look(r)
		if d.terminal {
			d.draw(d.picture(r, frames[0], now))
		} else {
			d.write(d.progress(r, frames[0], now))
		}
		frames = append(frames, now)
		for len(frames) > 1 && frames[1].at <= now.at-lineEvery {
			frames = frames[1:]
		}
		if !d.terminal {
			frames = frames[len(frames)-1:]
		}
	}
}

// end leaves the last picture where it is.
func (d *display) end() {
	if d.terminal {
		d.write(escape + "?7h")
	}
}

func (d *display) look(r *run) frame {
	f := frame{glance: r.tally.glance()}
	r.origin.locked(func(c *cost, _ *ledger) { f.loads = c.loads })
	f.at = r.clock.now()
	return f
}

// progress is one line about the time between two frames, with the heads of its columns at the start, and another when something happens.
func (d *display) progress(r *run, from, to frame) string {
	s := span{from: from, to: to, cfg: r.cfg}
	p := &page{style: d.style}
	if !d.headed {
		d.headed = true
		p.line("%8s %8s %8s %9s %8s %9s %12s %11s %7s", "time", "reads/s", "near", "own shard", "peer", "database", "its capacity", "old prices", "errors")
	}
	if event := s.event(); event != d.event {
		d.event = event
		p.line("          %s", event)
	}
	var reads [tiers]uint64
	for i := range to.glance.nodes {
		for t, n := range s.reads(i) {
			reads[t] += n
		}
	}
	g := to.glance
	p.line("%8s %8s %8s %9s %8s %9s %12s %11s %7s", fmt.Sprintf("%.1f s", to.at.Seconds()), count3(int(s.perSecond(sum(reads)))),
		percent(share(reads, tierNear)), percent(share(reads, tierOwn)), percent(share(reads, tierPeer)), percent(share(reads, tierOrigin)),
		fmt.Sprintf("%.0f %%", 100*s.load(to.loads-from.loads)), count3(g.stale), count3(g.failed+g.wrong))
	return p.String()
}

// picture is everything about the time between two frames.
func (d *display) picture(r *run, from, to frame) string {
	s := span{from: from, to: to, cfg: r.cfg}
	p := &page{style: d.style}
	if r.cfg.keep {
		p.line("  %5.1f s   running until Ctrl-C", to.at.Seconds())
	} else {
		done := to.at.Seconds() / r.cfg.duration.Seconds()
		p.line("  %5.1f s   %s  of %s", to.at.Seconds(), bar(min(done, 1), 48), ms(r.cfg.duration))
	}
	p.line("")
	p.line("%s", d.style.dim(fmt.Sprintf("  %-8s %7s %8s %9s %8s %9s %8s %8s", "", "reads/s", "near", "own shard", "peer", "database", "median", "p99")))
	for i := range to.glance.nodes {
		d.nodeLine(p, s, i)
	}
	p.line("")
	p.line("  %-18s %s", "database loads/s", d.style.dim("│ = what it can do"))
	d.loadLine(p, s, "with nearcache", to.loads-from.loads)
	d.loadLine(p, s, separateName(r.cfg.nodes), to.glance.separate-from.glance.separate)
	d.loadLine(p, s, "no cache", to.glance.noCache-from.glance.noCache)
	p.line("")
	g := to.glance
	p.line("  prices changed %s   old ones seen %s, worst %s, beyond bound %s   errors %s", d.style.bold(count3(g.committed)),
		d.style.bold(count3(g.stale)), ms(g.worst), d.style.graded(g.beyond == 0, count3(g.beyond)),
		d.style.graded(g.failed+g.wrong == 0, count3(g.failed+g.wrong)))
	p.line("  %s", d.style.bad(s.event()))
	return p.String()
}

func (d *display) nodeLine(p *page, s span, i int) {
	n := s.to.glance.nodes[i]
	reads := s.reads(i)
	if n.gone && sum(reads) == 0 {
		p.line("  %-8s %s", nodeName(i), d.style.bad("gone"))
		return
	}
	latency := n.latency.since(s.from.glance.nodes[i].latency)
	p.line("  %-8s %7s %8s %9s %8s %9s %8s %8s", nodeName(i), count3(int(s.perSecond(sum(reads)))), percent(share(reads, tierNear)),
		percent(share(reads, tierOwn)), percent(share(reads, tierPeer)), percent(share(reads, tierOrigin)),
		ms(latency.quantile(0.5)), ms(latency.quantile(0.99)))
}

// loadLine draws loads against the capacity, which is a third of the width.
func (d *display) loadLine(p *page, s span, name string, loads int) {
	const width, scale = 42, 3
	b := bar(s.load(loads)/scale, width)
	runes := []rune(b)
	if runes[width/scale] == '·' {
		runes[width/scale] = '│'
	}
	over := s.load(loads) > 1
	p.line("  %-18s %s %s", name, d.style.graded(!over, string(runes)), fmt.Sprintf("%6s %4.0f %%", count3(int(s.perSecond(uint64(loads)))), 100*s.load(loads)))
}

// draw replaces the picture. Lines are cut at the edge of a narrow terminal, since a wrapped one could not be found again.
func (d *display) draw(picture string) {
	var b strings.Builder
	b.WriteString(escape + "?7l")
	if d.drawn > 0 {
		fmt.Fprintf(&b, "%s%dA", escape, d.drawn)
	}
	lines := strings.Split(strings.TrimSuffix(picture, "\n"), "\n")
	for _, line := range lines {
		b.WriteString("\r" + line + escape + "K\n")
	}
	b.WriteString(escape + "?7h")
	d.drawn = len(lines)
	d.write(b.String())
}

func (d *display) write(s string) { _, _ = io.WriteString(d.out, s) }

// span is the time between two frames.
type span struct {
	from, to frame
	cfg      config
}

func (s span) perSecond(n uint64) float64 {
	return float64(n) / max(0.001, (s.to.at-s.from.at).Seconds())
}

// load returns loads in this time as a share of the capacity.
func (s span) load(loads int) float64 {
	return s.perSecond(uint64(max(0, loads))) / float64(s.cfg.capacity)
}

// reads returns the reads of node i in this time.
func (s span) reads(i int) (reads [tiers]uint64) {
	for t := range reads {
		reads[t] = s.to.glance.nodes[i].reads[t] - s.from.glance.nodes[i].reads[t]
	}
	return reads
}

// event says what else has happened.
func (s span) event() string {
	c := s.to.glance.crash
	if c.node < 0 {
		return ""
	}
	return fmt.Sprintf("%s was killed at %.1f s", nodeName(c.node), c.killed.Seconds())
}

func sum(reads [tiers]uint64) (n uint64) {
	for _, c := range reads {
		n += c
	}
	return n
}

func share(reads [tiers]uint64, t tier) float64 {
	return float64(reads[t]) / max(1, float64(sum(reads)))
}
