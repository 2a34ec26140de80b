package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/openapi"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	explain "k8s.io/kubectl/pkg/explain/v2"
	kubectl "k8s.io/kubectl/pkg/util/openapi"
)

// documents are what a server publishes, and the questions to ask of them.
type documents struct {
	V2 json.RawMessage `json:"v2"`
	// By the path below /openapi/v3/, for example apis/example.com/v1.
	V3       map[string]json.RawMessage `json:"v3"`
	Kinds    []schema.GroupVersionKind  `json:"kinds"`
	Explain  []explainQuestion          `json:"explain"`
	MergedTo json.RawMessage            `json:"mergedTo"`
}

type explainQuestion struct {
	Resource schema.GroupVersionResource `json:"resource"`
	Fields   []string                    `json:"fields"`
}

type answers struct {
	// The definitions that kube-apiserver would rename because another server publishes others under their names.
	Renamed []string `json:"renamed"`
	// The paths of the merged document that are the server's.
	Paths []string `json:"paths"`
	Kinds []kind   `json:"kinds"`
	// What kubectl explain prints.
	Explained []string `json:"explained"`
}

type kind struct {
	Kind schema.GroupVersionKind `json:"kind"`
	// Whether kubectl's v2 reader finds the kind's schema.
	Found bool `json:"found"`
	// What kubectl apply takes the kind's patch types to be.
	Patches []string `json:"patches"`
	// Why kubectl would not leave field validation to the server; empty if it would.
	FieldValidation string `json:"fieldValidation"`
}

func check(in io.Reader) (*answers, error) {
	var given documents
	if err := json.NewDecoder(in).Decode(&given); err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	out := &answers{}

	v2, err := parseV2(given.V2)
	if err != nil {
		return nil, err
	}
	if err := merge(given, out); err != nil {
		return nil, err
	}
	for name, document := range given.V3 {
		if err := parseV3(document); err != nil {
			return nil, fmt.Errorf("v3 %s: %w", name, err)
		}
	}

	client := client{documents: given.V3}
	verifier := resource.NewQueryParamVerifierV3(nil, client, resource.QueryParamFieldValidation)
	for _, gvk := range given.Kinds {
		answer := kind{Kind: gvk, Found: v2.LookupResource(gvk) != nil, Patches: v2.GetConsumes(gvk, "PATCH")}
		if err := verifier.HasSupport(gvk); err != nil {
			answer.FieldValidation = err.Error()
		}
		out.Kinds = append(out.Kinds, answer)
	}
	for _, question := range given.Explain {
		var text bytes.Buffer
		if err := explain.PrintModelDescription(question.Fields, &text, client, question.Resource, false, 0, "plaintext"); err != nil {
			return nil, fmt.Errorf("kubectl explain %s %v: %w", question.Resource.Resource, question.Fields, err)
		}
		out.Explained = append(out.Explained, text.String())
	}
	return out, nil
}

// parseV2 reads the document as kubectl does, by way of the protobuf form that kube-apiserver makes of it.
func parseV2(document []byte) (kubectl.Resources, error) {
	parsed, err := openapi_v2.ParseDocument(document)
	if err != nil {
		return nil, fmt.Errorf("v2: %w", err)
	}
	resources, err := kubectl.NewOpenAPIData(parsed)
	if err != nil {
		return nil, fmt.Errorf("v2: %w", err)
	}
	return resources, nil
}

// parseV3 reads the document by both parsers there are.
func parseV3(document []byte) error {
	if _, err := openapi_v3.ParseDocument(document); err != nil {
		return err
	}
	return json.Unmarshal(document, &spec3.OpenAPI{})
}

// merge does what the aggregator does with what it has downloaded.
func merge(given documents, out *answers) error {
	server := &spec.Swagger{}
	if err := server.UnmarshalJSON(given.V2); err != nil {
		return fmt.Errorf("v2: %w", err)
	}
	merged := &spec.Swagger{}
	if given.MergedTo != nil {
		if err := merged.UnmarshalJSON(given.MergedTo); err != nil {
			return fmt.Errorf("mergedTo: %w", err)
		}
	}
	before := map[string]bool{}
	for name := range merged.Definitions {
		before[name] = true
	}
	prefixes := []string{}
	for name := range given.V3 {
		if strings.Count(name, "/") == 2 {
			prefixes = append(prefixes, "/"+name+"/")
		}
	}
	filtered := aggregator.FilterSpecByPathsWithoutSideEffects(server, prefixes)
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(merged, filtered); err != nil {
		return fmt.Errorf("merging: %w", err)
	}
	for name := range merged.Definitions {
		if _, own := server.Definitions[name]; !own && !before[name] {
			out.Renamed = append(out.Renamed, name)
		}
	}
	for path := range filtered.Paths.Paths {
		out.Paths = append(out.Paths, path)
	}
	slices.Sort(out.Renamed)
	slices.Sort(out.Paths)
	return nil
}

// client serves the v3 documents to kubectl's code.
type client struct {
	documents map[string]json.RawMessage
}

type groupVersion struct {
	name     string
	document []byte
}

func (c client) Paths() (map[string]openapi.GroupVersion, error) {
	paths := map[string]openapi.GroupVersion{}
	for name, document := range c.documents {
		paths[name] = groupVersion{name, document}
	}
	return paths, nil
}

func (g groupVersion) Schema(contentType string) ([]byte, error) {
	if contentType != "application/json" {
		return nil, fmt.Errorf("%s asked for as %s", g.name, contentType)
	}
	return g.document, nil
}

func (g groupVersion) ServerRelativeURL() string {
	return "/openapi/v3/" + g.name
}
