package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/nearcache/nearcache"
)

// show writes what happened between two snapshots, and the most read keys.
func show(out io.Writer, before, now snapshot, keys int) {
	elapsed := now.at.Sub(before.at).Seconds()
	fmt.Fprintf(out, "nearcache-top  %s  %d members", now.at.Format(time.TimeOnly), len(now.Members)+len(now.Silent))
	for _, id := range slices.Sorted(maps.Keys(now.Silent)) {
		fmt.Fprintf(out, "  no answer of %s", id)
	}
	fmt.Fprint(out, "\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "keyspace\tgets/s\tnear\towner\tloaded\tnot found\tfailed\tloads/s\tshed/s\tload p99\t")
	for _, name := range slices.Sorted(maps.Keys(now.Keyspaces)) {
		b, n := before.Keyspaces[name], now.Keyspaces[name]
		gets := diff(b.Gets, n.Gets)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%v\t\n", cut(name, 24), rate(gets/elapsed),
			percent(diff(b.NearHits, n.NearHits), gets), percent(diff(b.OwnerHits, n.OwnerHits), gets), percent(diff(b.OriginGets, n.OriginGets), gets),
			percent(diff(b.NotFound, n.NotFound), gets), percent(diff(b.Failed, n.Failed), gets),
			rate(diff(b.Loads, n.Loads)/elapsed), rate(diff(b.Shed, n.Shed)/elapsed), n.LoadLatency.Quantile(0.99).Round(time.Millisecond))
	}
	_ = w.Flush() // out is a terminal, or a test's buffer
	fmt.Fprintln(out)
	showMembers(out, before, now, elapsed)
	showKeys(out, now, keys)
}

// showMembers writes a line for each member.
func showMembers(out io.Writer, before, now snapshot, elapsed float64) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "member\tgets/s\thits\tloads/s\tshare\tdoubt\t")
	for _, id := range slices.Sorted(maps.Keys(now.Members)) {
		m := now.Members[id]
		var gets, hits, loads, share float64
		for name, n := range m.Keyspaces {
			b := before.Members[id].Keyspaces[name]
			gets += diff(b.Gets, n.Gets)
			hits += diff(b.NearHits+b.OwnerHits, n.NearHits+n.OwnerHits)
			loads += diff(b.Loads, n.Loads)
		}
		for _, e := range m.Members {
			if e.Member.ID == id {
				share = e.Share
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f %%\t%s\t\n", cut(id, 32), rate(gets/elapsed), percent(hits, gets), rate(loads/elapsed), 100*share,
			map[bool]string{true: "in doubt"}[m.Doubt])
	}
	_ = w.Flush() // as in show
	fmt.Fprintln(out)
}

// showKeys writes the most read keys of all keyspaces.
func showKeys(out io.Writer, now snapshot, most int) {
	type row struct {
		keyspace string
		nearcache.KeyStats
	}
	var rows []row
	for name, ks := range now.Keyspaces {
		for _, k := range ks.Top {
			rows = append(rows, row{name, k})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.keyspace, b.keyspace), cmp.Compare(a.Key, b.Key))
	})
	rows = rows[:min(len(rows), most)]
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "gets/s\tnear\tloads\tbytes\towner\thot\t  key")
	for _, k := range rows {
		hot := ""
		switch {
		case k.Pinned:
			hot = "pinned"
		case k.HotSince > 0:
			hot = k.HotSince.Round(time.Second).String()
		}
		reads := float64(k.NearHits + k.OwnerHits + k.OriginGets + k.Failed)
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t  %s\n", rate(k.Rate), percent(float64(k.NearHits), reads), k.Loads, k.Bytes, cut(k.Owner, 24), hot,
			cut(k.keyspace, 24)+" "+cut(k.Key, 48))
	}
	_ = w.Flush() // as in show
}

// diff is what a counter grew by; one that was set back began anew.
func diff(before, now uint64) float64 {
	if now < before {
		return float64(now)
	}
	return float64(now - before)
}

func rate(f float64) string {
	if f >= 10 || f == 0 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.1f", f)
}

func percent(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part/whole)
}

// cut shortens a name, and takes from it what a terminal would obey: a peer, or who invents keys, chose it.
func cut(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most-1]) + "…"
	}
	return s
}
