//! Which of its forms a client wants discovery in
//! (k8s.io/apiserver `pkg/endpoints/discovery/aggregated/{negotiation,wrapper}.go`).

use http::{HeaderMap, header::ACCEPT};

use crate::{
    negotiate::{Clause, MediaType, OutputFormat, Transform, clauses, wants_pretty},
    status::Status,
};

/// The document to answer with, and how to write it.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// The one of this path alone.
    Plain(OutputFormat),
    /// All groups with all their resources.
    Aggregated(OutputFormat),
}

/// Finds the first clause of `Accept` that can be served. `aggregated`: the path has the aggregated document too.
/// Its version v2beta1 is gone, as in the original; clients that list plain JSON behind it get that.
pub(super) fn negotiate(headers: &HeaderMap, query: Option<&str>, aggregated: bool) -> Result<Answer, Status> {
    let accept = headers.get(ACCEPT).map_or("", |value| value.to_str().unwrap_or("?"));
    let mut answer = if accept.is_empty() {
        Answer::Plain(OutputFormat::default())
    } else {
        clauses(accept)
            .iter()
            .find_map(|clause| {
                [MediaType::Json, MediaType::Yaml].into_iter().find_map(|m| accepts(clause, m, aggregated))
            })
            .ok_or_else(|| Status::not_acceptable(&["application/json", "application/yaml"]))?
    };
    let (Answer::Plain(format) | Answer::Aggregated(format)) = &mut answer;
    format.pretty = format.media == MediaType::Json && (format.pretty || wants_pretty(headers, query));
    Ok(answer)
}

fn accepts(clause: &Clause<'_>, media: MediaType, aggregated: bool) -> Option<Answer> {
    if !clause.matches(media) {
        return None;
    }
    let mut format = OutputFormat { media, pretty: false, transform: Transform::None };
    let (mut kind, mut group, mut version) = ("", "", "");
    for &(name, value) in &clause.parameters {
        match name {
            "as" => kind = value,
            "g" => group = value,
            "v" => version = value,
            // Nothing here is a stream, and there is one server version.
            "stream" | "sv" => return None,
            "pretty" => format.pretty = value == "1",
            _ => {}
        }
    }
    match (group, version, kind) {
        ("", "", "") => Some(Answer::Plain(format)),
        ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList") if aggregated => Some(Answer::Aggregated(format)),
        _ => None,
    }
}

/// The `Content-Type` by which clients tell the aggregated document from the plain one.
pub(super) fn aggregated_content_type(media: MediaType) -> &'static str {
    match media {
        MediaType::Json => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        MediaType::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    }
}
