//! The documents of single groups and versions as OpenAPI 3.0 (k8s.io/kube-openapi `pkg/builder3`).

use serde_json::{Map, Value, json};

use super::{
    Info,
    operations::{Operation, Parameter, PathOperations, Paths, Type, common_parameters},
    schema::{Definitions, V3_PREFIX, references},
    shared::{self, GROUP_VERSION_KIND},
};

/// Writes a document. Of `own`, the definitions of the version's own types, it gets those that are referred to;
/// `version` is group and version if it is about one.
pub(super) fn document(info: &Info, paths: &Paths, own: &Definitions, version: Option<(&str, &str)>) -> Value {
    let paths: Map<_, _> = paths.iter().map(|(path, operations)| (path.clone(), path_item(operations))).collect();
    let paths = Value::Object(paths);

    let mut schemas = Map::new();
    let mut wanted = Vec::new();
    references(&paths, &mut wanted);
    let mut wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
    while let Some(name) = wanted.pop() {
        let definition = own.get(&name).or_else(|| shared::v3().get(&name));
        let Some(definition) = definition.filter(|_| !schemas.contains_key(&name)) else { continue };
        let mut further = Vec::new();
        references(definition, &mut further);
        wanted.extend(further.into_iter().map(str::to_owned));
        let mut definition = definition.clone();
        shared::add_kinds(&name, &mut definition, version.as_slice());
        schemas.insert(name, definition);
    }

    json!({
        "openapi": "3.0.0",
        "info": info.value(),
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

fn path_item(operations: &PathOperations) -> Value {
    let common = common_parameters(operations);
    let mut item = Map::new();
    for (method, operation) in operations {
        item.insert(method.as_str().to_owned(), self::operation(operation, &common));
    }
    if !common.is_empty() {
        item.insert("parameters".to_owned(), Value::Array(common.iter().map(parameter).collect()));
    }
    Value::Object(item)
}

fn operation(operation: &Operation, common: &[Parameter]) -> Value {
    let own = operation.parameters.iter().filter(|p| !common.iter().any(|c| c.name() == p.name()));
    let parameters: Vec<_> = own.map(parameter).collect();
    let responses: Map<_, _> = operation
        .responses
        .iter()
        .map(|(code, text)| {
            let content = content(operation.produces, &operation.answer);
            (code.to_string(), json!({ "description": text, "content": content }))
        })
        .collect();

    let mut out = json!({
        "tags": [operation.tag],
        "description": operation.description,
        "operationId": operation.id,
        "responses": responses,
    });
    if let Value::Object(out) = &mut out {
        if !parameters.is_empty() {
            out.insert("parameters".to_owned(), Value::Array(parameters));
        }
        if let Some(body) = &operation.body {
            let mut request = Map::from_iter([("content".to_owned(), content(&operation.consumes, &body.of))]);
            if body.required {
                request.insert("required".to_owned(), json!(true));
            }
            out.insert("requestBody".to_owned(), Value::Object(request));
        }
        if let Some(about) = &operation.about {
            out.insert("x-kubernetes-action".to_owned(), json!(about.action));
            let kind = shared::group_version_kind(&about.group, &about.version, &about.kind);
            out.insert(GROUP_VERSION_KIND.to_owned(), kind);
        }
    }
    out
}

fn content(media_types: &[&'static str], of: &Type) -> Value {
    let schema = match of {
        Type::Definition(name) => json!({ "$ref": format!("{V3_PREFIX}{name}") }),
        Type::Object => json!({ "type": "object" }),
    };
    Value::Object(media_types.iter().map(|media| ((*media).to_owned(), json!({ "schema": schema }))).collect())
}

/// The same as in Swagger 2, but that the type is in a schema.
fn parameter(parameter: &Parameter) -> Value {
    match parameter {
        Parameter::Shared(parameter) => {
            let mut out = Map::new();
            let mut schema = Map::new();
            for (keyword, value) in parameter.value.as_object().into_iter().flatten() {
                let part = if matches!(keyword.as_str(), "type" | "uniqueItems") { &mut schema } else { &mut out };
                part.insert(keyword.clone(), value.clone());
            }
            out.insert("schema".to_owned(), Value::Object(schema));
            Value::Object(out)
        }
        Parameter::Name { kind } => json!({
            "name": "name",
            "in": "path",
            "description": format!("name of the {kind}"),
            "required": true,
            "schema": { "type": "string", "uniqueItems": true },
        }),
    }
}
