//! Name and password on an etcd with authentication on, and the token that stands for them.
//!
//! etcd gives a token for name and password (`Authenticate`), which goes with each request. It ends by time, with each
//! change of the user, and, signed as a JWT, with each change of any user or role: whoever uses it learns so from a refusal.
//! That refusal comes before anything is written, on every member and in every version (a read may have been made, and is not
//! told), so that such a request may be sent again with a new token: [`is_refusal`] names the three answers that say so, the
//! ones that etcd's own client takes for it (`client/v3/retry_interceptor.go`, `shouldRefreshToken`).

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use proto::etcdserverpb::{AuthenticateRequest, AuthenticateResponse};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, timeout},
};
use tonic::{Code, Status};

use super::{backoff::Backoff, metrics::UpstreamMetrics};

/// The header that carries the token (`rpctypes.TokenFieldNameGRPC`).
pub(super) const TOKEN: HeaderName = HeaderName::from_static("token");
/// etcd's answers to a token that is none any more (`rpctypes.ErrGRPCInvalidAuthToken`, `ErrGRPCAuthOldRevision`), and to
/// none at all where one is needed (`ErrGRPCUserEmpty`): authentication was switched on meanwhile.
const REFUSALS: [(Code, &str); 3] = [
    (Code::Unauthenticated, "etcdserver: invalid auth token"),
    (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
    (Code::InvalidArgument, "etcdserver: user name is empty"),
];
/// etcd's answer to Authenticate while authentication is off.
const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";

/// How long a login may take: a member gives up after 7 s, and judging a password may take it long.
const LOGIN_PATIENCE: Duration = Duration::from_secs(30);

/// How long a refused password is not tried again: judging one costs etcd much work, and its answer will be the same.
const REFUSED_PAUSE: Duration = Duration::from_secs(2);

/// How long a file is not looked at again whose password was refused.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// How long the file with the password may take.
const READ_PATIENCE: Duration = Duration::from_secs(5);

/// A text that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Where the password comes from.
#[derive(Clone, Debug)]
pub enum Password {
    /// It is given.
    Text(Secret),
    /// It is in a file, which is read anew for each login, so that it may change.
    File(PathBuf),
}

/// The proxy's user on the upstream, logged in at the first request.
pub struct Credentials {
    name: String,
    password: Password,
    /// A file that was not read in time. It keeps a thread, so that nobody begins to read it once more.
    reading: Mutex<Option<JoinHandle<io::Result<String>>>>,
    state: Mutex<State>,
    /// Held by whoever logs in, for all.
    login: Arc<tokio::sync::Mutex<()>>,
}

/// What one request goes by.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    user: Arc<Credentials>,
    /// Tells a login from those before and after.
    login: u64,
    token: Option<HeaderValue>,
}

#[derive(Default)]
struct State {
    /// Logins so far.
    logins: u64,
    current: Option<Login>,
    /// How the last attempt failed, until one succeeds.
    failure: Option<String>,
    backoff: Backoff,
    refused: Option<Refused>,
}

/// A password that the upstream has judged to be none.
struct Refused {
    password: String,
    /// When it may be tried again.
    until: Instant,
    /// When the file was last looked at, which may hold another one by now.
    looked: Instant,
}

/// How a login ended.
#[derive(Clone)]
enum Login {
    /// With a token.
    Token(HeaderValue),
    /// Needless: authentication is off.
    Off,
}

/// Whether a status says that the token was refused before anything was done.
pub(super) fn is_refusal(status: &Status) -> bool {
    REFUSALS.contains(&(status.code(), status.message()))
}

/// Whether a watch was refused for its stream's token: by the reason of its cancel, which is such a status as Go prints it.
pub fn is_refused_watch(cancel_reason: &str) -> bool {
    REFUSALS.iter().any(|(code, text)| {
        let code = match code {
            Code::Unauthenticated => "Unauthenticated",
            _ => "InvalidArgument",
        };
        cancel_reason
            .strip_prefix("rpc error: code = ")
            .and_then(|rest| rest.strip_prefix(code))
            .is_some_and(|rest| rest.strip_prefix(" desc = ") == Some(text))
    })
}

/// What a tenant hears when its stream cannot go on with the token that it began with. It may come again at once.
pub fn expired() -> Status {
    Status::unavailable("etcd-proxy: the stream's login at the upstream has ended; open another one")
}

/// What a tenant hears while the proxy cannot log in. The reason is its operator's business, who has it in the log.
pub(super) fn not_logged_in() -> Status {
    Status::unavailable("etcd-proxy: the proxy's user is not accepted by the upstream etcd")
}

