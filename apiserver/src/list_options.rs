//! The options of requests: what stands in the query, and, for deletions, in the body
//! (k8s.io/apimachinery `pkg/apis/meta/internalversion`, `pkg/apis/meta/v1/conversion.go`).
//!
//! What cannot be read is 400; what can be read and makes no sense is 422, with a cause for each mistake.

use http::HeaderMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;

use crate::{
    codec::{
        json::{self, Node, NodeKind},
        typed, yaml,
    },
    meta::GroupKind,
    negotiate::InputFormat,
    query,
    quote::quote,
    scheme::Strictness,
    selector::{FieldSelector, LabelSelector},
    status::Status,
    validation::{ErrorList, FieldError, Path, options},
};

/// What a list or watch is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only objects with such labels.
    pub label_selector: LabelSelector,
    /// Only objects with such fields.
    pub field_selector: FieldSelector,
    /// Whether this is a watch.
    pub watch: bool,
    /// Whether the watch wants bookmarks.
    pub allow_watch_bookmarks: bool,
    /// The resource version, as it stands in the query; empty for none.
    pub resource_version: String,
    /// How the resource version is meant.
    pub resource_version_match: Option<ResourceVersionMatch>,
    /// After how many seconds the server ends the request; not checked for its sign.
    pub timeout_seconds: Option<i64>,
    /// How many objects a page holds; zero for all. Not checked for its sign.
    pub limit: i64,
    /// Where to go on, empty for a new list.
    pub continue_token: String,
    /// Whether a watch starts with the objects that there are. Defaulted: a watch without a resource version does.
    pub send_initial_events: Option<bool>,
}

/// How a list's resource version is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceVersionMatch {
    /// The state at exactly this version.
    Exact,
    /// A state at this version or a later one.
    NotOlderThan,
}

/// The options of a create, update or patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether nothing is to be stored.
    pub dry_run: bool,
    /// What happens to unknown and repeated fields.
    pub strictness: Strictness,
    /// Who owns the fields; checked, and not used as long as ownership is not tracked.
    pub field_manager: String,
}

// === impl ListOptions ===

impl ListOptions {
    /// Reads the options from a query, fills in what a watch without them means, and checks them.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what makes no sense.
    pub fn parse(query: &str) -> Result<Self, Status> {
        let text = |name| query::first(query, name).unwrap_or_default().into_owned();
        let resource_version_match = text("resourceVersionMatch");
        let mut options = Self {
            label_selector: LabelSelector::parse(&text("labelSelector")).map_err(bad_request)?,
            field_selector: FieldSelector::parse(&text("fieldSelector")).map_err(bad_request)?,
            watch: boolean(query, "watch").unwrap_or(false),
            allow_watch_bookmarks: boolean(query, "allowWatchBookmarks").unwrap_or(false),
            resource_version: text("resourceVersion"),
            resource_version_match: ResourceVersionMatch::parse(&resource_version_match),
            timeout_seconds: integer(query, "timeoutSeconds")?,
            limit: integer(query, "limit")?.unwrap_or(0),
            continue_token: text("continue"),
            send_initial_events: boolean(query, "sendInitialEvents"),
        };
        options.set_defaults(&resource_version_match);
        let errors = options.validate(&resource_version_match);
        if errors.is_empty() { Ok(options) } else { Err(invalid("ListOptions", &errors)) }
    }

    /// A watch from nothing, or from any state, starts with the objects that there are.
    fn set_defaults(&mut self, resource_version_match: &str) {
        let from_anywhere = self.resource_version.is_empty() || self.resource_version == "0";
        if self.watch && from_anywhere && self.send_initial_events.is_none() && resource_version_match.is_empty() {
            self.send_initial_events = Some(true);
            self.resource_version_match = Some(ResourceVersionMatch::NotOlderThan);
        }
    }

