//! Requests of the proxy's own, which clients wait for and cannot put a deadline to: each is answered or given up in a bounded
//! time.

use std::time::Duration;

use proto::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use tokio::time::timeout;
use tonic::Status;

use super::Upstream;

/// How long the upstream may take for a request of the proxy's own that concerns few keys. One second more than etcd itself
/// takes at its default election timeout (`server/config/config.go`, `ReqTimeout`: 5 s and two election timeouts), so that
/// what an etcd without a leader says of that is heard.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);

/// The answer to a question to the upstream, or `Unavailable` if there is none within `patience`.
///
/// # Errors
/// What the upstream says, and that.
pub(crate) async fn within<T>(patience: Duration, asked: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(patience, asked).await.unwrap_or_else(|_| {
        Err(Status::unavailable(format!("etcd-proxy: the upstream gave no answer within {patience:?}")))
    })
}

// === impl Upstream ===

impl Upstream {
    /// Reads a few keys for the proxy's own ends.
    ///
    /// # Errors
    /// When the upstream cannot be asked, or does not answer within [`PATIENCE`].
    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        Ok(within(PATIENCE, self.kv().range(request)).await?.into_inner())
    }

    /// Reads and writes a few keys for the proxy's own ends.
    ///
    /// # Errors
    /// When the upstream cannot be asked, or does not answer within [`PATIENCE`]: then it may have been carried out.
    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        Ok(within(PATIENCE, self.kv().txn(request)).await?.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_silent_is_not_waited_for() {
        let begun = Instant::now();
        let status = within(PATIENCE, std::future::pending::<Result<(), Status>>()).await.unwrap_err();
        assert_eq!((status.code(), begun.elapsed()), (Code::Unavailable, PATIENCE));
    }
}
