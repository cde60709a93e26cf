// Program member is one member of a cluster of processes, for tests whose members are not all builds of the same revision: see
// testcluster.Spawn and scripts/compat.sh.
package main

import (
	"fmt"
	"os"

	"github.com/nearcache/nearcache/internal/testcluster"
)

func main() {
	testcluster.MaybeChild()
	fmt.Fprintln(os.Stderr, "member is started by tests")
	os.Exit(2)
}
