//! What a set of descriptors says, as lines that can be compared.

use std::collections::BTreeSet;

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

/// The facts of some packages. A fact is about the wire or about a name; which file of a package
/// it stands in does not matter.
pub(crate) fn facts(set: &FileDescriptorSet, packages: &[&str]) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for file in &set.file {
        let package = file.package();
        if !packages.contains(&package) {
            continue;
        }
        let syntax = match file.syntax() {
            "" => "proto2",
            syntax => syntax,
        };
        for message in &file.message_type {
            add_message(&mut facts, package, syntax, message);
        }
        for enumeration in &file.enum_type {
            add_enum(&mut facts, package, syntax, enumeration);
        }
        for service in &file.service {
            add_service(&mut facts, package, service);
        }
        for extension in &file.extension {
            facts.insert(format!("extension {package}.{} of {}", extension.name(), extension.extendee()));
        }
    }
    facts
}

fn add_message(facts: &mut BTreeSet<String>, scope: &str, syntax: &str, message: &DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    let map_entry = message.options.as_ref().is_some_and(|o| o.map_entry());
    facts.insert(format!("message {name} {syntax} map_entry={map_entry}"));
    for field in &message.field {
        facts.insert(field_fact(&name, syntax, message, field));
    }
    // A oneof without fields cannot be, so its name comes with them.
    for nested in &message.nested_type {
        add_message(facts, &name, syntax, nested);
    }
    for enumeration in &message.enum_type {
        add_enum(facts, &name, syntax, enumeration);
    }
}

fn field_fact(scope: &str, syntax: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let oneof = field
        .oneof_index
        .and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?))
        .map_or("-", |oneof| oneof.name());
    let packable = field.label() == Label::Repeated
        && !matches!(field.r#type(), Type::String | Type::Bytes | Type::Message | Type::Group);
    let packed = packable && field.options.as_ref().and_then(|options| options.packed).unwrap_or(syntax == "proto3");
    format!(
        "field {scope}.{} = {} {} {} type_name={:?} oneof={oneof} proto3_optional={} packed={packed} default={:?}",
        field.name(),
        field.number(),
        field.label().as_str_name(),
        field.r#type().as_str_name(),
        field.type_name(),
        field.proto3_optional(),
        field.default_value(),
    )
}

fn add_enum(facts: &mut BTreeSet<String>, scope: &str, syntax: &str, e: &EnumDescriptorProto) {
    let name = format!("{scope}.{}", e.name());
    let alias = e.options.as_ref().is_some_and(|o| o.allow_alias());
    facts.insert(format!("enum {name} {syntax} allow_alias={alias}"));
    for value in &e.value {
        facts.insert(format!("value {name}.{} = {}", value.name(), value.number()));
    }
}

fn add_service(facts: &mut BTreeSet<String>, package: &str, service: &ServiceDescriptorProto) {
    let name = format!("{package}.{}", service.name());
    facts.insert(format!("service {name}"));
    for method in &service.method {
        facts.insert(format!(
            "method {name}.{} {} (stream={}) -> {} (stream={})",
            method.name(),
            method.input_type(),
            method.client_streaming(),
            method.output_type(),
            method.server_streaming(),
        ));
    }
}
