package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
	sample "k8s.io/sample-apiserver/pkg/generated/openapi"
)

// The prefix of the definitions that every API server shares.
const shared = "io.k8s.apimachinery."

// The texts of parameters that the installer writes itself (k8s.io/apiserver pkg/endpoints/installer.go).
const (
	prettyText    = "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."
	namespaceText = "object name and auth scope, such as for teams and projects"
)

// dumpV2 gives the shared definitions as kube-apiserver publishes them in /openapi/v2, and the parameters that operations
// of all resources have, under the names that the original gives them.
func dumpV2() (any, error) {
	config := &common.Config{
		Info:              &spec.Info{},
		GetDefinitions:    definitions,
		GetDefinitionName: namer(),
	}
	document, err := builder.BuildOpenAPIDefinitionsForResources(config, sharedNames()...)
	if err != nil {
		return nil, err
	}
	parameters, err := parameters()
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"definitions": handler.PruneDefaults(document.Definitions),
		"parameters":  parameters,
	}, nil
}

// dumpV3 gives the shared definitions as kube-apiserver publishes them in /openapi/v3.
func dumpV3() (any, error) {
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(configV3(), sharedNames()...)
	if err != nil {
		return nil, err
	}
	return map[string]any{"schemas": schemas}, nil
}

func configV3() *common.OpenAPIV3Config {
	name := namer()
	config := &common.OpenAPIV3Config{
		Info:              &spec.Info{},
		GetDefinitions:    definitions,
		GetDefinitionName: name,
	}
	config.Definitions = definitions(func(path string) spec.Ref {
		model, _ := name(path)
		return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(model))
	})
	return config
}

// definitions are those of an ordinary aggregated server, and IntOrString, which that one happens not to use.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := sample.GetOpenAPIDefinitions(ref)
	const text = "IntOrString is a type that can hold an int32 or a string.  When used in JSON or YAML marshalling and unmarshalling, it produces or consumes the inner type.  This allows you to have, for example, a JSON field that can accept a name or number."
	either := intstr.IntOrString{}
	all[either.OpenAPIModelName()] = common.EmbedOpenAPIDefinitionIntoV2Extension(
		common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: text,
			OneOf:       common.GenerateOpenAPIV3OneOfSchema(either.OpenAPIV3OneOfTypes()),
			Format:      either.OpenAPISchemaFormat(),
		}}},
		common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: text,
			Type:        either.OpenAPISchemaType(),
			Format:      either.OpenAPISchemaFormat(),
		}}},
	)
	return all
}

func sharedNames() []string {
	all := definitions(func(path string) spec.Ref { return spec.Ref{} })
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool {
		return !strings.HasPrefix(name, shared)
	})
}

// namer knows which group, version and kind the shared kinds have in every server. Those of the server's own groups
// (DeleteOptions is a kind of each) are the server's to add.
func namer() func(string) (string, spec.Extensions) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	// The same as in the original, where each server does the above; the namer drops what is internal by itself.
	base := openapi.NewDefinitionNamer(scheme)
	return func(path string) (string, spec.Extensions) {
		name, extensions := base.GetDefinitionName(path)
		kinds, ok := extensions["x-kubernetes-group-version-kind"].([]any)
		if !ok {
			return name, extensions
		}
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(kind any) bool {
			return kind.(map[string]any)["version"] == runtime.APIVersionInternal
		})
		if len(kinds) == 0 {
			return name, nil
		}
		return name, spec.Extensions{"x-kubernetes-group-version-kind": kinds}
	}
}

// parameters builds a service with every operation and takes the parameters that the original shares between operations.
func parameters() (map[string]spec.Parameter, error) {
	service := new(restful.WebService)
	service.Path("/apis/g/v1")
	pretty := service.QueryParameter("pretty", prettyText)
	namespace := service.PathParameter("namespace", namespaceText).DataType("string")
	nothing := func(*restful.Request, *restful.Response) {}

	add := func(route *restful.RouteBuilder, operation string, body any, options ...any) error {
		route.To(nothing).Operation(operation).Param(pretty).Param(namespace).Returns(200, "OK", metav1.Status{})
		if body != nil {
			route.Reads(body)
		}
		for _, o := range options {
			excluded := []string{}
			if _, list := o.(*metav1.ListOptions); list && len(options) > 1 {
				excluded = []string{"watch", "allowWatchBookmarks"}
			}
			if err := endpoints.AddObjectParams(service, route, o, excluded...); err != nil {
				return err
			}
		}
		if _, ok := body.(metav1.DeleteOptions); ok {
			route.ParameterNamed("body").Required(false)
		}
		service.Route(route)
		return nil
	}
	err := firstError(
		add(service.GET("/namespaces/{namespace}/things"), "list", nil, &metav1.ListOptions{}),
		add(service.POST("/namespaces/{namespace}/things"), "create", nil, &metav1.CreateOptions{}),
		add(service.DELETE("/namespaces/{namespace}/things"), "deletecollection", metav1.DeleteOptions{}, &metav1.DeleteOptions{}, &metav1.ListOptions{}),
		add(service.PUT("/namespaces/{namespace}/things/a"), "replace", nil, &metav1.UpdateOptions{}),
		add(service.PATCH("/namespaces/{namespace}/things/a"), "patch", metav1.Patch{}, &metav1.PatchOptions{}),
		add(service.DELETE("/namespaces/{namespace}/things/a"), "delete", metav1.DeleteOptions{}, &metav1.DeleteOptions{}),
	)
	if err != nil {
		return nil, err
	}
	config := &common.Config{Info: &spec.Info{}, GetDefinitions: definitions, GetDefinitionName: namer()}
	document, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{service}), config)
	if err != nil {
		return nil, err
	}
	parameters := document.Parameters
	// The original leaves these in each operation, where kubectl looks for them.
	for _, item := range document.Paths.Paths {
		for _, operation := range []*spec.Operation{item.Post, item.Put, item.Patch, item.Delete} {
			if operation == nil {
				continue
			}
			for _, parameter := range operation.Parameters {
				if parameter.Ref.String() == "" {
					if err := keep(parameters, parameter); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return parameters, nil
}

func keep(parameters map[string]spec.Parameter, parameter spec.Parameter) error {
	before, found := parameters[parameter.Name]
	if !found {
		parameters[parameter.Name] = parameter
		return nil
	}
	a, errA := json.Marshal(before)
	b, errB := json.Marshal(parameter)
	if err := firstError(errA, errB); err != nil {
		return err
	}
	if string(a) != string(b) {
		return fmt.Errorf("the parameter %q differs between operations", parameter.Name)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
