//! `Health/List`, which grpc-go has and `tonic-health` has not: what each service's status is.

use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use http::{Request, Response};
use prost::Message as _;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use tonic::{Status, body::Body, server::Grpc};
use tonic_health::pb::HealthCheckResponse;
use tonic_prost::ProstCodec;
use tower::Service;

use super::WHOLE_SERVER;

/// Full name of the request.
pub(super) const REQUEST: &str = "grpc.health.v1.HealthListRequest";

#[derive(Clone, PartialEq, prost::Message)]
struct HealthListRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthListResponse {
    #[prost(message, repeated, tag = "1")]
    statuses: Vec<Entry>,
}

/// An entry of the map, of which Go writes a key that is empty, too.
#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(message, optional, tag = "2")]
    value: Option<HealthCheckResponse>,
}

/// Answers with the one status there is.
struct List(HealthCheckResponse);

/// Answers a call of List.
pub(super) async fn answer(request: Request<Body>, whole_server: HealthCheckResponse) -> Response<Body> {
    let codec = ProstCodec::<HealthListResponse, HealthListRequest>::default();
    Grpc::new(codec).unary(List(whole_server), request).await
}

/// The descriptors of grpc.health.v1, List included.
///
/// # Errors
/// When those of `tonic-health` cannot be decoded.
pub fn descriptors() -> Result<FileDescriptorSet, prost::DecodeError> {
    let mut set = FileDescriptorSet::decode(tonic_health::pb::FILE_DESCRIPTOR_SET)?;
    for file in set.file.iter_mut().filter(|file| file.package() == "grpc.health.v1") {
        file.message_type.push(DescriptorProto { name: Some("HealthListRequest".to_owned()), ..Default::default() });
        file.message_type.push(response());
        for service in &mut file.service {
            service.method.push(MethodDescriptorProto {
                name: Some("List".to_owned()),
                input_type: Some(format!(".{REQUEST}")),
                output_type: Some(".grpc.health.v1.HealthListResponse".to_owned()),
                ..Default::default()
            });
        }
    }
    Ok(set)
}

/// A map is a repeated message of key and value.
fn response() -> DescriptorProto {
    let field = |name: &str, number, label, kind, message: Option<&str>| FieldDescriptorProto {
        name: Some(name.to_owned()),
        json_name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label as i32),
        r#type: Some(kind as i32),
        type_name: message.map(str::to_owned),
        ..Default::default()
    };
    let checked = Some(".grpc.health.v1.HealthCheckResponse");
    let entry = DescriptorProto {
        name: Some("StatusesEntry".to_owned()),
        field: vec![
            field("key", 1, Label::Optional, Type::String, None),
            field("value", 2, Label::Optional, Type::Message, checked),
        ],
        options: Some(MessageOptions { map_entry: Some(true), ..Default::default() }),
        ..Default::default()
    };
    let entries = Some(".grpc.health.v1.HealthListResponse.StatusesEntry");
    DescriptorProto {
        name: Some("HealthListResponse".to_owned()),
        field: vec![field("statuses", 1, Label::Repeated, Type::Message, entries)],
        nested_type: vec![entry],
        ..Default::default()
    }
}

// === impl List ===

impl Service<tonic::Request<HealthListRequest>> for List {
    type Response = tonic::Response<HealthListResponse>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::Request<HealthListRequest>) -> Self::Future {
        let statuses = vec![Entry { key: Some(WHOLE_SERVER.to_owned()), value: Some(self.0) }];
        ready(Ok(tonic::Response::new(HealthListResponse { statuses })))
    }
}