// === impl Secret ===

impl Secret {
    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The password in a file. One line break at its end does not belong to it.
fn read(path: &Path) -> io::Result<String> {
    let mut text = fs::read_to_string(path)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    match text.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "there is no password in it")),
        false => Ok(text),
    }
}

// === impl Credentials ===

impl Credentials {
    /// The user of this name.
    pub fn new(name: impl Into<String>, password: Password) -> Self {
        Self { name: name.into(), password, reading: Mutex::default(), state: Mutex::default(), login: Arc::default() }
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why the last login failed, if it did.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    /// Whether the upstream has authentication on, as far as a login has shown.
    pub fn authentication(&self) -> Option<bool> {
        self.state.lock().current.as_ref().map(|login| matches!(login, Login::Token(_)))
    }

    /// What the next request goes by. Logs in by `authenticate` if need be; of several requests that need it one does. It does
    /// so in a task: judging a password takes time, and a request that gives up must not take from others what it began.
    ///
    /// # Errors
    /// When the upstream cannot be asked, or refuses; it is then left alone for a while by all, since judging a password costs
    /// it much work, unless the file holds another password.
    pub(super) async fn ticket<F>(
        self: &Arc<Self>,
        metrics: &UpstreamMetrics,
        authenticate: impl FnOnce(AuthenticateRequest) -> F + Send + 'static,
    ) -> Result<Ticket, Status>
    where
        F: Future<Output = Result<AuthenticateResponse, Status>> + Send + 'static,
    {
        if let Some(ticket) = self.current() {
            return Ok(ticket);
        }
        self.may_log_in()?;
        let login = self.login.clone().lock_owned().await;
        // Somebody else may have done it meanwhile, or failed.
        if let Some(ticket) = self.current() {
            return Ok(ticket);
        }
        self.may_log_in()?;
        let (user, metrics) = (self.clone(), metrics.clone());
        // Waited for here; at the end of the process nobody misses a login.
        let logging_in = tokio::spawn(async move {
            let _login = login;
            user.log_in(&metrics, authenticate).await
        });
        // A task that broke off has told nothing.
        logging_in.await.unwrap_or_else(|_| Err(not_logged_in()))?;
        self.current().ok_or_else(not_logged_in)
    }

    /// The password as it is now. A file is read beside the runtime's thread, since a disk may take its time.
    async fn read_password(&self) -> io::Result<String> {
        let path = match &self.password {
            Password::Text(text) => return Ok(text.0.clone()),
            Password::File(path) => path.clone(),
        };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let under_way = self.reading.lock().take();
        let mut reading = under_way.unwrap_or_else(|| {
            let path = path.clone();
            spawn_blocking(move || read(&path))
        });
        match timeout(READ_PATIENCE, &mut reading).await {
            Ok(Ok(read)) => read.map_err(named),
            Ok(Err(broken)) => Err(named(broken.into())),
            Err(_) => {
                *self.reading.lock() = Some(reading);
                Err(named(io::Error::new(io::ErrorKind::TimedOut, format!("not read within {READ_PATIENCE:?}"))))
            }
        }
    }

    async fn log_in<F>(
        &self,
        metrics: &UpstreamMetrics,
        authenticate: impl FnOnce(AuthenticateRequest) -> F,
    ) -> Result<(), Status>
    where
        F: Future<Output = Result<AuthenticateResponse, Status>>,
    {
        let password = match self.read_password().await {
            Ok(password) => password,
            Err(error) => return Err(self.failed(metrics, format!("the password cannot be read: {error}"))),
        };
        if !self.is_news(&password) {
            return Err(not_logged_in());
        }
        let answer = authenticate(AuthenticateRequest { name: self.name.clone(), password: password.clone() });
        // Nobody else ends it, and others wait for it.
        let answer = match timeout(LOGIN_PATIENCE, answer).await {
            Ok(answer) => answer,
            Err(_) => return Err(self.failed(metrics, format!("no answer within {LOGIN_PATIENCE:?}"))),
        };
        let login = match answer {
            Ok(answer) => match HeaderValue::try_from(answer.token) {
                Ok(mut token) => {
                    // Kept out of logs, and out of the tables of header compression.
                    token.set_sensitive(true);
                    Login::Token(token)
                }
                Err(_) => return Err(self.failed(metrics, "the upstream's token is no header".to_owned())),
            },
            Err(status) if status.code() == Code::FailedPrecondition && status.message() == NOT_ENABLED => Login::Off,
            // Nobody has judged the password.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled) => {
                return Err(status);
            }
            Err(status) => return Err(self.refused(metrics, password, status.message().to_owned())),
        };
        metrics.logged_in(true);
        let mut state = self.state.lock();
        match (&login, state.failure.take()) {
            (_, Some(_)) => tracing::info!(user = self.name, "logged in to the upstream again"),
            (Login::Token(_), None) => tracing::debug!(user = self.name, "logged in to the upstream"),
            (Login::Off, None) => tracing::debug!(user = self.name, "the upstream has authentication off"),
        }
        state.logins = state.logins.wrapping_add(1);
        state.current = Some(login);
        state.backoff.succeeded();
        state.refused = None;
        Ok(())
    }

