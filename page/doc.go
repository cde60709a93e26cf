// Package page has the page that Handler serves, as files that the root package embeds, and the test that looks at it in a browser. It has no
// code of its own.
package page
