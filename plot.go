package nearcache

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nearcache/nearcache/ring"
)

// A plot covers the last minutes in slots of some seconds, the last one now.
const (
	plotSlots = 60
	slotTime  = HistorySeconds * time.Second / plotSlots
)

// plot is what was counted in each slot, by outcome.
type plot [plotSlots][outcomes]uint64

// The outcomes of gets, as they lie upon each other in a picture, and loads.
const (
	outNear = iota
	outOwner
	outOrigin
	outNotFound
	outFailed
	outLoads
	outcomes
)

// plotOf sorts samples into slots.
func plotOf(samples []Sample, now time.Time) (p plot) {
	for i := range samples {
		s := &samples[i]
		slot := plotSlots - 1 - int(now.Sub(s.At)/slotTime)
		if slot < 0 || slot >= plotSlots {
			continue
		}
		for out, n := range [outcomes]uint64{s.NearHits, s.OwnerHits, s.OriginGets, s.NotFound, s.Failed, s.Loads} {
			p[slot][out] += n
		}
	}
	return p
}

// add adds what another member counted in the same time.
func (p *plot) add(o *plot) {
	for slot := range p {
		for out, n := range o[slot] {
			p[slot][out] += n
		}
	}
}

// gets is how many keys were asked for in a slot.
func (p *plot) gets(slot int) (sum uint64) {
	for _, n := range p[slot][:outLoads] {
		sum += n
	}
	return sum
}

// lately sums the slots of the last minute.
func (p *plot) lately() (sum [outcomes]uint64, gets uint64) {
	for slot := plotSlots - int(time.Minute/slotTime); slot < plotSlots; slot++ {
		for out, n := range p[slot] {
			sum[out] += n
		}
		gets += p.gets(slot)
	}
	return sum, gets
}

// Pictures are plotWidth wide and plotHeight high; the page scales them.
const (
	plotWidth  = 300
	plotHeight = 60
)

// area is one coloured part of a picture: Class says what it stands for.
type area struct {
	Class string
	Path  string
}

// areas draws the shares of the outcomes, which fill the picture wherever anything was asked for.
func (p *plot) areas() []area {
	classes := [outLoads]string{"near", "owner", "origin", "absent", "failed"}
	var all []area
	var base [plotSlots]float64
	for out, class := range classes {
		var b strings.Builder
		top := base
		any := false
		for slot := range p {
			if gets := p.gets(slot); gets > 0 {
				top[slot] += float64(p[slot][out]) / float64(gets)
				any = any || p[slot][out] > 0
			}
		}
		for slot := range p { // steps: a slot is what was counted in it
			x, w := float64(slot)*plotWidth/plotSlots, float64(plotWidth)/plotSlots
			if h := top[slot] - base[slot]; h > 0 {
				fmt.Fprintf(&b, "M%.4g %.4gh%.4gv%.4gh%.4gz", x, plotHeight*(1-top[slot]), w, plotHeight*h, -w)
			}
		}
		if any {
			all = append(all, area{class, b.String()})
		}
		base = top
	}
	return all
}

// highest is the highest value a second of a rate. The last slot is not full yet: it is left out.
func (p *plot) highest(rate func(slot int) uint64) (highest float64) {
	for slot := range plotSlots - 1 {
		highest = max(highest, float64(rate(slot))/slotTime.Seconds())
	}
	return highest
}

// line draws a rate in a picture that is as high as highest.
func (p *plot) line(rate func(slot int) uint64, highest float64) string {
	if highest == 0 {
		return ""
	}
	var b strings.Builder
	for slot := range plotSlots - 1 {
		y := 1 + (plotHeight-2)*(1-float64(rate(slot))/slotTime.Seconds()/highest)
		fmt.Fprintf(&b, "%c%.4g %.4g", "ML"[min(slot, 1)], (float64(slot)+0.5)*plotWidth/plotSlots, y)
	}
	return b.String()
}

// loads is how many loads there were in a slot.
func (p *plot) loads(slot int) uint64 { return p[slot][outLoads] }

// ringSlices is how many places of the ring are looked at for a picture of it.
const ringSlices = 256

// slice is a part of the ring's picture.
type slice struct {
	Path  string
	Color string
}

// ringSlicesOf draws who owns what: neighbours with one owner are one slice.
func ringSlicesOf(r *ring.Ring) (all []slice) {
	const step = math.MaxUint64/ringSlices + 1
	owner := func(i int) int { return r.Owner(uint64(i) * step) }
	if len(r.Members()) == 0 || owner(0) < 0 {
		return nil
	}
	for from := 0; from < ringSlices; {
		to := from + 1
		for to < ringSlices && owner(to) == owner(from) {
			to++
		}
		all = append(all, slice{arc(float64(from)/ringSlices, float64(to)/ringSlices, 62, 78), memberColor(owner(from))})
		from = to
	}
	return all
}

// shareSlices draws how large the shares are.
func shareSlices(shares []float64) (all []slice) {
	at := 0.0
	for i, s := range shares {
		if s > 0 {
			all = append(all, slice{arc(at, at+s, 82, 98), memberColor(i)})
		}
		at += s
	}
	return all
}

// arc is the path of a part of a ring around the origin: from and to are parts of a turn, inner and outer radii.
func arc(from, to, inner, outer float64) string {
	if to-from > 0.9999 { // an arc that ends where it begins is none
		to = from + 0.9999
	}
	large := 0
	if to-from > 0.5 {
		large = 1
	}
	x := func(at, r float64) float64 { return r * math.Sin(2*math.Pi*at) }
	y := func(at, r float64) float64 { return -r * math.Cos(2*math.Pi*at) }
	return fmt.Sprintf("M%.2f %.2fA%g %g 0 %d 1 %.2f %.2fL%.2f %.2fA%g %g 0 %d 0 %.2f %.2fz",
		x(from, outer), y(from, outer), outer, outer, large, x(to, outer), y(to, outer),
		x(to, inner), y(to, inner), inner, inner, large, x(from, inner), y(from, inner))
}

// memberColor tells members apart: neighbours in the list have hues far from each other.
func memberColor(i int) string { return fmt.Sprintf("hsl(%d 55%% 52%%)", (200+i*137)%360) }
