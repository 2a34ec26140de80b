//! Asking the cluster by SubjectAccessReview (k8s.io/apiserver `plugin/pkg/authorizer/webhook/webhook.go`).

use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::{
    api::authorization::v1::{
        FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
        SubjectAccessReview, SubjectAccessReviewSpec,
    },
    apimachinery::pkg::apis::meta::v1::{FieldSelectorRequirement, LabelSelectorRequirement},
};
use kube::api::{Api, PostParams};
use moka::{Expiry, future::Cache};
use ring::digest;

use super::{AuthorizationAttributes, AuthorizationError, Authorizer, Decision};
use crate::{
    delegation::with_backoff,
    selector::{FieldSelector, LabelSelector, Operator},
};

/// How many answers are remembered.
const CACHE_ENTRIES: u64 = 8192;
/// Answers to longer questions than this, in bytes that the client chooses, are not remembered: that would be a way to
/// fill the memory.
const LARGEST_REMEMBERED: usize = 10_000;

/// Asks the cluster, and remembers the answers for a while.
pub struct DelegatedAuthorizer {
    reviews: Api<SubjectAccessReview>,
    timeout: Duration,
    /// By the SHA-256 of the question as JSON: nothing that is part of the question is left out of the key.
    answers: Cache<[u8; 32], Answer>,
}

/// What the cluster said.
#[derive(Clone)]
enum Answer {
    Allowed,
    Denied(String),
    NoOpinion(String),
}

struct Lifetimes {
    allowed: Duration,
    refused: Duration,
}

// === impl DelegatedAuthorizer ===

impl DelegatedAuthorizer {
    /// Asks with this client, gives up on one question after `timeout`, and remembers permissions and refusals for these
    /// times (zero: not at all).
    pub fn new(client: kube::Client, timeout: Duration, allowed_ttl: Duration, refused_ttl: Duration) -> Self {
        let lifetimes = Lifetimes { allowed: allowed_ttl, refused: refused_ttl };
        Self {
            reviews: Api::all(client),
            timeout,
            answers: Cache::builder().max_capacity(CACHE_ENTRIES).expire_after(lifetimes).build(),
        }
    }

    async fn ask(&self, spec: SubjectAccessReviewSpec) -> Result<Answer, AuthorizationError> {
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let parameters = PostParams::default();
        let answer =
            with_backoff(self.timeout, || self.reviews.create(&parameters, &review)).await.map_err(|error| {
                tracing::error!("the SubjectAccessReview failed, so the request is refused: {error}{}", error.remedy());
                AuthorizationError { message: format!("the SubjectAccessReview failed: {error}") }
            })?;
        let status = answer.status.unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        match (status.allowed, status.denied.unwrap_or_default()) {
            (true, true) => Err(AuthorizationError {
                message: "the SubjectAccessReview was answered with both allowed and denied".to_owned(),
            }),
            (true, false) => Ok(Answer::Allowed),
            (false, true) => Ok(Answer::Denied(reason)),
            (false, false) => Ok(Answer::NoOpinion(reason)),
        }
    }
}

#[async_trait]
impl Authorizer for DelegatedAuthorizer {
    async fn authorize(&self, attributes: &AuthorizationAttributes<'_>) -> Decision {
        let spec = question(attributes);
        let outcome = if controlled_size(attributes) < LARGEST_REMEMBERED {
            match key(&spec) {
                // Callers with the same question share one review; an error goes to all of them and is forgotten.
                Ok(key) => self.answers.try_get_with(key, self.ask(spec)).await.map_err(|error| (*error).clone()),
                Err(error) => Err(AuthorizationError { message: error.to_string() }),
            }
        } else {
            self.ask(spec).await
        };
        match outcome {
            Ok(Answer::Allowed) => Decision::Allow,
            Ok(Answer::Denied(reason)) => Decision::Deny { reason },
            Ok(Answer::NoOpinion(reason)) => Decision::NoOpinion { reason },
            Err(error) => Decision::Error(error),
        }
    }
}

// === impl Lifetimes ===

impl Expiry<[u8; 32], Answer> for Lifetimes {
    fn expire_after_create(&self, _: &[u8; 32], answer: &Answer, _: Instant) -> Option<Duration> {
        Some(if matches!(answer, Answer::Allowed) { self.allowed } else { self.refused })
    }
}

fn key(spec: &SubjectAccessReviewSpec) -> Result<[u8; 32], serde_json::Error> {
    let mut key = [0; 32];
    key.copy_from_slice(digest::digest(&digest::SHA256, &serde_json::to_vec(spec)?).as_ref());
    Ok(key)
}

/// The question in the cluster's words.
fn question(attributes: &AuthorizationAttributes<'_>) -> SubjectAccessReviewSpec {
    let AuthorizationAttributes { user, verb, info } = *attributes;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let (resource, path) = if info.is_resource {
        let attributes = ResourceAttributes {
            namespace: some(&info.namespace),
            verb: some(verb),
            group: some(&info.group),
            version: some(&info.version),
            resource: some(&info.resource),
            subresource: some(&info.subresource),
            name: some(&info.name),
            field_selector: field_requirements(&info.field_selector)
                .map(|requirements| FieldSelectorAttributes { requirements: Some(requirements), raw_selector: None }),
            label_selector: label_requirements(&info.label_selector)
                .map(|requirements| LabelSelectorAttributes { requirements: Some(requirements), raw_selector: None }),
        };
        (Some(attributes), None)
    } else {
        (None, Some(NonResourceAttributes { path: some(&info.path), verb: some(verb) }))
    };
    SubjectAccessReviewSpec {
        user: some(&user.name),
        uid: some(&user.uid),
        groups: Some(user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        resource_attributes: resource,
        non_resource_attributes: path,
    }
}

/// Selectors only narrow what is asked for, so one that cannot be read is left out: the question is a wider one then.
fn field_requirements(selector: &str) -> Option<Vec<FieldSelectorRequirement>> {
    let selector = FieldSelector::parse(selector).ok()?;
    let requirements: Vec<_> = selector
        .requirements()
        .iter()
        .map(|r| FieldSelectorRequirement {
            key: r.field.clone(),
            operator: if r.equal { "In" } else { "NotIn" }.to_owned(),
            values: Some(vec![r.value.clone()]),
        })
        .collect();
    (!requirements.is_empty()).then_some(requirements)
}

fn label_requirements(selector: &str) -> Option<Vec<LabelSelectorRequirement>> {
    let selector = LabelSelector::parse(selector).ok()?;
    let requirements: Vec<_> = selector
        .requirements()
        .iter()
        .filter_map(|r| {
            let operator = match r.operator() {
                Operator::In | Operator::Equals | Operator::DoubleEquals => "In",
                Operator::NotIn | Operator::NotEquals => "NotIn",
                Operator::Exists => "Exists",
                Operator::DoesNotExist => "DoesNotExist",
                Operator::GreaterThan | Operator::LessThan => return None,
            };
            let values = (!r.values().is_empty()).then(|| r.values().to_vec());
            Some(LabelSelectorRequirement { key: r.key().to_owned(), operator: operator.to_owned(), values })
        })
        .collect();
    (!requirements.is_empty()).then_some(requirements)
}

fn controlled_size(attributes: &AuthorizationAttributes<'_>) -> usize {
    let AuthorizationAttributes { verb, info, .. } = attributes;
    [&info.namespace, &info.group, &info.version, &info.resource, &info.subresource, &info.name, &info.path]
        .iter()
        .map(|text| text.len())
        .sum::<usize>()
        + info.field_selector.len()
        + info.label_selector.len()
        + verb.len()
}