    /// What there is to go by, without asking anybody.
    fn current(self: &Arc<Self>) -> Option<Ticket> {
        let state = self.state.lock();
        let token = match state.current.as_ref()? {
            Login::Token(token) => Some(token.clone()),
            Login::Off => None,
        };
        Some(Ticket { user: self.clone(), login: state.logins, token })
    }

    /// Refuses while the upstream is left alone, which it is for all of those who ask.
    fn may_log_in(&self) -> Result<(), Status> {
        let (state, now) = (self.state.lock(), Instant::now());
        let pauses = state.refused.as_ref().is_some_and(|refused| match &self.password {
            Password::Text(_) => now < refused.until,
            Password::File(_) => now < refused.until && now < refused.looked + LOOK_PAUSE,
        });
        if pauses || !state.backoff.is_over(now) { Err(not_logged_in()) } else { Ok(()) }
    }

    /// Whether this password is not the one that was refused just now.
    fn is_news(&self, password: &str) -> bool {
        let (mut state, now) = (self.state.lock(), Instant::now());
        match &mut state.refused {
            Some(refused) if now < refused.until => {
                refused.looked = now;
                refused.password != password
            }
            _ => true,
        }
    }

    /// Notes that the upstream has judged.
    fn refused(&self, metrics: &UpstreamMetrics, password: String, reason: String) -> Status {
        let now = Instant::now();
        self.state.lock().refused = Some(Refused { password, until: now + REFUSED_PAUSE, looked: now });
        self.note(metrics, reason, REFUSED_PAUSE)
    }

    /// Notes that it did not come to that.
    fn failed(&self, metrics: &UpstreamMetrics, reason: String) -> Status {
        let wait = self.state.lock().backoff.failed(Instant::now());
        self.note(metrics, reason, wait)
    }

