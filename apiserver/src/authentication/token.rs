//! Bearer tokens: the cluster is asked by TokenReview what they are worth
//! (k8s.io/apiserver `plugin/pkg/authenticator/token/webhook`, `pkg/authentication/token/cache`).

use std::{sync::Arc, time::Duration};

use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::{Api, PostParams};
use moka::future::Cache;
use ring::hmac;

use super::{AuthenticationError, Evidence};
use crate::{delegation::with_backoff, request::UserInfo};

/// How many tokens are remembered.
const CACHE_ENTRIES: u64 = 32 * 1024;

/// Asks the cluster about tokens, and remembers the answers for a while.
pub struct TokenReviewer {
    reviews: Api<TokenReview>,
    timeout: Duration,
    /// Answers by a keyed hash of the token: the tokens themselves are nowhere kept. Failures to find out are not
    /// remembered.
    answers: Option<Cache<[u8; 32], Answer>>,
    key: hmac::Key,
}

#[derive(Clone)]
enum Answer {
    User(Arc<UserInfo>),
    Invalid,
}

// === impl TokenReviewer ===

impl TokenReviewer {
    /// Asks with this client, gives up on one question after `timeout`, and remembers answers for `ttl` (zero: not at all).
    pub fn new(client: kube::Client, timeout: Duration, ttl: Duration) -> Self {
        let mut secret = [0; 32];
        rand::fill(&mut secret);
        Self {
            reviews: Api::all(client),
            timeout,
            answers: (!ttl.is_zero()).then(|| Cache::builder().max_capacity(CACHE_ENTRIES).time_to_live(ttl).build()),
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
        }
    }

    /// The user whom a token stands for.
    ///
    /// # Errors
    /// When the cluster does not know the token, or cannot be asked.
    pub async fn review(&self, token: &str) -> Result<UserInfo, AuthenticationError> {
        let answer = match &self.answers {
            None => self.ask(token).await?,
            Some(cache) => {
                let mut key = [0; 32];
                key.copy_from_slice(hmac::sign(&self.key, token.as_bytes()).as_ref());
                cache.try_get_with(key, self.ask(token)).await.map_err(|error| (*error).clone())?
            }
        };
        match answer {
            Answer::User(user) => Ok((*user).clone()),
            Answer::Invalid => Err(AuthenticationError::new("invalid bearer token")),
        }
    }

    async fn ask(&self, token: &str) -> Result<Answer, AuthenticationError> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let parameters = PostParams::default();
        let answer = with_backoff(self.timeout, || self.reviews.create(&parameters, &review))
            .await
            .map_err(|error| AuthenticationError::new(format!("the TokenReview failed: {error}{}", error.remedy())))?;
        let status = answer.status.unwrap_or_default();
        match (status.authenticated.unwrap_or_default(), status.error.filter(|e| !e.is_empty())) {
            (true, _) => {
                let user = status.user.unwrap_or_default();
                Ok(Answer::User(Arc::new(UserInfo {
                    name: user.username.unwrap_or_default(),
                    uid: user.uid.unwrap_or_default(),
                    groups: user.groups.unwrap_or_default(),
                    extra: user.extra.unwrap_or_default(),
                })))
            }
            (false, None) => Ok(Answer::Invalid),
            (false, Some(error)) => Err(AuthenticationError::new(error)),
        }
    }
}

/// The token of the request's `Authorization` header
/// (k8s.io/apiserver `pkg/authentication/request/bearertoken/bearertoken.go`).
pub(super) fn bearer_token<'a>(evidence: &Evidence<'a>) -> Option<&'a str> {
    let header = evidence.headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let mut parts = header.splitn(3, ' ');
    let (scheme, token, more) = (parts.next()?, parts.next()?, parts.next());
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    if token.is_empty() {
        if more.is_some() {
            evidence
                .warnings
                .add("the provided Authorization header contains extra space before the bearer token, and is ignored");
        }
        return None;
    }
    Some(token)
}