    /// `given` is `resourceVersionMatch` as it stands in the query.
    fn validate(&self, given: &str) -> ErrorList {
        let path = Path::new("resourceVersionMatch");
        let initial = Path::new("sendInitialEvents");
        let mut errors = ErrorList::new();
        let matched = !given.is_empty() || self.resource_version_match.is_some();
        let continued = FieldError::forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
        if self.watch {
            let not_older = self.resource_version_match == Some(ResourceVersionMatch::NotOlderThan);
            if self.send_initial_events.is_some() && !not_older {
                let rule = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                errors.push(FieldError::forbidden(&path, rule));
            }
            if matched {
                if self.send_initial_events.is_none() {
                    let rule = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                    errors.push(FieldError::forbidden(&path, rule));
                }
                if !not_older {
                    errors.push(FieldError::not_supported(&path, given, &["NotOlderThan"]));
                }
                if !self.continue_token.is_empty() {
                    errors.push(continued);
                }
            }
            return errors;
        }
        if matched {
            if self.resource_version.is_empty() {
                let rule = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                errors.push(FieldError::forbidden(&path, rule));
            }
            if !self.continue_token.is_empty() {
                errors.push(continued);
            }
            match self.resource_version_match {
                None => errors.push(FieldError::not_supported(&path, given, &["Exact", "NotOlderThan", ""])),
                Some(ResourceVersionMatch::Exact) if self.resource_version == "0" => {
                    let rule = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                    errors.push(FieldError::forbidden(&path, rule));
                }
                Some(_) => {}
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(FieldError::forbidden(&initial, "sendInitialEvents is forbidden for list"));
        }
        errors
    }
}

impl ResourceVersionMatch {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "Exact" => Some(ResourceVersionMatch::Exact),
            "NotOlderThan" => Some(ResourceVersionMatch::NotOlderThan),
            _ => None,
        }
    }
}

// === impl WriteOptions ===

impl WriteOptions {
    /// Reads the options of a create from a query.
    ///
    /// # Errors
    /// 422 for what makes no sense.
    pub fn for_create(query: &str) -> Result<Self, Status> {
        Self::parse(query, "CreateOptions", ErrorList::new())
    }

    /// Reads the options of an update from a query.
    ///
    /// # Errors
    /// 422 for what makes no sense.
    pub fn for_update(query: &str) -> Result<Self, Status> {
        Self::parse(query, "UpdateOptions", ErrorList::new())
    }

    /// Reads the options of a patch from a query. `force` is for apply alone, which is not served.
    ///
    /// # Errors
    /// 422 for what makes no sense.
    pub fn for_patch(query: &str) -> Result<Self, Status> {
        let force = query::first(query, "force")
            .map(|_| FieldError::forbidden(&Path::new("force"), "may not be specified for non-apply patch"));
        Self::parse(query, "PatchOptions", force.into_iter().collect())
    }

    fn parse(query: &str, kind: &str, mut errors: ErrorList) -> Result<Self, Status> {
        let field_manager = query::first(query, "fieldManager").unwrap_or_default().into_owned();
        let dry_run: Vec<String> = query::all(query, "dryRun").into_iter().map(Into::into).collect();
        let field_validation = query::first(query, "fieldValidation").unwrap_or_default();
        errors.extend(options::field_manager(&field_manager, &Path::new("fieldManager")));
        errors.extend(options::dry_run(&dry_run, &Path::new("dryRun")));
        errors.extend(options::field_validation(&field_validation, &Path::new("fieldValidation")));
        if !errors.is_empty() {
            return Err(invalid(kind, &errors));
        }
        let strictness = match &*field_validation {
            "Ignore" => Strictness::Ignore,
            "Strict" => Strictness::Strict,
            _ => Strictness::Warn,
        };
        Ok(Self { dry_run: !dry_run.is_empty(), strictness, field_manager })
    }
}

