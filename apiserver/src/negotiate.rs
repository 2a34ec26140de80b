//! Which form an answer takes and which a body has: `Accept` and `Content-Type`
//! (k8s.io/apiserver `pkg/endpoints/handlers/negotiation`).
//!
//! Protobuf is not spoken: a client that accepts nothing else gets 406, one that lists JSON after it gets JSON.

use http::{HeaderMap, header};

use crate::status::Status;

/// The media types of answers and bodies, JSON first.
const MEDIA_TYPES: [&str; 2] = ["application/json", "application/yaml"];

/// The media types of watches.
const STREAM_MEDIA_TYPES: [&str; 1] = ["application/json;stream=watch"];

/// An encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MediaType {
    /// `application/json`.
    #[default]
    Json,
    /// `application/yaml`.
    Yaml,
}

/// How an answer is to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OutputFormat {
    /// The encoding.
    pub media: MediaType,
    /// Whether JSON is laid out for people.
    pub pretty: bool,
    /// What is to be made of the object.
    pub transform: Transform,
}

/// What is to be made of an object before it is written. A [`Status`] is never transformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transform {
    /// The object itself.
    #[default]
    None,
    /// A table.
    Table {
        /// The table's version.
        version: MetaVersion,
    },
    /// The metadata of one object.
    PartialObjectMetadata {
        /// The metadata object's version.
        version: MetaVersion,
    },
    /// The metadata of each object of a list.
    PartialObjectMetadataList {
        /// The list's version.
        version: MetaVersion,
    },
}

/// A version of the group `meta.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaVersion {
    /// `v1`.
    V1,
    /// `v1beta1`, which old clients ask for. It looks the same.
    V1Beta1,
}

/// How a request's body is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InputFormat {
    /// JSON.
    #[default]
    Json,
    /// YAML.
    Yaml,
}

/// How a PATCH describes its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PatchType {
    /// RFC 6902, `application/json-patch+json`.
    Json,
    /// RFC 7386, `application/merge-patch+json`.
    Merge,
}

/// One clause of an `Accept` header.
#[derive(Debug)]
pub(crate) struct Clause<'a> {
    pub(crate) main: &'a str,
    pub(crate) sub: &'a str,
    quality: f64,
    pub(crate) parameters: Vec<(&'a str, &'a str)>,
}

// === impl MediaType ===

impl MediaType {
    /// The `Content-Type` of answers.
    pub fn as_str(self) -> &'static str {
        match self {
            MediaType::Json => "application/json",
            MediaType::Yaml => "application/yaml",
        }
    }
}

// === impl MetaVersion ===

impl MetaVersion {
    /// Group and version, as `apiVersion` has them.
    pub fn api_version(self) -> &'static str {
        match self {
            MetaVersion::V1 => "meta.k8s.io/v1",
            MetaVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }

    fn parse(version: &str) -> Option<Self> {
        match version {
            "v1" => Some(MetaVersion::V1),
            "v1beta1" => Some(MetaVersion::V1Beta1),
            _ => None,
        }
    }
}

// === impl OutputFormat ===

impl OutputFormat {
    /// Finds the form of an answer from the request's headers and query. Without an `Accept` header it is JSON.
    ///
    /// # Errors
    /// 406 when nothing that the client accepts can be served.
    pub fn negotiate(headers: &HeaderMap, query: Option<&str>) -> Result<Self, Status> {
        Self::from_headers(headers, query).ok_or_else(|| refusal(headers, &MEDIA_TYPES))
    }

    /// The same for a watch, which is a stream of JSON only.
    ///
    /// # Errors
    /// 406 when what the client accepts first cannot be streamed, or nothing of it can be served.
    pub fn negotiate_stream(headers: &HeaderMap, query: Option<&str>) -> Result<Self, Status> {
        match Self::from_headers(headers, query) {
            Some(format) if format.media == MediaType::Json => Ok(Self { pretty: false, ..format }),
            _ => Err(refusal(headers, &STREAM_MEDIA_TYPES)),
        }
    }

    /// The form of an error's answer: the negotiated encoding if there is one, else JSON, and never transformed.
    pub fn for_error(headers: &HeaderMap, query: Option<&str>) -> Self {
        let format = Self::from_headers(headers, query).unwrap_or_default();
        Self { transform: Transform::None, ..format }
    }

    fn from_headers(headers: &HeaderMap, query: Option<&str>) -> Option<Self> {
        let mut format = Self::from_accept(accept(headers))?;
        format.pretty = format.media == MediaType::Json && (format.pretty || wants_pretty(headers, query));
        Some(format)
    }

    fn from_accept(accept: &str) -> Option<Self> {
        if accept.is_empty() {
            return Some(Self::default());
        }
        clauses(accept)
            .iter()
            .find_map(|clause| [MediaType::Json, MediaType::Yaml].into_iter().find_map(|media| clause.accepts(media)))
    }
}

/// The `Accept` header, empty for none. Go reads its bytes as they are; what is no text matches no media type.
fn accept(headers: &HeaderMap) -> &str {
    headers.get(header::ACCEPT).map_or("", |value| value.to_str().unwrap_or("?"))
}

