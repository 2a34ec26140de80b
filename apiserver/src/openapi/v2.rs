//! The document of all groups as Swagger 2 (k8s.io/kube-openapi `pkg/builder`).

use serde_json::{Map, Value, json};

use super::{
    Info,
    operations::{Body, Operation, Parameter, PathOperations, Paths, Type, common_parameters},
    schema::{Definitions, V2_PREFIX, references, to_v2},
    shared::{self, GROUP_VERSION_KIND, SharedParameter},
};

/// Writes the document. `own` are the definitions of the groups' own types, `versions` group and version of each.
pub(super) fn document(info: &Info, paths: &Paths, own: &Definitions, versions: &[(&str, &str)]) -> Value {
    let mut parameters = Map::new();
    let paths: Map<_, _> =
        paths.iter().map(|(path, operations)| (path.clone(), path_item(operations, &mut parameters))).collect();
    let paths = Value::Object(paths);
    let mut definitions: Map<_, _> = own.iter().map(|(name, schema)| (name.clone(), to_v2(schema))).collect();

    // Shared definitions follow from what refers to them.
    let mut wanted = Vec::new();
    references(&paths, &mut wanted);
    parameters.values().chain(definitions.values()).for_each(|value| references(value, &mut wanted));
    let mut wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
    while let Some(name) = wanted.pop() {
        let Some(definition) = shared::v2().get(&name).filter(|_| !definitions.contains_key(&name)) else { continue };
        let mut further = Vec::new();
        references(definition, &mut further);
        wanted.extend(further.into_iter().map(str::to_owned));
        let mut definition = definition.clone();
        shared::add_kinds(&name, &mut definition, versions);
        definitions.insert(name, definition);
    }

    json!({
        "swagger": "2.0",
        "info": info.value(),
        "paths": paths,
        "definitions": definitions,
        "parameters": parameters,
        "securityDefinitions": {
            "BearerToken": {
                "description": "Bearer Token authentication",
                "type": "apiKey",
                "name": "authorization",
                "in": "header",
            },
        },
        "security": [{ "BearerToken": [] }],
    })
}

fn path_item(operations: &PathOperations, shared: &mut Map<String, Value>) -> Value {
    let common = common_parameters(operations);
    let mut item = Map::new();
    for (method, operation) in operations {
        item.insert(method.as_str().to_owned(), self::operation(operation, &common, shared));
    }
    if !common.is_empty() {
        let common: Vec<_> = common.iter().map(|p| parameter(p, shared)).collect();
        item.insert("parameters".to_owned(), Value::Array(common));
    }
    Value::Object(item)
}

fn operation(operation: &Operation, common: &[Parameter], shared: &mut Map<String, Value>) -> Value {
    let own = operation.parameters.iter().filter(|p| !common.iter().any(|c| c.name() == p.name()));
    let mut parameters: Vec<(&str, Value)> = own.map(|p| (p.name(), parameter(p, shared))).collect();
    parameters.extend(operation.body.as_ref().map(|b| ("body", body(b, shared))));
    parameters.sort_by_key(|(name, _)| *name);
    let parameters: Vec<_> = parameters.into_iter().map(|(_, value)| value).collect();

    let mut responses = Map::new();
    for (code, text) in &operation.responses {
        responses.insert(code.to_string(), json!({ "description": text, "schema": schema(&operation.answer) }));
    }
    responses.insert("401".to_owned(), json!({ "description": "Unauthorized" }));

    let mut out = json!({
        "description": operation.description,
        "consumes": operation.consumes,
        "produces": operation.produces,
        "schemes": ["https"],
        "tags": [operation.tag],
        "operationId": operation.id,
        "responses": responses,
    });
    if let Value::Object(out) = &mut out {
        if !parameters.is_empty() {
            out.insert("parameters".to_owned(), Value::Array(parameters));
        }
        if let Some(about) = &operation.about {
            out.insert("x-kubernetes-action".to_owned(), json!(about.action));
            let kind = shared::group_version_kind(&about.group, &about.version, &about.kind);
            out.insert(GROUP_VERSION_KIND.to_owned(), kind);
        }
    }
    out
}

fn parameter(parameter: &Parameter, shared: &mut Map<String, Value>) -> Value {
    match parameter {
        Parameter::Shared(parameter) => refer(*parameter, shared),
        Parameter::Name { kind } => json!({
            "uniqueItems": true,
            "type": "string",
            "description": format!("name of the {kind}"),
            "name": "name",
            "in": "path",
            "required": true,
        }),
    }
}

/// A reference to a parameter among the document's, which is put there.
fn refer(parameter: SharedParameter, shared: &mut Map<String, Value>) -> Value {
    match parameter.key {
        None => parameter.value.clone(),
        Some(key) => {
            shared.entry(key).or_insert_with(|| parameter.value.clone());
            json!({ "$ref": format!("#/parameters/{key}") })
        }
    }
}

fn body(body: &Body, shared: &mut Map<String, Value>) -> Value {
    if let Type::Definition(name) = &body.of
        && let Some(kind) = name.strip_prefix(shared::META_V1)
        && let Some(parameter) = shared::body_parameter(kind)
    {
        return refer(parameter, shared);
    }
    let mut out = json!({ "name": "body", "in": "body", "schema": schema(&body.of) });
    if let (true, Value::Object(out)) = (body.required, &mut out) {
        out.insert("required".to_owned(), json!(true));
    }
    out
}

fn schema(of: &Type) -> Value {
    match of {
        Type::Definition(name) => json!({ "$ref": format!("{V2_PREFIX}{name}") }),
        Type::Object => json!({ "type": "object" }),
    }
}