/// Reads the options of a deletion from the body, or, when there is none, from the query. Bodies may name any
/// `apiVersion`: old clients write that of the resource.
///
/// `ignoreStoreReadErrorWithClusterBreakingPotential` is dropped, as servers without that feature do.
///
/// # Errors
/// 415 for a body that is neither JSON nor YAML, 400 for what cannot be read, 422 for what makes no sense.
pub fn delete_options(headers: &HeaderMap, query: &str, body: &[u8]) -> Result<DeleteOptions, Status> {
    let mut options = if body.is_empty() {
        delete_options_from_query(query)?
    } else {
        delete_options_from_body(InputFormat::negotiate(headers)?, body)?
    };
    options.ignore_store_read_error_with_cluster_breaking_potential = None;
    let errors = options::delete_options(&options);
    if errors.is_empty() { Ok(options) } else { Err(invalid("DeleteOptions", &errors)) }
}

fn delete_options_from_query(query: &str) -> Result<DeleteOptions, Status> {
    let dry_run: Vec<String> = query::all(query, "dryRun").into_iter().map(Into::into).collect();
    Ok(DeleteOptions {
        dry_run: (!dry_run.is_empty()).then_some(dry_run),
        grace_period_seconds: integer(query, "gracePeriodSeconds")?,
        orphan_dependents: boolean(query, "orphanDependents"),
        propagation_policy: query::first(query, "propagationPolicy").map(Into::into),
        ..DeleteOptions::default()
    })
}

fn delete_options_from_body(format: InputFormat, body: &[u8]) -> Result<DeleteOptions, Status> {
    let node = match format {
        InputFormat::Json => json::parse(body)
            .map_err(|e| Status::bad_request(format!("couldn't get version/kind; json parse error: {e}")))?,
        InputFormat::Yaml => yaml::parse(body).map_err(Status::bad_request)?.node,
    };
    let text = |name: &str| {
        let entry = match &node.kind {
            NodeKind::Object(entries) => entries.iter().find(|e| e.key == name),
            _ => None,
        };
        match entry.map(|e| &e.value.kind) {
            Some(NodeKind::String(text)) => Ok(text.as_str()),
            None | Some(NodeKind::Null) => Ok(""),
            Some(_) => Err(Status::bad_request(format!("couldn't get version/kind; {name} is no text"))),
        }
    };
    let (kind, api_version) = (text("kind")?, text("apiVersion")?);
    let well_formed = match api_version.split_once('/') {
        None => true,
        Some((group, "")) => group == "meta.k8s.io",
        Some((_, version)) => !version.contains('/'),
    };
    if !well_formed {
        return Err(Status::bad_request(format!("{} is no group and version", quote(api_version))));
    }
    if !matches!(kind, "" | "DeleteOptions") {
        let message = format!("no kind {} is registered for version {}", quote(kind), quote(api_version));
        return Err(Status::bad_request(message));
    }
    decode_ignoring(&node).map_err(|e| Status::bad_request(e.to_string()))
}

fn decode_ignoring(node: &Node) -> Result<DeleteOptions, typed::Error> {
    typed::decode_object(node, &mut typed::Problems::new(false))
}

fn invalid(kind: &str, errors: &ErrorList) -> Status {
    Status::invalid(&GroupKind { group: "meta.k8s.io".to_owned(), kind: kind.to_owned() }, "", errors)
}

fn bad_request(error: impl std::fmt::Display) -> Status {
    Status::bad_request(error.to_string())
}

/// A truth value. Anything but `0` and `false` is true, nothing at all included.
fn boolean(query: &str, name: &str) -> Option<bool> {
    query::first(query, name).map(|text| !(text == "0" || text.eq_ignore_ascii_case("false")))
}

fn integer(query: &str, name: &str) -> Result<Option<i64>, Status> {
    let Some(text) = query::first(query, name) else { return Ok(None) };
    text.parse().map(Some).map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let reason = match error.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        Status::bad_request(format!("strconv.ParseInt: parsing {}: {reason}", quote(&text)))
    })
}

#[cfg(test)]
mod tests;
