package main

func Example() {
	main()
	// Output:
	// loading gopher
	// Hello, gopher! <nil>
	// Hello, gopher! <nil>
	// Hello, gopher! <nil>
}
