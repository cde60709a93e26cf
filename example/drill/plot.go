package main

import (
	"fmt"
	"strings"
	"time"
)

const (
	plotWidth, plotHeight = 900, 220
	margin                = 40
)

// colours of what readers got, as of kinds.
func colours() [kinds]string {
	return [kinds]string{"#4c9f70", "#e0b040", "#8899cc", "#cc4444", "#8844aa"}
}

// draw returns the time lines of both runs as an SVG picture: reads stacked by what they got, and the database's queries as a line.
func draw(s scenario, both []*meter) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`,
		plotWidth+2*margin, len(both)*(plotHeight+2*margin))
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>`)
	for i, m := range both {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`, margin, margin+i*(plotHeight+2*margin))
		fmt.Fprintf(&b, `<text y="-24">break %d: %s, protection %s</text>`, s.number, s.title, onOff(i == 1))
		b.WriteString(`<text y="-8" font-size="11">reads that got a fresh value (green), a stale one (yellow), were shed (blue), failed (red), ` +
			`got an old one unawares (purple); queries a second (black) and what the database can do (dashed)</text>`)
		m.plot(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (m *meter) plot(b *strings.Builder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := int(m.s.lasts / slot)
	top := float64(m.s.reads) * slot.Seconds() * 1.2
	x := func(i int) float64 { return plotWidth * float64(i) / float64(n) }
	y := func(v float64) float64 { return plotHeight * (1 - min(v/top, 1)) }
	fmt.Fprintf(b, `<rect x="%.1f" width="%.1f" height="%d" fill="#eee"/>`, x(int(m.s.from/slot)), x(int(m.s.to/slot))-x(int(m.s.from/slot)), plotHeight)
	for i := range n {
		sum := 0.0
		for k, colour := range colours() {
			v := float64(m.seen[i][k])
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.2f" height="%.1f" fill="%s"/>`,
				x(i), y(sum+v), plotWidth/float64(n)+0.3, y(sum)-y(sum+v), colour)
			sum += v
		}
	}
	limit := y(m.db.perSecond() * slot.Seconds())
	fmt.Fprintf(b, `<line x1="0" x2="%d" y1="%.1f" y2="%.1f" stroke="black" stroke-dasharray="4"/>`, plotWidth, limit, limit)
	b.WriteString(`<polyline fill="none" stroke="black" points="`)
	for i := 1; i < len(m.queries); i++ {
		fmt.Fprintf(b, "%.1f,%.1f ", x(i), y(float64(m.queries[i]-m.queries[i-1])))
	}
	b.WriteString(`"/>`)
	for at := time.Duration(0); at <= m.s.lasts; at += 2 * time.Second {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%v</text>`, x(int(at/slot)), plotHeight+15, at)
	}
}
