package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const metaPackage = "k8s.io.apimachinery.pkg.apis.meta.v1"

// Kubernetes registers no descriptors; the tags of its Go types say the same.
type structReader struct {
	messages map[string]*descriptorpb.DescriptorProto
}

// The messages that an object of any group is made of besides its own.
func objectMetadata() (*descriptorpb.FileDescriptorProto, error) {
	reader := structReader{messages: map[string]*descriptorpb.DescriptorProto{}}
	for _, root := range []any{metav1.ObjectMeta{}, metav1.ListMeta{}, metav1.Condition{}} {
		if _, err := reader.message(reflect.TypeOf(root)); err != nil {
			return nil, err
		}
	}
	file := &descriptorpb.FileDescriptorProto{
		Name:    proto.String("k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto"),
		Package: proto.String(metaPackage),
	}
	for _, name := range slices.Sorted(maps.Keys(reader.messages)) {
		file.MessageType = append(file.MessageType, reader.messages[name])
	}
	return file, nil
}

// Returns the type name for a reference to the message of a struct type.
func (r structReader) message(t reflect.Type) (string, error) {
	name := t.Name()
	reference := "." + metaPackage + "." + name
	if r.messages[name] != nil {
		return reference, nil
	}
	message := &descriptorpb.DescriptorProto{Name: proto.String(name)}
	r.messages[name] = message
	if t == reflect.TypeOf(metav1.Time{}) {
		// Its Go form is another one than its wire form.
		t = reflect.TypeOf(metav1.Timestamp{})
	}
	for i := range t.NumField() {
		tag, ok := t.Field(i).Tag.Lookup("protobuf")
		if !ok {
			return "", fmt.Errorf("%s.%s has no protobuf tag", t, t.Field(i).Name)
		}
		field, err := r.field(message, t.Field(i).Type, tag)
		if err != nil {
			return "", fmt.Errorf("%s.%s: %w", t, t.Field(i).Name, err)
		}
		message.Field = append(message.Field, field)
	}
	return reference, nil
}

// A tag is "wire type,number,opt|rep,name=…".
func (r structReader) field(parent *descriptorpb.DescriptorProto, t reflect.Type, tag string) (*descriptorpb.FieldDescriptorProto, error) {
	parts := strings.Split(tag, ",")
	if len(parts) < 4 {
		return nil, fmt.Errorf("protobuf tag %q has fewer than four parts", tag)
	}
	number, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("protobuf tag %q: %w", tag, err)
	}
	name, ok := strings.CutPrefix(parts[3], "name=")
	if !ok {
		return nil, fmt.Errorf("protobuf tag %q names no field", tag)
	}
	field := &descriptorpb.FieldDescriptorProto{Name: proto.String(name), Number: proto.Int32(int32(number))}
	switch parts[2] {
	case "opt":
		field.Label = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()
	case "rep":
		field.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	default:
		return nil, fmt.Errorf("protobuf tag %q is neither opt nor rep", tag)
	}
	return field, r.setType(parent, field, t)
}

func (r structReader) setType(parent *descriptorpb.DescriptorProto, field *descriptorpb.FieldDescriptorProto, t reflect.Type) error {
	switch t.Kind() {
	case reflect.Pointer:
		return r.setType(parent, field, t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			field.Type = descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
			return nil
		}
		return r.setType(parent, field, t.Elem())
	case reflect.String:
		field.Type = descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum()
	case reflect.Bool:
		field.Type = descriptorpb.FieldDescriptorProto_TYPE_BOOL.Enum()
	case reflect.Int32:
		field.Type = descriptorpb.FieldDescriptorProto_TYPE_INT32.Enum()
	case reflect.Int64:
		field.Type = descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum()
	case reflect.Struct:
		reference, err := r.message(t)
		if err != nil {
			return err
		}
		field.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
		field.TypeName = proto.String(reference)
	case reflect.Map:
		entry := strings.ToUpper(field.GetName()[:1]) + field.GetName()[1:] + "Entry"
		nested := &descriptorpb.DescriptorProto{
			Name:    proto.String(entry),
			Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
		}
		for i, side := range []struct {
			name string
			t    reflect.Type
		}{{"key", t.Key()}, {"value", t.Elem()}} {
			part := &descriptorpb.FieldDescriptorProto{
				Name:   proto.String(side.name),
				Number: proto.Int32(int32(i + 1)),
				Label:  descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}
			if err := r.setType(nested, part, side.t); err != nil {
				return err
			}
			nested.Field = append(nested.Field, part)
		}
		parent.NestedType = append(parent.NestedType, nested)
		field.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
		field.TypeName = proto.String("." + metaPackage + "." + parent.GetName() + "." + entry)
	default:
		return fmt.Errorf("no protobuf type is known for the Go type %s", t)
	}
	return nil
}
