package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

const (
	labelWidth, barWidth = 460, 400
	rowHeight, top       = 20, 44
	decades              = 1.0 // that the scale goes to either side of the goal
)

// draw returns the rows as an SVG picture: how far the measured value is from its goal, on a logarithmic scale. To the right it is better.
func draw(rows []row) string {
	var b strings.Builder
	height := top + rowHeight*len(rows) + 10
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`, labelWidth+barWidth+20, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>`)
	middle := labelWidth + barWidth/2
	fmt.Fprintf(&b, `<text x="%d" y="18" text-anchor="middle">times better than the goal (right), or worse</text>`, middle)
	for _, v := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10} {
		x := position(v)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/><text x="%.1f" y="%d" text-anchor="middle" fill="#666">%g</text>`,
			x, x, top, height-8, map[bool]string{true: "black", false: "#ddd"}[v == 1], x, top-6, max(v, 1/v))
	}
	for i, r := range rows {
		y, x := top+i*rowHeight, position(r.better())
		colour := map[bool]string{true: "#4c9f70", false: "#cc4444"}[r.met()]
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s: %s</text>`, labelWidth-6, y+14, html.EscapeString(r.what), short(r.measured))
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`,
			min(x, float64(middle)), y+3, max(1, math.Abs(x-float64(middle))), rowHeight-6, colour)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// better is how many times better than the goal it is. A goal of nothing is met or missed by as much as the scale shows.
func (r row) better() float64 {
	v := r.bound / r.measured
	if r.atLeast {
		v = r.measured / r.bound
	}
	if r.bound == 0 || r.measured <= 0 {
		return map[bool]float64{true: math.Inf(1), false: 0}[r.met()]
	}
	return v
}

// position is where a multiple of the goal lies, at the edges what is beyond them.
func position(better float64) float64 {
	at := min(max(math.Log10(better), -decades), decades) / decades
	return labelWidth + barWidth/2*(1+at)
}
