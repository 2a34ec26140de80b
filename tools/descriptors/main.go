// Command descriptors writes the descriptors of etcd's client-facing packages and of Kubernetes' object metadata, as
// the original Go packages define them, to standard output: an encoded google.protobuf.FileDescriptorSet, to be
// compared and not to be compiled (imports are not in it).
package main

import (
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	// Each registers its files.
	_ "go.etcd.io/etcd/api/v3/authpb"
	_ "go.etcd.io/etcd/api/v3/etcdserverpb"
	_ "go.etcd.io/etcd/api/v3/mvccpb"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

var packages = []protoreflect.FullName{"authpb", "etcdserverpb", "mvccpb", "v3electionpb", "v3lockpb"}

// What members write into raft's log. No client sees it.
var internal = map[string]bool{"raft_internal.proto": true, "etcdserver.proto": true}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "descriptors:", err)
		os.Exit(1)
	}
}

func run() error {
	set := &descriptorpb.FileDescriptorSet{}
	for _, name := range packages {
		found := false
		// By package and not by file, so that a file which etcd adds is seen.
		protoregistry.GlobalFiles.RangeFilesByPackage(name, func(file protoreflect.FileDescriptor) bool {
			if !internal[file.Path()] {
				found = true
				set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
			}
			return true
		})
		if !found {
			return fmt.Errorf("no Go package registers the protobuf package %q", name)
		}
	}
	meta, err := objectMetadata()
	if err != nil {
		return err
	}
	set.File = append(set.File, meta)

	encoded, err := proto.Marshal(set)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(encoded)
	return err
}
