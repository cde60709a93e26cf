package nearcache

import (
	"fmt"
	"html/template"
	"time"
)

// pageFunctions are those of the templates.
func pageFunctions() template.FuncMap {
	return template.FuncMap{
		"style":     func() template.CSS { return template.CSS(pageStyle) },
		"percent":   formatPercent,
		"share":     func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) },
		"bytes":     formatBytes,
		"ago":       formatAgo,
		"since":     func(t time.Time) string { return formatTook(time.Since(t)) },
		"took":      formatTook,
		"count":     formatCount,
		"rate":      formatRate,
		"view":      func(v uint64) string { return fmt.Sprintf("%016x", v) },
		"shortview": func(v uint64) string { return fmt.Sprintf("%016x", v)[:8] },
	}
}

func formatPercent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

func formatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/unit, 0
	for f >= unit && i < 3 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGT"[i])
}

func formatAgo(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return formatTook(d) + " ago"
}

// formatTook rounds a duration to what can be read.
func formatTook(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Microsecond:
		return "<1µs"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		d = d.Round(time.Second)
		if d%time.Minute == 0 {
			return fmt.Sprintf("%dm", d/time.Minute)
		}
		return d.String()
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// formatRate rounds a number of events a second.
func formatRate(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f < 10:
		return fmt.Sprintf("%.1f", f)
	}
	return formatCount(uint64(f + 0.5))
}

// formatCount groups the digits of a counter.
func formatCount(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
