// Command openapi-meta knows OpenAPI as the original Go packages do.
//
//	openapi-meta dump v2|v3    writes the shared definitions (io.k8s.apimachinery.…) and, for v2, the shared parameters
//	openapi-meta check         reads documents from standard input and writes what kube-apiserver and kubectl make of them
//
// Both write JSON to standard output.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi-meta:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var out any
	var err error
	switch {
	case len(args) == 2 && args[0] == "dump" && args[1] == "v2":
		out, err = dumpV2()
	case len(args) == 2 && args[0] == "dump" && args[1] == "v3":
		out, err = dumpV3()
	case len(args) == 1 && args[0] == "check":
		out, err = check(os.Stdin)
	default:
		err = errors.New("usage: openapi-meta dump v2 | dump v3 | check")
	}
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	return encoder.Encode(out)
}
