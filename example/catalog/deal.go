package main

// deal plays the load balancer: it returns the node that serves request i. Every process computes the same, without talking. Requests of
// a lost node go to the others. There must be a node that is not lost.
func deal(seed uint64, i int, lost []bool) int {
	x := mix(seed + uint64(i)*0x9e3779b97f4a7c15)
	for {
		if n := int(x % uint64(len(lost))); !lost[n] {
			return n
		}
		x = mix(x)
	}
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), shifted off its fixed
// point zero.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