/// 406. The original's router refuses what names no media type that there is, and its handlers what asks too much of one.
fn refusal(headers: &HeaderMap, supported: &[&str]) -> Status {
    let known = accept(headers).split(',').any(|range| {
        let media_type = range.split(';').next().unwrap_or_default().trim_matches(' ');
        media_type == "*/*" || MEDIA_TYPES.contains(&media_type)
    });
    if known { Status::not_acceptable(supported) } else { Status::no_representation(&MEDIA_TYPES) }
}

/// Whether the answer is for a person's eyes: the query's `pretty` says so, or the client is known to be used by hand.
pub(crate) fn wants_pretty(headers: &HeaderMap, query: Option<&str>) -> bool {
    if let Some(pretty) = query.and_then(|q| crate::query::first(q, "pretty")).filter(|p| !p.is_empty()) {
        return crate::query::parse_bool(&pretty).unwrap_or(false);
    }
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    agent.starts_with("curl") || agent.starts_with("Wget") || agent.starts_with("Mozilla/5.0")
}

// === impl Clause ===

/// Parses an `Accept` header into its clauses, the most wanted first (github.com/munnerz/goautoneg). What cannot be parsed
/// is left out.
pub(crate) fn clauses(header: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<_> = header.split(',').filter_map(Clause::parse).collect();
    // Stable, so that of equals the first wins. Wildcards come after what is named.
    clauses.sort_by(|a, b| {
        b.quality
            .total_cmp(&a.quality)
            .then_with(|| (a.main == "*").cmp(&(b.main == "*")))
            .then_with(|| (a.sub == "*").cmp(&(b.sub == "*")))
    });
    clauses
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';');
        let range = parts.next()?.trim_matches(' ');
        let (main, sub) = match range.split_once('/') {
            None if range == "*" => ("*", "*"),
            Some((main, sub)) if !sub.is_empty() && !sub.contains('/') => {
                (main.trim_matches(' '), sub.trim_matches(' '))
            }
            _ => return None,
        };
        let mut clause = Self { main, sub, quality: 1.0, parameters: Vec::new() };
        for (name, value) in parts.filter_map(|p| p.split_once('=')) {
            if value.is_empty() || value.contains('=') {
                continue;
            }
            match name.trim_matches(' ') {
                "q" => clause.quality = value.parse().ok().filter(|q: &f64| q.is_finite()).unwrap_or(0.0),
                name => clause.parameters.push((name, value.trim_matches(' '))),
            }
        }
        Some(clause)
    }

    /// Whether the clause names this media type, its parameters aside.
    pub(crate) fn matches(&self, media: MediaType) -> bool {
        match (self.main, self.sub) {
            ("*", "*") => true,
            (main, sub) => media.as_str().split_once('/') == Some((main, sub)),
        }
    }

    /// What is served for this clause in this encoding; `None` when the clause means another or asks for too much.
    ///
    /// `application/*` matches nothing: the original refuses it before negotiation.
    fn accepts(&self, media: MediaType) -> Option<OutputFormat> {
        if !self.matches(media) {
            return None;
        }
        let (mut kind, mut group, mut version) = (None, None, None);
        let mut pretty = false;
        for &(name, value) in &self.parameters {
            match name {
                "as" => kind = Some(value),
                "g" => group = Some(value),
                "v" => version = Some(value),
                "stream" if !value.is_empty() && (value != "watch" || media != MediaType::Json) => return None,
                "sv" if !value.is_empty() && value != "v1" => return None,
                "pretty" => pretty = value == "1",
                _ => {}
            }
        }
        let transform = if kind.or(group).or(version).is_none() {
            Transform::None
        } else {
            if group != Some("meta.k8s.io") {
                return None;
            }
            let version = MetaVersion::parse(version?)?;
            match kind? {
                "Table" => Transform::Table { version },
                "PartialObjectMetadata" => Transform::PartialObjectMetadata { version },
                "PartialObjectMetadataList" => Transform::PartialObjectMetadataList { version },
                _ => return None,
            }
        };
        Some(OutputFormat { media, pretty, transform })
    }
}

// === impl InputFormat ===

impl InputFormat {
    /// Finds how a body is written. Without a `Content-Type` header it is JSON.
    ///
    /// # Errors
    /// 415 when the media type is not read here, with the list of those that are.
    pub fn negotiate(headers: &HeaderMap) -> Result<Self, Status> {
        let content_type = headers.get(header::CONTENT_TYPE).map_or(Some(""), |v| v.to_str().ok());
        match content_type.map(essence).as_deref() {
            Some("" | "application/json") => Ok(InputFormat::Json),
            Some("application/yaml") => Ok(InputFormat::Yaml),
            _ => Err(Status::unsupported_media_type(&MEDIA_TYPES)),
        }
    }
}

// === impl PatchType ===

impl PatchType {
    /// Both, as OpenAPI lists them.
    pub const ALL: [PatchType; 2] = [PatchType::Json, PatchType::Merge];

    /// Finds the patch type. There is no default.
    ///
    /// # Errors
    /// 415 for anything else: clients fall back to another patch type on it.
    pub fn negotiate(headers: &HeaderMap) -> Result<Self, Status> {
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        Self::ALL.into_iter().find(|t| t.as_str() == essence).ok_or_else(Status::unsupported_patch_type)
    }

    /// The media type.
    pub fn as_str(self) -> &'static str {
        match self {
            PatchType::Json => "application/json-patch+json",
            PatchType::Merge => "application/merge-patch+json",
        }
    }
}

/// A media type without its parameters, in lower case.
fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
