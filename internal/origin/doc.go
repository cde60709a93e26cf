// Package origin protects the application's database: a Limiter bounds how many loads run at once, and Call runs one load so that
// whatever the loader does ends in a value or an error in bounded time.
package origin