    fn note(&self, metrics: &UpstreamMetrics, reason: String, wait: Duration) -> Status {
        metrics.logged_in(false);
        let mut state = self.state.lock();
        let known = state.failure.as_ref() == Some(&reason);
        if known {
            tracing::debug!(user = self.name, reason, "cannot log in to the upstream");
        } else {
            tracing::error!(
                user = self.name,
                reason,
                "cannot log in to the upstream; trying again after {wait:?} and so on, whenever somebody asks"
            );
        }
        state.failure = Some(reason);
        not_logged_in()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl Ticket ===

impl Ticket {
    /// Lets a request go by it.
    pub(super) fn stamp(&self, headers: &mut HeaderMap) {
        if let Some(token) = &self.token {
            headers.insert(TOKEN, token.clone());
        }
    }

    /// Notes that the upstream refused it: the next request logs in anew.
    pub(super) fn refused(&self) {
        let mut state = self.user.state.lock();
        if state.logins == self.login {
            state.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::{future::join_all, poll};
    use tokio::sync::Notify;

    use super::*;

    fn user() -> Arc<Credentials> {
        Arc::new(Credentials::new("tenant", Password::Text("geheim".into())))
    }

    fn token(token: &str) -> Result<AuthenticateResponse, Status> {
        Ok(AuthenticateResponse { header: None, token: token.to_owned() })
    }

    #[tokio::test]
    async fn many_requests_log_in_once_and_again_after_a_refusal() {
        let (user, metrics, asked) = (user(), UpstreamMetrics::default(), Arc::new(AtomicU32::new(0)));
        let ask = || {
            let asked = asked.clone();
            async move |request: AuthenticateRequest| {
                assert_eq!((request.name.as_str(), request.password.as_str()), ("tenant", "geheim"));
                tokio::task::yield_now().await;
                token(&format!("t{}", asked.fetch_add(1, Ordering::Relaxed)))
            }
        };
        let tickets = join_all((0..10).map(|_| user.ticket(&metrics, ask()))).await;
        assert!(tickets.iter().all(|ticket| ticket.as_ref().unwrap().token.as_ref().unwrap() == "t0"), "{tickets:?}");
        let old = tickets.into_iter().next().unwrap().unwrap();
        old.refused();
        let new = user.ticket(&metrics, ask()).await.unwrap();
        assert_eq!(new.token.as_ref().unwrap(), "t1");
        // Late news of the old one does not take the new one away.
        old.refused();
        assert_eq!(user.ticket(&metrics, ask()).await.unwrap().token.unwrap(), "t1");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_login_goes_on_without_the_request_that_began_it() {
        let (user, metrics, judged) = (user(), UpstreamMetrics::default(), Arc::new(Notify::new()));
        let slow = {
            let judged = judged.clone();
            async move |_| {
                judged.notified().await;
                token("first")
            }
        };
        let mut impatient = Box::pin(user.ticket(&metrics, slow));
        assert!(poll!(impatient.as_mut()).is_pending());
        drop(impatient);
        judged.notify_one();
        let ticket = user.ticket(&metrics, async |_| token("second")).await.unwrap();
        assert_eq!(ticket.token.unwrap(), "first");
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_that_nobody_answers_ends() {
        let (user, metrics) = (user(), UpstreamMetrics::default());
        let never = async |_| std::future::pending().await;
        assert_eq!(user.ticket(&metrics, never).await.unwrap_err().code(), Code::Unavailable);
        assert!(user.failure().unwrap().contains("no answer"));
    }

    /// Whoever asks, and from the first time on.
    #[tokio::test(start_paused = true)]
    async fn a_refused_password_is_tried_every_two_seconds() {
        let (user, metrics, judged) = (user(), UpstreamMetrics::default(), Arc::new(AtomicU32::new(0)));
        let wrong = || {
            let judged = judged.clone();
            async move |_| {
                judged.fetch_add(1, Ordering::Relaxed);
                Err(Status::invalid_argument("etcdserver: authentication failed"))
            }
        };
        for _ in 0..60 {
            for refused in join_all((0..3).map(|_| user.ticket(&metrics, wrong()))).await {
                assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(judged.load(Ordering::Relaxed), 3);
        assert_eq!(user.failure().unwrap(), "etcdserver: authentication failed");
        tokio::time::advance(Duration::from_secs(2)).await;
        user.ticket(&metrics, async |_| token("t")).await.unwrap();
        assert_eq!(user.failure(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn another_password_in_the_file_is_tried_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "old").unwrap();
        let user = Arc::new(Credentials::new("tenant", Password::File(file.path().to_owned())));
        let metrics = UpstreamMetrics::default();
        let judge = async |request: AuthenticateRequest| match request.password.as_str() {
            "new" => token("t"),
            _ => Err(Status::invalid_argument("etcdserver: authentication failed")),
        };
        user.ticket(&metrics, judge).await.unwrap_err();
        tokio::time::advance(LOOK_PAUSE).await;
        // The same is not judged again.
        user.ticket(&metrics, async |_| token("t")).await.unwrap_err();
        fs::write(file.path(), "new").unwrap();
        tokio::time::advance(LOOK_PAUSE).await;
        user.ticket(&metrics, judge).await.unwrap();
    }

    #[tokio::test]
    async fn authentication_may_be_off() {
        let (user, metrics) = (user(), UpstreamMetrics::default());
        let off = async |_| Err(Status::failed_precondition(NOT_ENABLED));
        let ticket = user.ticket(&metrics, off).await.unwrap();
        let mut headers = HeaderMap::new();
        ticket.stamp(&mut headers);
        assert!(headers.is_empty());
        assert_eq!(user.authentication(), Some(false));
        ticket.refused();
        assert_eq!(user.ticket(&metrics, async |_| token("t")).await.unwrap().token.unwrap(), "t");
    }

    #[test]
    fn nothing_secret_is_printed() {
        let user = user();
        assert!(!format!("{user:?} {:?}", Password::Text("geheim".into())).contains("geheim"));
    }

    #[test]
    fn one_line_break_is_no_part_of_a_password() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, read) in [("geheim\n", "geheim"), ("geheim\r\n", "geheim"), (" x \n\n", " x \n"), ("x", "x")] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(super::read(file.path()).unwrap(), read);
        }
        fs::write(file.path(), "\n").unwrap();
        assert!(super::read(file.path()).is_err());
    }

    #[test]
    fn refused_watches_are_told_from_others() {
        assert!(is_refused_watch("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"));
        assert!(is_refused_watch("rpc error: code = InvalidArgument desc = etcdserver: user name is empty"));
        assert!(!is_refused_watch("rpc error: code = PermissionDenied desc = etcdserver: permission denied"));
        assert!(!is_refused_watch("etcdserver: invalid auth token, more"));
    }
}
