// Command informer runs client-go's shared informer on one resource and prints what its handlers are told, one JSON
// object a line. It is what a Go controller sees: default feature gates, so the initial list comes as a watch-list
// where the server serves one.
//
//	informer --kubeconfig FILE --resource GROUP/VERSION/RESOURCE [--namespace NS] [--metadata-only]
//
// Lines: {"event":"added|updated|deleted","namespace":…,"name":…,"resourceVersion":…}, and once, after every object
// that was there at the start has been handed out, {"event":"synced","count":N,"resourceVersion":…}. What goes wrong
// on the way (a watch that ends in an error, a list that is refused) is {"event":"error","message":…}; the informer
// goes on, as in a controller. Ends on SIGINT and SIGTERM.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

type options struct {
	kubeconfig   string
	resource     string
	namespace    string
	metadataOnly bool
}

type line struct {
	Event           string `json:"event"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// FinalStateUnknown tells that the deletion itself was missed and a later list showed the object gone.
	FinalStateUnknown bool `json:"finalStateUnknown,omitempty"`
	// Initial is set on "added" for what the first list brought.
	Initial bool   `json:"initial,omitempty"`
	Count   *int   `json:"count,omitempty"`
	Message string `json:"message,omitempty"`
}

// printer keeps lines whole: handlers run on one goroutine, the error handler on another.
type printer struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the kubeconfig to connect with")
	flag.StringVar(&o.resource, "resource", "", "what to follow, as group/version/resource, or version/resource for the core group")
	flag.StringVar(&o.namespace, "namespace", metav1.NamespaceAll, "the namespace to follow; all of them when empty")
	flag.BoolVar(&o.metadataOnly, "metadata-only", false, "ask for PartialObjectMetadata, as the garbage collector does")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "informer:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	gvr, err := parseResource(o.resource)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig %q: %w", o.kubeconfig, err)
	}
	informer, err := newInformer(config, gvr, o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	out := &printer{enc: json.NewEncoder(os.Stdout)}
	err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		out.print(line{Event: "error", Message: err.Error()})
	})
	if err != nil {
		return err
	}
	handle, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { out.object("added", obj, initial) },
		UpdateFunc: func(_, obj any) { out.object("updated", obj, false) },
		DeleteFunc: func(obj any) { out.object("deleted", obj, false) },
	})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	// The handler's own HasSynced: true only after the initial objects were handed to it, so "synced" follows them.
	if cache.WaitForCacheSync(ctx.Done(), handle.HasSynced) {
		count := len(informer.GetStore().ListKeys())
		out.print(line{Event: "synced", Count: &count, ResourceVersion: informer.LastSyncResourceVersion()})
	}
	<-ended
	return nil
}

// newInformer makes the informer for one resource; a resync period of 0 means that each line stems from the server.
func newInformer(config *rest.Config, gvr schema.GroupVersionResource, o options) (cache.SharedIndexInformer, error) {
	if o.metadataOnly {
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return metadatainformer.NewFilteredMetadataInformer(client, gvr, o.namespace, 0, cache.Indexers{}, nil).Informer(), nil
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return dynamicinformer.NewFilteredDynamicInformer(client, gvr, o.namespace, 0, cache.Indexers{}, nil).Informer(), nil
}

func parseResource(s string) (schema.GroupVersionResource, error) {
	parts := strings.Split(s, "/")
	switch len(parts) {
	case 2:
		return schema.GroupVersionResource{Version: parts[0], Resource: parts[1]}, nil
	case 3:
		return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
	}
	return schema.GroupVersionResource{}, fmt.Errorf("--resource %q: give it as group/version/resource", s)
}

func (p *printer) print(l line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.enc.Encode(l); err != nil {
		fmt.Fprintln(os.Stderr, "informer: standard output:", err)
		os.Exit(1)
	}
}

func (p *printer) object(event string, obj any, initial bool) {
	unknown := false
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj, unknown = tombstone.Obj, true
	}
	m, ok := obj.(metav1.Object)
	if !ok {
		p.print(line{Event: "error", Message: fmt.Sprintf("%s: not an object: %T", event, obj)})
		return
	}
	p.print(line{
		Event: event, Namespace: m.GetNamespace(), Name: m.GetName(), ResourceVersion: m.GetResourceVersion(),
		FinalStateUnknown: unknown, Initial: initial,
	})
}
