// Package archtest holds tests about the repository itself: which package may import which, that passive packages
// stay passive, and that what the documents say about the code is still so. It has no code of its own.
//
// The tests read source files and documents only: they start no tool and need no network.
package archtest
