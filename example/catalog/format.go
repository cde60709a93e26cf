package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// count3 writes n with a comma after each group of three digits.
func count3[N int | uint64](n N) string {
	s := strconv.FormatUint(uint64(max(n, 0)), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// String writes m with three significant digits in the unit that fits.
func (m ms) String() string {
	d := float64(m)
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if x := d / float64(u.size); x >= 0.9995 {
			switch {
			case x >= 99.95:
				return fmt.Sprintf("%.0f %s", x, u.name)
			case x >= 9.995:
				return fmt.Sprintf("%.1f %s", x, u.name)
			default:
				return fmt.Sprintf("%.2f %s", x, u.name)
			}
		}
	}
	return fmt.Sprintf("%.0f ns", d)
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// bar draws share of width cells, at most all of them; what is over shows as an arrow.
func bar(share float64, width int) string {
	n := int(share*float64(width) + 0.5)
	if n > width {
		return strings.Repeat("█", width-1) + "▶"
	}
	if n == 0 && share > 0 {
		return "▏" + strings.Repeat("·", width-1)
	}
	return strings.Repeat("█", n) + strings.Repeat("·", width-n)
}

// right pads s on the left to width columns.
func right(s string, width int) string { return spaces(width-columns(s)) + s }

func spaces(n int) string { return strings.Repeat(" ", max(0, n)) }

// columns counts the columns of s on a terminal: every character but the escape sequences takes one.
func columns(s string) int {
	n := 0
	for s != "" {
		if rest, ok := strings.CutPrefix(s, escape); ok {
			_, s, _ = strings.Cut(rest, "m")
			continue
		}
		_, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		n++
	}
	return n
}

const escape = "\x1b["

// style colours text, or leaves it as it is.
type style bool

func (s style) with(code, text string) string {
	if !s {
		return text
	}
	return escape + code + "m" + text + escape + "0m"
}

func (s style) bold(text string) string  { return s.with("1", text) }
func (s style) dim(text string) string   { return s.with("2", text) }
func (s style) good(text string) string  { return s.with("32", text) }
func (s style) bad(text string) string   { return s.with("1;31", text) }
func (s style) title(text string) string { return s.with("1;36", text) }

// graded colours text by whether it is good.
func (s style) graded(ok bool, text string) string {
	if ok {
		return s.good(text)
	}
	return s.bad(text)
}

// isTerminal tells whether f is a terminal that can move its cursor.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || info.Mode()&os.ModeDevice == 0 {
		return false
	}
	switch os.Getenv("TERM") {
	case "", "dumb":
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
